"""Growth of the cost of `quantize` with samples, nodes and bytes, each fitted as a power.

    python benchmarks/scale.py [--samples N ...] [--nodes N ...] [--megabytes N ...] [--out FILE]

Samples: MobileNetV2 at batch 1. Nodes: residual blocks of MatMul, Add, Add, Tanh in a row, of width 32, with
4 samples. Bytes: four MatMuls in a row with their weights in a data file, with 2 samples. Every run is a
process of its own with the default recipe; imports are not counted. The exponent is the slope of log(cost)
over log(size) between two sizes: 1 is linear, below 1 a fixed cost counts. Processor seconds sum up all
threads.
"""

from __future__ import annotations

import argparse
import json
import math
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper
from shapes import NETWORKS, write_matmul_chain
from timing import machine, markdown_table, peak_bytes, report

WIDTH, PER_BLOCK = 32, 4


def make_network(folder: Path, samples: int) -> Path:
    """Write MobileNetV2, which the number of samples does not change."""
    del samples
    path = folder / "mobilenetv2.onnx"
    onnx.save(NETWORKS["mobilenetv2"](1), path)
    return path


def make_chain(folder: Path, nodes: int) -> Path:
    """Write residual blocks with `nodes` nodes in all."""
    rng = np.random.default_rng(0)
    made, tensors = [], []
    for block in range(nodes // PER_BLOCK):
        x, m, a, r, y = (f"{name}{block}" for name in ("x", "m", "a", "r", "y"))
        x = x if block == 0 else f"y{block - 1}"
        weight = rng.standard_normal((WIDTH, WIDTH), np.float32) / np.float32(WIDTH**0.5)
        tensors += [numpy_helper.from_array(weight, f"w{block}")]
        tensors += [numpy_helper.from_array(np.zeros(WIDTH, np.float32), f"b{block}")]
        made += [
            helper.make_node("MatMul", [x, f"w{block}"], [m]),
            helper.make_node("Add", [m, f"b{block}"], [a]),
            helper.make_node("Add", [x, a], [r]),
            helper.make_node("Tanh", [r], [y]),
        ]
    places = ("x0", made[-1].output[0])
    ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, ["N", WIDTH]) for name in places]
    graph = helper.make_graph(made, "g", ends[:1], ends[1:], tensors)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.save(model, folder / "chain.onnx")
    return folder / "chain.onnx"


def make_weights(folder: Path, megabytes: int) -> Path:
    """Write MatMuls with `megabytes` of weights in a data file."""
    return write_matmul_chain(folder, megabytes / 1000)[0]


MAKERS: dict[str, tuple[Callable[[Path, int], Path], str]] = {
    "samples": (make_network, "samples"),
    "nodes": (make_chain, "nodes"),
    "megabytes": (make_weights, "MB of weights"),
}
"""By kind of size: who makes the model, and the head of the column."""


def child(kind: str, size: int, folder: str) -> None:
    """Quantize one model and print its costs as JSON."""
    from calibration import feeds

    import onnxfq

    path = MAKERS[kind][0](Path(folder), size)
    if kind == "samples":
        data = partial(feeds, 1, size)
    else:
        start = onnx.load(path, load_external_data=False).graph.input[0]
        width = start.type.tensor_type.shape.dim[1].dim_value
        rng = np.random.default_rng(1)
        count = 4 if kind == "nodes" else 2
        data = [{start.name: rng.standard_normal((1, width), np.float32)} for _ in range(count)]
    seconds, processor = time.perf_counter(), time.process_time()
    # A chain of thousands of layers in int8 is noise; remedies would be measured instead.
    options, repair = onnxfq.RunOptions(threads=2), None if kind == "nodes" else 20.0
    result = onnxfq.quantize(
        path,
        data,
        path.with_name("out.onnx"),
        accuracy=onnxfq.AccuracyTarget(repair=repair),
        options=options,
    )
    costs = {"seconds": time.perf_counter() - seconds, "processor": time.process_time() - processor}
    stage = max(result.seconds, key=lambda name: result.seconds[name])
    print(json.dumps(costs | {"peak": peak_bytes(), "stage": stage, "part": result.seconds[stage]}))


def measure(kind: str, sizes: list[int]) -> list[list[str]]:
    """Return the table's rows, one for each size."""
    rows: list[list[str]] = []
    before: tuple[int, float] | None = None
    for size in sizes:
        with tempfile.TemporaryDirectory() as folder:
            arguments = [sys.executable, __file__, "--child", kind, str(size), folder]
            done = subprocess.run(arguments, capture_output=True, text=True, check=False)
        if done.returncode:
            last = (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1]
            rows.append([f"{size:,}", last[:80], "", "", "", ""])
            continue
        found = json.loads(done.stdout.splitlines()[-1])
        slope = ""
        if before is not None:
            slope = f"{math.log(found['processor'] / before[1]) / math.log(size / before[0]):.2f}"
        before = size, found["processor"]
        seconds = f"{found['seconds']:.1f}", f"{found['processor']:.1f}"
        stage = f"{found['stage']} {found['part']:.1f} s"
        rows.append([f"{size:,}", *seconds, slope, stage, f"{found['peak'] / 1e6:.0f}"])
    return rows


def main() -> None:
    """Measure and print three tables."""
    if sys.argv[1:2] == ["--child"]:
        kind, size, folder = sys.argv[2:]
        child(kind, int(size), folder)
        return
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--samples", nargs="*", type=int, default=[64, 256, 1024, 4096])
    parser.add_argument("--nodes", nargs="*", type=int, default=[100, 1000, 10_000, 100_000])
    parser.add_argument("--megabytes", nargs="*", type=int, default=[10, 100, 1000, 2600])
    parser.add_argument("--out", help="write the result to this Markdown file")
    asked = parser.parse_args()
    tables = []
    for kind, (_, head) in MAKERS.items():
        if rows := measure(kind, getattr(asked, kind)):
            columns = [head, "s", "processor s", "exponent", "longest stage", "peak MB"]
            tables.append(markdown_table(columns, rows))
            print(tables[-1], flush=True)
    head = f"{machine()}. Default recipe, one run each.\n\n"
    report("Growth of the cost of quantize, 2 threads", head + "\n\n".join(tables), asked.out)


if __name__ == "__main__":
    main()
