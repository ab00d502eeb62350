"""Type and rank inference by ONNX Runtime, for custom operators."""

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
    """Return `model` with types that only ONNX Runtime can infer, and the reason if it cannot.

    The tensors are inputs of weighted operators. A session is created, but not run. If it cannot be created,
    the model is returned unchanged with the reason: tensors of unknown type stay in float, and the plan says
    so.
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
    """Return the tensors of unknown rank in the main graph that operators to quantize read."""
    index = GraphIndex(model.proto.graph)
    return tuple(_read_by_weighted(index, [name for name in index.values if index.shape(name) is not None]))


def with_run_ranks(model: Model, feed: Feed) -> Model:
    """Return `model`, for a plan, with the ranks that a run on `feed` gives the tensors of `lacks_ranks`.

    Sizes stay open: the next feed may have others. Raises DataError if the model cannot run on `feed`.
    """
    asked = lacks_ranks(model)
    session = Session(with_outputs(model.proto, asked), 1)
    found = zip(asked, session.run(feed, asked), strict=True)
    kinds = {name: _TYPES.get(session.output_types[name]) for name in asked}
    return _with_values(
        model, {name: (kind, [None] * array.ndim) for name, array in found if (kind := kinds[name])}
    )


def _read_by_weighted(index: GraphIndex, known: Iterable[str]) -> list[str]:
    """Return the inputs of weighted operators and sums that are neither `known` nor constant."""
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
