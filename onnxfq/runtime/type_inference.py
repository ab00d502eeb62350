"""Type and shape inference by ONNX Runtime, for operators that ONNX cannot infer."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from copy import deepcopy
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

_FLOATS = {info.onnx_name: info.onnx_type for info in FLOATS.values()} | {
    "tensor(double)": TensorProto.DOUBLE
}
_TYPES = {f"tensor({name.lower()})": code for name, code in TensorProto.DataType.items() if code}


def with_found_types(model: Model) -> tuple[Model, str]:
    """Return `model` with types that only ONNX Runtime can infer, and the reason if it cannot.

    The tensors are inputs of weighted operators. A session is created, but not run. If it cannot be created,
    the model is returned unchanged with the reason: tensors of unknown type stay in float, and the plan says
    so.
    """
    index = GraphIndex(model.proto.graph)
    asked = _read_by_weighted(index, index.values)
    proto, why_not = _with_session_types(model.proto, asked, _FLOATS)
    return (model if proto is model.proto else replace(model, proto=proto)), why_not


def with_all_types(proto: onnx.ModelProto) -> onnx.ModelProto:
    """Return `proto` with the types of all tensors that nodes of its main graph compute.

    ONNX Runtime infers those that ONNX cannot, such as the results of com.microsoft operators. A session is
    created, but not run; if it cannot be created, these types stay unknown.
    """
    shaped = with_shapes(proto)
    index = GraphIndex(shaped.graph)
    known = {name for name, value in index.values.items() if value.type.WhichOneof("value")}
    asked = [name for name in index.makers if name not in known]
    return _with_session_types(shaped, asked, _TYPES, exact=True)[0]


def _with_session_types(
    proto: onnx.ModelProto, tensors: list[str], codes: Mapping[str, int], exact: bool = False
) -> tuple[onnx.ModelProto, str]:
    """Return `proto` with the types of `tensors` that a session knows and `codes` has; why there is none."""
    if not tensors:
        return proto, ""
    try:
        types = Session(with_outputs(proto, tensors), 1, exact=exact).output_types
    except OnnxfqError as error:
        return proto, str(error)
    return _with_values(proto, {n: (codes[types[n]], None) for n in tensors if types.get(n) in codes}), ""


def with_session_shapes(model: Model) -> Model:
    """Return `model` with the shapes around products that ONNX Runtime infers where ONNX cannot.

    Sizes that it does not know stay open. A session is created, but not run; if it cannot be created, the
    shapes stay unknown.
    """
    index = GraphIndex(model.proto.graph)
    products = [node for node in index.nodes if node.op_type == "MatMul"]
    around = dict.fromkeys(name for node in products for name in (*node.input, *node.output))
    asked = [name for name in around if name not in index.constants and index.shape(name) is None]
    try:
        session = Session(with_outputs(model.proto, asked), 1) if asked else None
    except OnnxfqError:
        session = None
    if session is None:
        return model
    kinds = {name: _FLOATS.get(session.output_types[name], 0) for name in asked}
    known = {n: (kinds[n], shape) for n in asked if kinds[n] and (shape := session.output_shapes[n])}
    return replace(model, proto=_with_values(model.proto, known)) if known else model


def lacks_ranks(model: Model) -> tuple[str, ...]:
    """Return the tensors of unknown rank in the main graph that operators to quantize read."""
    index = GraphIndex(model.proto.graph)
    return tuple(_read_by_weighted(index, [name for name in index.values if index.shape(name) is not None]))


def with_run_ranks(model: Model, feed: Feed, everywhere: bool = False) -> Model:
    """Return `model`, for a plan, with the ranks that a run on `feed` gives the tensors of `lacks_ranks`.

    Sizes stay open: the next feed may have others. Raises DataError if the model cannot run on `feed`.

    Args:
        model: the normalised model.
        feed: the inputs.
        everywhere: the ranks of all tensors that nodes of the main graph compute.
    """
    asked = lacks_ranks(model)
    if everywhere:
        index = GraphIndex(model.proto.graph)
        asked = tuple(name for name in index.makers if index.shape(name) is None)
    if not asked:
        return model
    session = Session(with_outputs(model.proto, asked), 1)
    arrays = zip(asked, session.run(feed, asked), strict=True)
    kinds = {name: _FLOATS.get(session.output_types[name]) for name in asked}
    ranks: dict[str, tuple[int, list[int | None] | None]] = {
        name: (kind, [None] * array.ndim) for name, array in arrays if (kind := kinds[name])
    }
    return replace(model, proto=_with_values(model.proto, ranks))


def _read_by_weighted(index: GraphIndex, known: Iterable[str]) -> list[str]:
    """Return the inputs of weighted operators and sums that are neither `known` nor constant."""
    readers = [node for node in index.nodes if node.op_type in WEIGHTED_INPUTS or node.op_type == "Add"]
    left_out = {*known, *index.constants}
    return list(dict.fromkeys(n for node in readers for n in node.input[:2] if n not in left_out))


def _with_values(
    proto: onnx.ModelProto, values: Mapping[str, tuple[int, list[int | None] | None]]
) -> onnx.ModelProto:
    typed = deepcopy(proto)
    for value in [v for v in typed.graph.value_info if v.name in values]:
        typed.graph.value_info.remove(value)
    for name, (kind, shape) in values.items():
        typed.graph.value_info.append(helper.make_tensor_value_info(name, kind, shape))
    return with_shapes(typed)
