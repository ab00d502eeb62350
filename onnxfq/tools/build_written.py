"""`build_written`: what the target's own builder makes of a model that was just written, and a run of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import onnx

from onnxfq.data import Feed
from onnxfq.errors import OnnxfqError, RecipeError
from onnxfq.graph.signature import output_names
from onnxfq.numerics.metrics import ErrorSums
from onnxfq.runtime.devices import gpus_of_driver
from onnxfq.runtime.session import Session
from onnxfq.runtime.unsupported_ops import explain_unsupported
from onnxfq.support.records import Record
from onnxfq.targets.findings import CheckResult
from onnxfq.targets.target import BuildOptions, Target, target_by_name
from onnxfq.tools.check import check


class BuildRecord(Record):
    """Result of building a model for its target.

    Attributes:
        check: the findings of its rules and its builder, beside half where the builder compares.
        run: how the engine ran on a sample, or why it did not.
    """

    check: CheckResult
    run: str

    def lines(self) -> list[str]:
        """Return the findings, the coverage and the run."""
        return [*self.check.table().splitlines(), f"run        {self.run}"]


def build_written(
    proto: onnx.ModelProto, target: str, samples: Sequence[Feed], build: BuildOptions, threads: int = 0
) -> BuildRecord:
    """Build `proto` with the builder of `target`, and run the engine on the first sample where it can be run.

    Args:
        proto: the quantized model.
        target: name of its target.
        samples: of the data; without any nothing runs.
        build: shapes and time limit.
        threads: of ONNX Runtime, whose results are compared with.

    Raises RecipeError for a target without rules, and RuntimeLibraryError and DataError as `check` does.
    """
    record = target_by_name(target)
    if record.check is None:
        raise RecipeError(f"target {target!r} has no builder; leave out --build")
    compared = replace(build, against="half" if record.compares else "")
    checked = check(proto, target, build=compared, gpus=build.gpus)
    return BuildRecord(check=checked, run=_run(proto, record, samples, threads))


def _run(proto: onnx.ModelProto, target: Target, samples: Sequence[Feed], threads: int) -> str:
    """Return how an engine of the target runs on a sample, or why none does."""
    if target.run is None:
        return f"not run: no engine of target {target.name} runs here but by `check --build`"
    if not samples:
        return "not run: there is no sample; give --data"
    if target.capabilities and not gpus_of_driver():
        return "not run: this machine has no GPU; `onnxfq handoff` writes what one that has it needs"
    missing = explain_unsupported(proto)
    if missing:
        return f"not run: there is nothing to compare with: {missing}"
    names = output_names(proto)
    try:
        (results,) = target.run(proto, samples[:1], names, threads)
        expected = Session(proto, threads, exact=True).run(samples[0])
    except OnnxfqError as error:  # the file is written; only its run failed
        return f"not run: {error}"
    cosines = [
        ErrorSums.from_arrays(array, results[name]).cosine
        for name, array in zip(names, expected, strict=True)
        if array.dtype.kind == "f"
    ]
    where = "on the GPU" if target.capabilities else "here"
    return f"{where}: cosine with ONNX Runtime at least {min(cosines, default=1.0):.4f} on one sample"
