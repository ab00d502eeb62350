"""Types and ranks that ONNX cannot infer, as those behind custom operators: ONNX Runtime knows them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import onnx
from onnx import TensorProto, helper

from onnxfq.data import Feed
from onnxfq.errors import OnnxfqError
from onnxfq.graph.index import GraphIndex
from onnxfq.graph.model import Model
from onnxfq.graph.normalize.shapes import with_shapes
from onnxfq.graph.ops import WEIGHTED_INPUTS
from onnxfq.graph.signature import with_outputs
from onnxfq.numerics.float_types import FLOATS
from onnxfq.runtime.session import Session

_TYPES = {info.onnx_name: info.onnx_type for info in FLOATS.values()} | {"tensor(double)": TensorProto.DOUBLE}


def with_found_types(model: Model) -> tuple[Model, str]:
    """Return (`model` with types of what weighted operators read that only ONNX Runtime can tell, why not).

    A session is made and nothing is run. Where it cannot be made, the model is returned as it is, with the
    reason: what has no known type stays in float, and the plan says so.
    """
    index = GraphIndex(model.proto.graph)
    asked = _read_by_weighted(index, index.values)
    if not asked:
        return model, ""
    try:
        found = Session(with_outputs(model.proto, asked), 1).output_types
    except OnnxfqError as error:
        return model, str(error)
    return _with_values(model, {n: (_TYPES[found[n]], None) for n in asked if found.get(n) in _TYPES}), ""


def lacks_ranks(model: Model) -> tuple[str, ...]:
    """Return what operators to quantize read, in the main graph, without a rank that ONNX can find."""
    index = GraphIndex(model.proto.graph)
    return tuple(_read_by_weighted(index, [name for name in index.values if index.shape(name) is not None]))


def with_run_ranks(model: Model, feed: Feed) -> Model:
    """Return `model`, for a plan, with the ranks that the tensors of `lacks_ranks` have in a run on `feed`.

    Sizes stay open: the next feed may have others. Raises DataError when the model cannot run on it.
    """
    asked = lacks_ranks(model)
    session = Session(with_outputs(model.proto, asked), 1)
    found = zip(asked, session.run(feed, asked), strict=True)
    kinds = {name: _TYPES.get(session.output_types[name]) for name in asked}
    return _with_values(
        model, {name: (kind, [None] * array.ndim) for name, array in found if (kind := kinds[name])}
    )


def _read_by_weighted(index: GraphIndex, known: Iterable[str]) -> list[str]:
    """Return what weighted operators and sums read and is neither `known` nor a constant."""
    readers = [node for node in index.nodes if node.op_type in WEIGHTED_INPUTS or node.op_type == "Add"]
    left_out = {*known, *index.constants}
    return list(dict.fromkeys(n for node in readers for n in node.input[:2] if n not in left_out))


def _with_values(model: Model, values: dict[str, tuple[int, list[None] | None]]) -> Model:
    typed = onnx.ModelProto()
    typed.CopyFrom(model.proto)
    for value in [v for v in typed.graph.value_info if v.name in values]:
        typed.graph.value_info.remove(value)
    for name, (kind, shape) in values.items():
        typed.graph.value_info.append(helper.make_tensor_value_info(name, kind, shape))
    return replace(model, proto=with_shapes(typed))
