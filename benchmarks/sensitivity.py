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

import argparse
import statistics
import sys
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import onnx
from calibration import feeds
from quantize import Job, child, plain, run_child
from shapes import NETWORKS
from timing import machine, markdown_table, report


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
    if sys.argv[1:2] == ["--child"]:
        child(JOBS, *sys.argv[2:])
        return
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--networks", nargs="+", choices=sorted(NETWORKS), default=["resnet50"])
    parser.add_argument("--samples", type=int, default=64)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--out", help="write the result to this Markdown file")
    arguments = parser.parse_args()
    rows: list[list[str]] = []
    with tempfile.TemporaryDirectory() as folder:
        for network in arguments.networks:
            path = Path(folder) / f"{network}.onnx"
            onnx.save(NETWORKS[network](1), path)
            rows += measure(path, arguments.samples, arguments.threads, arguments.rounds)
    head = (
        f"{machine()}; onnx {onnx.__version__}, numpy {np.__version__}. {arguments.samples} samples, batch "
        f"1, {arguments.rounds} rounds in which the jobs take turns, each in its own process; medians, and "
        "medians of the rounds' ratios.\n\n"
    )
    header = ["network", "what", "processor s", "times calibration", "peak MB", "more than plain"]
    report(
        f"Ranking of layers, threads: {arguments.threads}", head + markdown_table(header, rows), arguments.out
    )


if __name__ == "__main__":
    main()
