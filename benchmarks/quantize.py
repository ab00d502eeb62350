"""Cost of the whole of `quantize`: relative to plain inference of the same samples, and peak memory.

    python benchmarks/quantize.py [--samples N ...] [--networks NAME ...] [--peers METHOD ...]
        [--remedies] [--aimet PYTHON] [--modelopt PYTHON] [--out FILE]

Plain inference is one fully optimised onnxruntime session. The whole job starts from a file and ends with a
written Q/DQ model: `onnxfq.quantize` with its default recipe and without remedies, and onnxruntime's
`quantize_static` with one method each, int8 per channel, on the same samples at batch 1. AIMET and ModelOpt
run by the python of their own environments, with min-max ranges. In each round every candidate runs once,
in a separate process; imports are not counted. Peak memory counts the whole process. Seconds are elapsed
time; processor seconds sum up all threads, which vary less on a busy machine.

Marks, times plain inference on 2 threads: ResNet-50 2.2 with 64 samples and 1.4 with 512, MobileNetV2 5 and
2.3, ViT-B/16 1.7 with 64; faster than onnxruntime's min-max on all three.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path

import numpy as np
import onnx
from calibration import DEFAULT_NETWORKS, feeds, infer, keep_to_free_memory
from shapes import NETWORKS
from timing import machine, markdown_table, peak_bytes, report

PEERS = ("minmax", "entropy", "percentile")

TOOLS = {"AIMET": "aimet", "ModelOpt": "modelopt"}
"""By label: the file `peers/by_NAME.py`, whose task `quantize` makes int8 with min-max ranges."""

REMEDIES = "onnxfq with remedies"
"""Job of a plain call; its peak memory is at most 1.3 times that without remedies."""

Job = Callable[[Path, int, int], None]
"""Called with the model, the number of samples and the number of threads."""


def plain() -> Job:
    """Return plain inference."""
    return lambda path, samples, threads: infer(path, 1, samples, threads)


def by_onnxfq(with_remedies: bool = False) -> Job:
    """Return `onnxfq.quantize`, by default without remedies, which the peers lack, with its imports done."""
    import onnxfq

    quantize, options = onnxfq.quantize, onnxfq.RunOptions
    accuracy = onnxfq.AccuracyTarget() if with_remedies else onnxfq.AccuracyTarget(repair=None)

    def run(path: Path, samples: int, threads: int) -> None:
        made = path.with_name("onnxfq.onnx")
        quantize(path, partial(feeds, 1, samples), made, accuracy=accuracy, options=options(threads=threads))

    return run


def by_onnxruntime(method: str) -> Job:
    """Return onnxruntime's `quantize_static`, with its imports done; it uses its default threads."""
    from onnxruntime.quantization import CalibrationMethod, QuantFormat, QuantType, quantize_static

    kinds = {
        "minmax": CalibrationMethod.MinMax,
        "entropy": CalibrationMethod.Entropy,
        "percentile": CalibrationMethod.Percentile,
    }

    class Reader:
        def __init__(self, samples: int) -> None:
            self.source = feeds(1, samples)

        def get_next(self) -> dict[str, np.ndarray] | None:
            return next(self.source, None)

        def __iter__(self) -> Iterator[dict[str, np.ndarray]]:
            return self.source

    def run(path: Path, samples: int, threads: int) -> None:
        del threads
        quantize_static(
            str(path),
            str(path.with_name("onnxruntime.onnx")),
            Reader(samples),
            quant_format=QuantFormat.QDQ,
            per_channel=True,
            activation_type=QuantType.QInt8,
            weight_type=QuantType.QInt8,
            calibrate_method=kinds[method],
        )

    keep_to_free_memory()
    return run


JOBS: dict[str, Callable[[], Job]] = {
    "plain inference": plain,
    "onnxfq": by_onnxfq,
    REMEDIES: partial(by_onnxfq, True),
    **{f"onnxruntime {method}": partial(by_onnxruntime, method) for method in PEERS},
}


def run_child(name: str, path: Path, samples: int, threads: int, script: str = __file__) -> dict:
    """Run one job of a script in a separate process; return its costs, or {"error": text}."""
    arguments = [sys.executable, script, "--child", name, str(path), str(samples), str(threads)]
    done = subprocess.run(arguments, capture_output=True, text=True, check=False)
    if done.returncode:
        last = (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1]
        return {"error": last[:80]}
    return json.loads(done.stdout.splitlines()[-1])


def run_tool(python: str, tool: str, path: Path, samples: int, threads: int) -> dict:
    """Run `quantize` of `peers/by_TOOL.py` with the python of its environment; return its costs."""
    from peers.job import job_folder, run

    with job_folder(onnx.load(path), list(feeds(1, samples))) as work:
        return run(python, tool, "quantize", work, threads=threads)


