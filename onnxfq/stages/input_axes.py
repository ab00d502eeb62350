"""Axes of the inputs of a model, measured by runs: axis 0 may count samples, and others may hold padding.

Samples do not know of each other: rows together give what each of them gives alone. The steps of a sequence,
the nodes of a graph and the points of a cloud do not, and a model that sees one at a time is another one.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray

from onnxfq.data import Feed
from onnxfq.data.padding import CutSample
from onnxfq.errors import DataError, ModelError, RuntimeLibraryError
from onnxfq.graph.external.sizes import limit_in_memory, weight_bytes
from onnxfq.graph.index import GraphIndex
from onnxfq.graph.model import list_nodes
from onnxfq.graph.ops import QDQ_OPS, QUANTIZED_OPS
from onnxfq.graph.signature import output_names, sized_by_values, with_outputs
from onnxfq.numerics.metrics import ErrorSums
from onnxfq.runtime.float32_emulation import HALVES, holds_types
from onnxfq.runtime.random_numbers import needs_seed
from onnxfq.runtime.segmented_session import SegmentedSession, open_in_segments
from onnxfq.runtime.session import Session

SAME_DB = 40.0
"""SQNR from which rows count as unmixed: kernels of other batches round at 120 dB, a long recurrence makes
60 dB of it, and what changes an output by less than 1% changes no choice of ranges."""

SAME_DB_OF_STEPS = 20.0
"""The same with quantizers or 16-bit floats, where a rounding moves a value by a whole step, and where scales
that are found at run time depend on the batch."""


def find_mixing(proto: onnx.ModelProto, together: Feed, apart: Sequence[Feed], given: Feed) -> str:
    """Return why rows of axis 0 of the inputs of `proto` do not count as samples, for a note.

    Nothing is returned if rows are samples, and if runs cannot tell: of a model that draws random numbers or
    is in training mode, that cannot run, or whose outputs have no rows. Outputs without axes, such as a loss,
    say nothing about samples.

    Args:
        proto: the model.
        together: different rows of one feed, or of several ones.
        apart: the first and the last of these rows.
        given: a feed as the data has it; if a row cannot run and this can, a row is only a part of a sample.
    """
    verdicts = _compare_rows(proto, together, apart, given, _least_db(proto))
    if verdicts is None:
        return ""
    if verdicts:
        return next(filter(None, verdicts), "")
    names = sorted({dim for dim in map(_first_axis, proto.graph.input) if dim})
    return f"the model names it {', '.join(names)}" if len(names) > 1 else ""


def take_together(proto: onnx.ModelProto, together: Feed, apart: Sequence[Feed]) -> bool:
    """Tell whether runs prove that rows of axis 0 are samples; runs that fail prove nothing.

    Args:
        proto: the model.
        together: two rows.
        apart: each of them.
    """
    verdicts = _compare_rows(proto, together, apart, together, SAME_DB)
    return bool(verdicts) and not any(verdicts or ())


def proves_padding(proto: onnx.ModelProto, samples: Sequence[CutSample], is_pooled: bool) -> bool:
    """Tell whether `proto` gives all outputs alike without the padding of `samples`.

    Runs that fail prove nothing. A model that draws random numbers has no two runs to compare.

    Args:
        proto: the model.
        samples: padded, and without padding.
        is_pooled: whether no output may have the positions of the padding.
    """
    try:
        session, fetches = _open_judged(proto)
        if session is None:
            return False
        runs = [(one, session.run(one.padded, fetches), session.run(one.cut, fetches)) for one in samples]
    except (DataError, ModelError, RuntimeLibraryError):
        return False
    least = _least_db(proto)
    return all(
        _is_same(one, whole, cut, is_pooled, least)
        for one, wholes, cuts in runs
        for whole, cut in zip(wholes, cuts, strict=True)
    )


def _is_same(sample: CutSample, whole: Any, cut: Any, is_pooled: bool, least: float) -> bool:
    """Tell whether an output is the same at the positions that a sample keeps."""
    if not all(isinstance(one, np.ndarray) and one.dtype.kind in "fiub" for one in (whole, cut)):
        return False
    if whole.ndim != cut.ndim or (is_pooled and whole.shape != cut.shape):
        return False
    is_filled = sample.is_filled and not is_pooled
    for axis, (size, length) in enumerate(zip(whole.shape, cut.shape, strict=True)):
        if size != length and (size, length) != (sample.size, sample.length):
            return False
        if size != length or (is_filled and size == sample.size):
            kept = (slice(None),) * axis + (sample.kept,)
            whole, cut = whole[kept], cut if size != length else cut[kept]
    return _sqnr(whole, cut) >= least


def _compare_rows(
    proto: onnx.ModelProto, together: Feed, apart: Sequence[Feed], given: Feed, least: float
) -> list[str] | None:
    """Return for each output the evidence against samples, empty if there is none; None if no run works."""
    try:
        session, fetches = _open_judged(proto)
    except (ModelError, RuntimeLibraryError):
        return None
    if session is None:
        return []
    try:
        first, last = (session.run(row, fetches) for row in apart)
    except DataError:
        is_part = _repeats_first_axis(proto) or _can_run(session, given)
        return ["one row cannot run alone"] if is_part else None
    try:
        results = zip(fetches, session.run(together, fetches), first, last, strict=True)
    except DataError:
        return None  # it takes one sample at a time
    rows = len(next(array for array in together.values() if array.ndim))
    verdicts = [_judge(*one, rows, least) for one in results]
    return [verdict for verdict in verdicts if verdict is not None]


def _least_db(proto: onnx.ModelProto) -> float:
    """Return the SQNR in dB from which outputs of two runs of `proto` are the same."""
    steps = any(node.op_type in QDQ_OPS | QUANTIZED_OPS for node in _all_nodes(proto))
    return SAME_DB_OF_STEPS if steps or holds_types(proto, HALVES) else SAME_DB


def _open_judged(proto: onnx.ModelProto) -> tuple[SegmentedSession | Session | None, list[str]]:
    """Return a session of `proto` and the tensors that tell; None where each run is another one.

    Raises ModelError and RuntimeLibraryError for a model that cannot run.
    """
    training = any(attr.name == "training_mode" and attr.i for n in _all_nodes(proto) for attr in n.attribute)
    fetches = [] if training or needs_seed(proto) else _judged_tensors(proto)
    if not fetches:
        return None, []
    packed = weight_bytes(proto) <= limit_in_memory(None)
    opened = partial(Session, packed=packed, pooled=False)
    return open_in_segments(with_outputs(proto, fetches), opened, fetches), fetches


def _all_nodes(proto: onnx.ModelProto) -> list[onnx.NodeProto]:
    return [*list_nodes(proto.graph), *(node for one in proto.functions for node in one.node)]


def _can_run(session: Any, feed: Feed) -> bool:
    try:
        session.run(feed)
    except DataError:
        return False
    return True


def _judge(name: str, together: Any, first: Any, last: Any, rows: int, least: float) -> str | None:
    """Return why an output has no samples, nothing if it has, and None if it does not tell."""
    if not all(isinstance(one, np.ndarray) and one.dtype.kind in "fiub" for one in (together, first, last)):
        return None
    if not together.ndim or not together.size:
        return None
    shape = together.shape
    if shape == first.shape == last.shape:
        if min(_sqnr(together, first), _sqnr(together, last)) >= least:
            return None  # a constant, such as the anchors of a detector
        return f"{name!r} has the shape {list(shape)} for one row and for {rows}"
    if shape[0] == rows and first.ndim != together.ndim and first.size == last.size == together[0].size:
        first, last = first.reshape(1, *shape[1:]), last.reshape(1, *shape[1:])  # Squeeze took its axis
    if first.shape == last.shape:
        for axis, size in enumerate(first.shape):
            if shape == (*first.shape[:axis], rows * size, *first.shape[axis + 1 :]):
                ends = [together.take(range(start, start + size), axis) for start in (0, (rows - 1) * size)]
                found = _sqnr(np.concatenate([first, last]), np.concatenate(ends))
                mixed = f"{rows} rows give {name!r} other values than each of them alone ({found:.1f} dB)"
                return "" if found >= least else mixed
    if first.ndim == last.ndim == together.ndim:
        if shape[0] in (rows * first.shape[0], first.shape[0] + last.shape[0]):
            return None  # values decide about its other sizes
    return f"{name!r} has the shape {list(first.shape)} for one row and {list(shape)} for {rows}"


def _sqnr(want: NDArray[Any], have: NDArray[Any]) -> float:
    """Return the SQNR in dB; NaN and infinities at the same places are equal."""
    want, have = want.astype(np.float64), have.astype(np.float64)
    same = ~np.isfinite(want) & ((want == have) | (np.isnan(want) & np.isnan(have)))
    return ErrorSums.from_arrays(np.where(same, 0.0, want), np.where(same, 0.0, have)).sqnr_db


def _judged_tensors(proto: onnx.ModelProto) -> list[str]:
    """Return the outputs whose sizes do not depend on values, and what a selection of boxes reads.

    Results of the others have no rows of the samples.
    """
    sized = sized_by_values(proto.graph)
    boxes = [
        name for node in proto.graph.node if node.op_type == "NonMaxSuppression" for name in node.input[:2]
    ]
    selected = [name for name in boxes if name not in sized]
    made = GraphIndex(proto.graph).makers
    outputs = [name for name in output_names(proto) if name not in sized]
    return [name for name in dict.fromkeys((*outputs, *selected)) if name in made]


def _repeats_first_axis(proto: onnx.ModelProto) -> bool:
    """Tell whether another axis of the inputs has the name of an axis 0, as in pairs of nodes."""
    shapes = [[dim.dim_param for dim in one.type.tensor_type.shape.dim] for one in proto.graph.input]
    return not {*map(_first_axis, proto.graph.input)}.isdisjoint(
        name for names in shapes for name in filter(None, names[1:])
    )


def _first_axis(value: onnx.ValueInfoProto) -> str:
    dims = value.type.tensor_type.shape.dim
    return dims[0].dim_param if dims else ""
