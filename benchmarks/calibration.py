"""Cost of a whole calibration: time relative to plain inference of the same samples, and peak memory.

    python benchmarks/calibration.py [--samples N] [--threads N] [--networks NAME ...] [--peers] [--out FILE]

Plain inference is one fully optimised onnxruntime session; calibration is one pass over the same samples with
the same threads and then the ranges of four methods, minmax, percentile, entropy and mse. Both include making
their sessions, and take turns in one process. With --peers, onnxruntime's own calibrators on the same data,
each in a process of its own that may not take more memory than there is. Peak memory is
measured in a process that does nothing else.

Marks: 1.25 times plain inference for ResNet-50 and ViT-B/16, 2 times for MobileNetV2; 256 MB above a process
that only infers.
"""

from __future__ import annotations

import argparse
import json
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import onnx
from shapes import NETWORKS
from timing import machine, markdown_table, peak_bytes, report

METHODS = ("minmax", "percentile", "entropy", "mse")
DEFAULT_NETWORKS = ["resnet50", "mobilenetv2", "vit_b16"]
PEERS = ("minmax", "entropy", "percentile")


def feeds(batch: int, samples: int) -> Iterator[dict[str, np.ndarray]]:
    """Yield random images, the same for every candidate, made on demand."""
    rng = np.random.default_rng(1)
    images = rng.standard_normal((8, batch, 3, 224, 224)).astype(np.float32)
    for run in range(samples // batch):
        yield {"x": images[run % 8] * np.float32(1 + run / 1000)}


def infer(path: Path, batch: int, samples: int, threads: int) -> None:
    """Run all samples through a session made as users make it."""
    from onnxfq.runtime.ort import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    for feed in feeds(batch, samples):
        session.run(None, feed)


def calibrate(path: Path, batch: int, samples: int, threads: int) -> None:
    """Observe all samples once, and compute the ranges of all methods from the statistics."""
    import onnxfq
    from onnxfq.stages.calibrate import encode_weights

    model = onnxfq.load(path)
    plan = onnxfq.make_plan(model, onnxfq.load_recipe("tensorrt-int8"))
    options = onnxfq.ObserveOptions(threads=threads)
    found = onnxfq.collect_statistics(model, plan, feeds(batch, samples), options)
    weights = encode_weights(model, plan)
    for method in METHODS:
        onnxfq.calibrate(model, plan, found, method, weights)


def calibrate_with_onnxruntime(method: str) -> Callable[[Path, int, int, int], None]:
    """Do the same with onnxruntime's calibrator of one method."""

    def run(path: Path, batch: int, samples: int, threads: int) -> None:
        from onnxruntime.quantization.calibrate import CalibrationMethod, create_calibrator

        source = feeds(batch, samples)

        class Reader:
            def get_next(self) -> dict[str, np.ndarray] | None:
                return next(source, None)

            def __iter__(self) -> Iterator[dict[str, np.ndarray]]:
                return source

        kind = {
            "minmax": CalibrationMethod.MinMax,
            "entropy": CalibrationMethod.Entropy,
            "percentile": CalibrationMethod.Percentile,
        }[method]
        with tempfile.TemporaryDirectory() as folder:
            calibrator = create_calibrator(
                str(path),
                ["Conv", "Gemm", "MatMul"],
                augmented_model_path=f"{folder}/augmented.onnx",
                calibrate_method=kind,
            )
            calibrator.collect_data(Reader())
            calibrator.compute_data()

    return run


CHILDREN: dict[str, Callable[[Path, int, int, int], None]] = {
    "plain": infer,
    "onnxfq": calibrate,
    **{f"onnxruntime {method}": calibrate_with_onnxruntime(method) for method in PEERS},
}


def keep_to_free_memory() -> None:
    """Limit this process to free memory, so that it fails and no other is killed.

    onnxruntime's calibrators hold the activations of all samples: 62 MB each of ResNet-50, 230 of ViT-B/16.
    """
    available = int(Path("/proc/meminfo").read_text().split("MemAvailable:")[1].split()[0]) * 1024
    resource.setrlimit(resource.RLIMIT_DATA, (available, available))


def child(what: str, path: Path, batch: int, samples: int, threads: int, rounds: int) -> None:
    """Print seconds and peak memory of one candidate; "paired" lets plain and onnxfq take turns."""
    names = ("plain", "onnxfq") if what == "paired" else (what,)
    if what.startswith("onnxruntime"):
        keep_to_free_memory()
    seconds: dict[str, list[float]] = {name: [] for name in names}
    for _ in range(rounds):
        for name in names:
            start = time.perf_counter()
            CHILDREN[name](path, batch, samples, threads)
            seconds[name].append(time.perf_counter() - start)
    print(json.dumps({"seconds": seconds, "peak": peak_bytes()}))


def run_child(what: str, path: Path, batch: int, samples: int, threads: int, rounds: int = 1) -> dict:
    """Run this script again as the process of one candidate; return {"error": text} for a failure."""
    arguments = [what, str(path), str(batch), str(samples), str(threads), str(rounds)]
    done = subprocess.run(
        [sys.executable, __file__, "--child", *arguments], capture_output=True, text=True, check=False
    )
    if done.returncode:
        last = (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1]
        return {"error": last[:80]}
    return json.loads(done.stdout.splitlines()[-1])


def measure(network: str, batch: int, arguments: argparse.Namespace, folder: Path) -> list[list[str]]:
    """Return the table's rows of one network."""
    path = folder / f"{network}.onnx"
    onnx.save(NETWORKS[network](batch), path)
    samples, threads = arguments.samples, arguments.threads
    paired = run_child("paired", path, batch, samples, threads, arguments.rounds)["seconds"]
    pairs = list(zip(paired["onnxfq"], paired["plain"], strict=True))
    plain = statistics.median(paired["plain"])
    memory = {what: run_child(what, path, batch, samples, threads)["peak"] for what in ("plain", "onnxfq")}
    label = [network, str(batch)]
    rows = [
        [*label, "plain inference", f"{plain:.2f}", "1.00", f"{memory['plain'] / 1e6:.0f}"],
        [
            *label,
            "onnxfq, all methods",
            f"{statistics.median(paired['onnxfq']):.2f}",
            f"{statistics.median(a / b for a, b in pairs):.2f}",
            f"{memory['onnxfq'] / 1e6:.0f}",
        ],
    ]
    for method in PEERS if arguments.peers else ():
        result = run_child(f"onnxruntime {method}", path, batch, samples, threads)
        if "error" in result:
            rows.append([*label, f"onnxruntime {method}", result["error"], "", ""])
            continue
        seconds = result["seconds"][f"onnxruntime {method}"][0]
        figures = [f"{seconds:.2f}", f"{seconds / plain:.2f}", f"{result['peak'] / 1e6:.0f}"]
        rows.append([*label, f"onnxruntime {method}", *figures])
    return rows


def main() -> None:
    """Measure and print one table."""
    if sys.argv[1:2] == ["--child"]:
        what, path, *numbers = sys.argv[2:]
        child(what, Path(path), *(int(n) for n in numbers))
        return
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--networks", nargs="+", choices=sorted(NETWORKS), default=["resnet50", "mobilenetv2", "vit_b16"]
    )
    parser.add_argument("--batches", nargs="+", type=int, default=[1, 8])
    parser.add_argument("--samples", type=int, default=64)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--peers", action="store_true", help="onnxruntime's calibrators as well")
    parser.add_argument("--out", help="write the result to this Markdown file")
    arguments = parser.parse_args()
    rows: list[list[str]] = []
    with tempfile.TemporaryDirectory() as folder:
        for network in arguments.networks:
            for batch in arguments.batches:
                rows += measure(network, batch, arguments, Path(folder))
    peers = " with onnxruntime" if arguments.peers else ""
    names = " and ".join(arguments.networks)
    title = f"Calibration of {names}{peers}, {arguments.samples} samples, {arguments.threads} threads"
    head = (
        f"{machine()}; onnx {onnx.__version__}, numpy {np.__version__}. Whole runs, sessions included; "
        f"{arguments.rounds} rounds in which plain inference and onnxfq take turns, medians. onnxruntime's "
        "calibrators once, one method each, with its default threads.\n\n"
    )
    header = ["network", "batch", "what", "seconds", "times plain", "peak MB"]
    report(title, head + markdown_table(header, rows), arguments.out)


if __name__ == "__main__":
    main()