def child(jobs: Mapping[str, Callable[[], Job]], name: str, *place: str) -> None:
    """Run one of `jobs` on model, samples and threads, and print its costs as JSON."""
    job, path, (samples, threads) = jobs[name](), Path(place[0]), map(int, place[1:])
    start, processor = time.perf_counter(), time.process_time()
    job(path, samples, threads)
    costs = {"seconds": time.perf_counter() - start, "processor": time.process_time() - processor}
    print(json.dumps(costs | {"peak": peak_bytes()}))


def measure(
    path: Path,
    samples: int,
    jobs: list[str],
    threads: int,
    rounds: int,
    tools: Mapping[str, str] | None = None,
) -> list[list[str]]:
    """Return the table's rows of one model and number of samples; `tools` are the pythons of `TOOLS`."""
    runs = {name: partial(run_child, name, path, samples, threads) for name in jobs}
    for name, python in (tools or {}).items():
        runs[name] = partial(run_tool, python, TOOLS[name], path, samples, threads)
    found: dict[str, list[dict]] = {name: [] for name in runs}
    for _ in range(rounds):
        for name, results in found.items():
            if not results or "error" not in results[-1]:
                results.append(runs[name]())
    rows = []
    base = found["plain inference"]
    for name, results in found.items():
        label = [path.stem, str(samples), name]
        if "error" in results[-1]:
            rows.append([*label, results[-1]["error"], "", "", "", ""])
            continue
        costs = []
        for what in ("seconds", "processor"):
            ratio = statistics.median(a[what] / b[what] for a, b in zip(results, base, strict=True))
            costs += [f"{statistics.median(one[what] for one in results):.2f}", f"{ratio:.2f}"]
        rows.append([*label, *costs, f"{statistics.median(one['peak'] for one in results) / 1e6:.0f}"])
    return rows


def compare_jobs(
    jobs: Mapping[str, Callable[[], Job]],
    measure: Callable[[Path, int, int, int], list[list[str]]],
    header: list[str],
    *,
    title: str,
    rounds: int,
    note: str = "",
) -> None:
    """Run the command line of a script with jobs, one of which a child process runs; print one table.

    Args:
        jobs: by name.
        measure: from the path of a network, samples, threads and rounds to rows of the table.
        header: of the table.
        title: of the page, without the threads.
        rounds: unless given.
        note: more about what is measured.
    """
    if sys.argv[1:2] == ["--child"]:
        child(jobs, *sys.argv[2:])
        return
    parser = argparse.ArgumentParser(description=title)
    parser.add_argument("--networks", nargs="+", choices=sorted(NETWORKS), default=["resnet50"])
    parser.add_argument("--samples", type=int, default=64)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=rounds)
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
        f"1, rounds: {arguments.rounds}, in which the jobs take turns, each in its own process; medians, and "
        f"medians of the rounds' ratios.{note and ' '}{note}\n\n"
    )
    report(f"{title}, threads: {arguments.threads}", head + markdown_table(header, rows), arguments.out)


def main() -> None:
    """Measure and print one table."""
    if sys.argv[1:2] == ["--child"]:
        child(JOBS, *sys.argv[2:])
        return
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--networks", nargs="+", choices=sorted(NETWORKS), default=DEFAULT_NETWORKS)
    parser.add_argument("--samples", nargs="+", type=int, default=[64])
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--peers", nargs="*", choices=PEERS, default=["minmax"], help="of onnxruntime")
    parser.add_argument("--remedies", action="store_true", help="also run a plain call, with remedies")
    for tool in TOOLS:
        parser.add_argument(f"--{tool.lower()}", metavar="PYTHON", help=f"python of {tool}'s environment")
    parser.add_argument("--out", help="write the result to this Markdown file")
    arguments = parser.parse_args()
    jobs = ["plain inference", "onnxfq", *[REMEDIES] * arguments.remedies]
    jobs += [f"onnxruntime {method}" for method in arguments.peers]
    given = {tool: getattr(arguments, tool.lower()) for tool in TOOLS}
    tools = {tool: python for tool, python in given.items() if python}
    rows: list[list[str]] = []
    with tempfile.TemporaryDirectory() as folder:
        for network in arguments.networks:
            path = Path(folder) / f"{network}.onnx"
            onnx.save(NETWORKS[network](1), path)
            for samples in arguments.samples:
                rows += measure(path, samples, jobs, arguments.threads, arguments.rounds, tools)
    from onnxfq.runtime.ort import onnxruntime

    head = (
        f"{machine()}; onnxruntime {onnxruntime.__version__}, onnx {onnx.__version__}, numpy "
        f"{np.__version__}. From a file to a file, batch 1, imports not counted; {arguments.rounds} rounds "
        "in which the candidates take turns, each in its own process; medians, and medians of the rounds' "
        "ratios.\n\n"
    )
    header = ["network", "samples", "what", "s", "times plain", "processor s", "times plain", "peak MB"]
    title = f"The whole of quantize, {arguments.threads} threads"
    report(title, head + markdown_table(header, rows), arguments.out)


if __name__ == "__main__":
    main()
