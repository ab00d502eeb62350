"""Cost of ranking layers: processor time relative to a calibration of the same run, and peak memory.

    python benchmarks/sensitivity.py [--networks NAME ...] [--samples N] [--rounds N] [--out FILE]

Calibration observes all samples of a file and computes the encodings. The ranking starts from a file and
its statistics, as `onnxfq sensitivity --statistics` does, and measures two samples: every group of quantizers
alone, and the worst left out. Plain inference runs all samples in one fully optimised onnxruntime session.
Each job runs in a separate process, in turns; imports are not counted. Processor seconds sum up all threads.

Marks for ResNet-50, 64 samples: the ranking at most 1.2 times the processor time of the calibration, and at
most 256 MB more than plain inference.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable
from functools import partial
from pathlib import Path

from calibration import feeds
from quantize import Job, compare_jobs, plain, run_child


def calibration() -> Job:
    """Return observing and calibrating; the statistics are kept for the ranking."""
    import onnxfq

    def run(path: Path, samples: int, threads: int) -> None:
        model = onnxfq.load(path)
        plan = onnxfq.make_plan(model, onnxfq.load_recipe("tensorrt-int8"))
        options = onnxfq.ObserveOptions(threads=threads)
        found = onnxfq.collect_statistics(model, plan, feeds(1, samples), options)
        onnxfq.calibrate(model, plan, found)
        found.save(path.with_suffix(".stats.npz"))

    return run


def ranking() -> Job:
    """Return the ranking, from the statistics of `calibration`."""
    import onnxfq

    sensitivity, options = onnxfq.sensitivity, onnxfq.RunOptions

    def run(path: Path, samples: int, threads: int) -> None:
        data, kept = partial(feeds, 1, samples), path.with_suffix(".stats.npz")
        found = sensitivity(path, data, statistics=kept, options=options(threads=threads))
        found.save(path.with_suffix(".groups.json"))

    return run


JOBS: dict[str, Callable[[], Job]] = {
    "plain inference": plain,
    "calibration": calibration,
    "ranking": ranking,
}


def measure(path: Path, samples: int, threads: int, rounds: int) -> list[list[str]]:
    """Return the table's rows of one model."""
    found: dict[str, list[dict]] = {name: [] for name in JOBS}
    for _ in range(rounds):
        for name, results in found.items():
            results.append(run_child(name, path, samples, threads, __file__))
    rows = []
    for name, results in found.items():
        if "error" in results[-1]:
            rows.append([path.stem, name, results[-1]["error"], "", "", ""])
            continue
        pairs = zip(results, found["calibration"], strict=True)
        ratio = statistics.median(a["processor"] / b["processor"] for a, b in pairs)
        peaks = (
            statistics.median(one["peak"] for one in r) / 1e6 for r in (results, found["plain inference"])
        )
        peak, base = peaks
        seconds = statistics.median(one["processor"] for one in results)
        rows.append([path.stem, name, f"{seconds:.2f}", f"{ratio:.2f}", f"{peak:.0f}", f"{peak - base:+.0f}"])
    return rows


def main() -> None:
    """Measure and print one table."""
    header = ["network", "what", "processor s", "times calibration", "peak MB", "more than plain"]
    compare_jobs(JOBS, measure, header, title="Ranking of layers", rounds=3)


if __name__ == "__main__":
    main()
