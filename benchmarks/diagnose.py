"""Cost of `diagnose`: processor time relative to an evaluation of the same run, and peak memory.

    python benchmarks/diagnose.py [--networks NAME ...] [--samples N] [--rounds N] [--out FILE]

`quantize` without remedies makes the file that is diagnosed. Each job runs in a separate process, in turns;
imports are not counted. Processor seconds sum up all threads. The last job diagnoses a file in which every
EVERY-th range is FACTOR times as wide, and measures its repairs.

Marks for ResNet-50, 64 samples: a diagnosis without repairs at most 3 times an evaluation; with repairs the
budget of remedies for low outputs, 3 times `quantize` without them.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import onnx
from calibration import feeds
from onnx import numpy_helper
from quantize import Job, by_onnxfq, compare_jobs, run_child

EVERY, FACTOR = 12, 20
"""Ranges that are planted too wide, and by how much."""


def evaluation() -> Job:
    """Return the comparison of the quantized file with the float model."""
    import onnxfq

    def run(path: Path, samples: int, threads: int) -> None:
        options = onnxfq.RunOptions(threads=threads)
        onnxfq.evaluate(path, path.with_name("onnxfq.onnx"), partial(feeds, 1, samples), options=options)

    return run


def diagnosis(*, with_float: bool = False, planted: bool = False) -> Job:
    """Return the diagnosis of the quantized file, with or without the float model, after damage or before."""
    import onnxfq

    def run(path: Path, samples: int, threads: int) -> None:
        made = onnx.load(path.with_name("onnxfq.onnx"))
        if planted:
            widen(made)
        onnxfq.diagnose(
            made,
            reference=path if with_float else None,
            data=partial(feeds, 1, samples),
            output=path.with_name("repaired.onnx"),
            options=onnxfq.RunOptions(threads=threads),
        )

    return run


def widen(proto: onnx.ModelProto) -> None:
    """Make every EVERY-th range of the activations FACTOR times as wide."""
    constants = {tensor.name: tensor for tensor in proto.graph.initializer}
    pairs = [n for n in proto.graph.node if n.op_type == "QuantizeLinear" and n.input[0] not in constants]
    for node in pairs[EVERY // 2 :: EVERY]:
        scale = constants[node.input[1]]
        scale.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(scale) * np.float32(FACTOR), scale.name))


JOBS: dict[str, Callable[[], Job]] = {
    "quantize, no remedies": by_onnxfq,
    "evaluate": evaluation,
    "diagnose": diagnosis,
    "diagnose --float": partial(diagnosis, with_float=True),
    "diagnose --float, repairs": partial(diagnosis, with_float=True, planted=True),
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
        seconds = statistics.median(one["processor"] for one in results)
        times = [
            statistics.median(
                one["processor"] / base["processor"] for one, base in zip(results, found[other], strict=True)
            )
            for other in ("evaluate", "quantize, no remedies")
        ]
        peak = statistics.median(one["peak"] for one in results) / 1e6
        rows.append([path.stem, name, f"{seconds:.2f}", *(f"{one:.2f}" for one in times), f"{peak:.0f}"])
    return rows


def main() -> None:
    """Measure and print one table."""
    header = ["network", "what", "processor s", "times evaluate", "times quantize", "peak MB"]
    note = f"The repairs are of a file in which every {EVERY}th range is {FACTOR} times as wide."
    compare_jobs(JOBS, measure, header, title="Cost of a diagnosis", rounds=1, note=note)


if __name__ == "__main__":
    main()
