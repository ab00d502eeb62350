"""`compare`: first tensor with more than rounding differences between two runtimes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import islice
from pathlib import Path
from typing import Literal

import onnx

from onnxfq.choices import COMPARED_FEEDS as FEEDS
from onnxfq.choices import TOLERANCE_DB as TOLERANCE_DB
from onnxfq.data import Data
from onnxfq.documents.scores import EqualShare
from onnxfq.errors import DataError, ModelError
from onnxfq.graph.index import GraphIndex
from onnxfq.graph.io.load import read_model
from onnxfq.graph.model import list_nodes
from onnxfq.graph.ops import ONNX_QUANTIZERS
from onnxfq.graph.signature import boundaries
from onnxfq.metrics.outputs import EqualCounts, FlatOutput
from onnxfq.numerics.metrics import ErrorSums
from onnxfq.quantized.input_ranges import InputRanges, constant_grids
from onnxfq.stages.options import RunOptions, open_feeds, shows_progress
from onnxfq.support.progress import announce
from onnxfq.support.records import PrintedRecord, Record
from onnxfq.support.tables import table_lines
from onnxfq.tools.runtimes import runner

_SHOWN = 10


class TensorDifference(Record):
    """Difference of one tensor between both runtimes; sqnr_db and cosine as in `OutputScore`.

    Attributes:
        node: the node that computes the tensor.
        op_type: the operator of that node.
        steps: the largest error in steps of the scale that quantizes it; None if it is not quantized.
    """

    tensor: str
    node: str
    op_type: str
    sqnr_db: float
    cosine: float
    largest_error: float
    steps: float | None = None


class Comparison(PrintedRecord):
    """All compared tensors in the order of computation.

    Attributes:
        missing: the tensors that `candidate` lacks.
        shares: outputs of integers, texts and booleans: the share of equal elements.
        notes: inputs whose calibrated range and data disagree.
    """

    format: Literal["onnxfq.comparison/1"] = "onnxfq.comparison/1"
    reference: str
    candidate: str
    feeds: int
    tolerance_db: float
    tensors: tuple[TensorDifference, ...]
    missing: tuple[str, ...] = ()
    shares: tuple[EqualShare, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def first(self) -> TensorDifference | None:
        """The first tensor that differs; None if all agree."""
        return next((one for one in self.tensors if not one.sqnr_db >= self.tolerance_db), None)

    def table(self) -> str:
        """Return the result as plain text: the first tensor that differs, and its neighbours."""
        first = self.first
        count = f"{len(self.tensors)} tensors, {self.feeds} feed(s)"
        if first is None:
            worst = min((one.sqnr_db for one in self.tensors), default=math.inf)
            lines = [f"{self.reference} and {self.candidate} agree on {count}: SQNR {worst:.1f} dB and more"]
            at = min(range(len(self.tensors)), key=lambda i: self.tensors[i].sqnr_db, default=0)
        else:
            steps = "" if first.steps is None else f", {first.steps:.3g} step(s) at most"
            lines = [
                f"{self.reference} and {self.candidate} part at {first.tensor!r} of {first.op_type} "
                f"{first.node!r}: SQNR {first.sqnr_db:.1f} dB, below {self.tolerance_db:g}{steps} ({count})"
            ]
            at = self.tensors.index(first)
        start = max(0, at - 2)
        rows = [("tensor", "operator", "SQNR dB", "cosine", "max error", "steps")]
        for one in self.tensors[start : start + _SHOWN]:
            steps = "" if one.steps is None else f"{one.steps:.3g}"
            values = (f"{one.sqnr_db:.1f}", f"{one.cosine:.6f}", f"{one.largest_error:.4g}", steps)
            rows.append((one.tensor, one.op_type, *values))
        lines += table_lines(rows, names=(0,))
        lines += [f"output {one.output!r}: {one}" for one in self.shares]
        hidden = len(self.tensors) - (len(rows) - 1)
        lines += [f"{hidden} more; all are in --json"] if hidden else []
        if self.missing:
            lines.append(f"{self.candidate} has no {', '.join(self.missing)}")
        lines += [f"note       {note}" for note in self.notes]
        return "\n".join(lines)


@shows_progress
def compare(
    model: str | Path | onnx.ModelProto,
    data: Data,
    *,
    reference: str = "onnxruntime",
    candidate: str = "integer",
    tolerance_db: float = TOLERANCE_DB,
    feeds: int = FEEDS,
    options: RunOptions | None = None,
) -> Comparison:
    """Run the Q/DQ `model` in two runtimes on the first feeds of `data` and compare tensor by tensor.

    The tensors that quantizers read and the outputs are compared.

    Args:
        model: a path or a ModelProto.
        data: as `quantize` takes it.
        reference: a name of `runners()`, or a .json file saved by Polygraphy.
        candidate: likewise.
        tolerance_db: SQNR in dB below which a tensor differs.
        feeds: how many feeds of `data` are run.
        options: batch, threads and how data is read.

    Raises ModelError for a model without quantizers, DataError and RuntimeLibraryError if a runtime cannot
    run.
    """
    options = options or RunOptions()
    proto, _, source = read_model(model)
    if not any(node.op_type in ONNX_QUANTIZERS for node in list_nodes(proto.graph)):
        raise ModelError(f"{source} has no QuantizeLinear; give a Q/DQ model")
    runners = [runner(name) for name in (reference, candidate)]
    ranges = InputRanges()
    given = list(
        ranges.watch(islice(open_feeds(proto, data, options.batch, options.data.unsurveyed.padded), feeds))
    )
    if not given:
        raise DataError("there is no feed to compare on; give data")
    tensors = boundaries(proto)
    if not tensors:
        raise ModelError("no node computes an output or an input of a quantizer; nothing to compare")
    sums: dict[str, ErrorSums] = {}
    counts: dict[str, EqualCounts] = {}
    missing: set[str] = set()
    results = [one(proto, given, tensors, options.threads) for one in runners]
    for number, (left, right) in enumerate(zip(*results, strict=True)):
        lacking = {name for name in tensors if name not in left or name not in right}
        missing |= lacking
        for name in tensors:
            if name in lacking:
                continue
            one, other = FlatOutput.of(left[name]), FlatOutput.of(right[name])
            if one.is_discrete:
                counts[name] = counts.get(name, EqualCounts()) + one.count_equal(other)
            else:
                sums[name] = sums.get(name, ErrorSums()) + _sum_errors(
                    name, one, other, (reference, candidate)
                )
        announce("compare", number + 1, len(given))
    index = GraphIndex(proto.graph)
    makers, grids = index.makers, constant_grids(index)
    found = [
        TensorDifference(
            tensor=name,
            node=makers[name].name,
            op_type=makers[name].op_type,
            sqnr_db=one.sqnr_db,
            cosine=one.cosine,
            largest_error=one.largest,
            steps=one.largest / grids[name].scale if name in grids else None,
        )
        for name, one in sums.items()
    ]
    return Comparison(
        reference=reference,
        candidate=candidate,
        feeds=len(given),
        tolerance_db=tolerance_db,
        tensors=tuple(found),
        missing=tuple(name for name in tensors if name in missing),
        shares=tuple(EqualShare.of(name, count) for name, count in counts.items()),
        notes=tuple(ranges.explain(proto)),
    )


def _sum_errors(name: str, left: FlatOutput, right: FlatOutput, names: Sequence[str]) -> ErrorSums:
    if left.form != right.form:
        raise DataError(
            f"{name!r} has shape {left} in {names[0]} and {right} in {names[1]}; give both the same data"
        )
    return ErrorSums.from_arrays(left.array, right.array)
