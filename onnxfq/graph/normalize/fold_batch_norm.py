"""Folding of BatchNormalization into the convolution in front, for runtimes that do not fold it themselves.

A runtime that fuses a quantized convolution into one integer kernel has its weight as integers already, so a
BatchNormalization behind it would run in float. In float it is one affine function of each channel [ONNX,
BatchNormalization]: y = (x - mean) * scale / sqrt(var + epsilon) + bias.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import numpy_helper

from onnxfq.graph.external.tensor import tensor_array
from onnxfq.graph.index import GraphIndex
from onnxfq.graph.model import Model
from onnxfq.graph.normalize.shapes import add_shapes
from onnxfq.graph.ops import CONVOLUTIONS, STANDARD_DOMAINS
from onnxfq.graph.prune import leave_out
from onnxfq.numerics.float_types import FLOAT_CODES

_EPSILON = 1e-5


def fold_batch_norm(model: Model) -> Model:
    """Return `model` with each BatchNormalization that only a convolution feeds folded into it.

    Weights and biases are computed in float64 and rounded once. A BatchNormalization stays if its parameters
    or the weight are computed, if it trains, or if something else reads the result of the convolution. The
    model itself is returned if none can be folded.
    """
    if not any(node.op_type == "BatchNormalization" for node in model.proto.graph.node):
        return model
    proto = onnx.ModelProto()
    proto.CopyFrom(model.proto)
    index = GraphIndex(proto.graph)
    folded = 0
    for place in reversed(range(len(proto.graph.node))):
        norm = proto.graph.node[place]
        conv = _find_convolution(norm, index)
        if conv is not None:
            _fold(conv, norm, index, proto.graph)
            conv.output[0] = norm.output[0]
            del proto.graph.node[place]
            folded += 1
    if not folded:
        return model
    leave_out(proto.graph, {})  # parameters that nothing reads any more
    add_shapes(proto)
    note = f"{folded} BatchNormalization folded into the convolution in front"
    return replace(model, proto=proto, notes=(*model.notes, note))


@dataclass(frozen=True)
class _Affine:
    """The function of each channel: x * factor + offset, float64 [C]."""

    factor: NDArray[np.float64]
    offset: NDArray[np.float64]

    @classmethod
    def of(cls, norm: onnx.NodeProto, index: GraphIndex) -> _Affine:
        scale, bias, mean, variance = (_array(name, index) for name in norm.input[1:5])
        epsilon = next((a.f for a in norm.attribute if a.name == "epsilon"), _EPSILON)
        factor = scale / np.sqrt(variance + np.float64(np.float32(epsilon)))
        return cls(factor, bias - mean * factor)


def _array(name: str, index: GraphIndex) -> NDArray[np.float64]:
    return tensor_array(index.constants[name]).astype(np.float64)


def _find_convolution(norm: onnx.NodeProto, index: GraphIndex) -> onnx.NodeProto | None:
    """Return the convolution that `norm` can be folded into; None if there is none."""
    if norm.op_type != "BatchNormalization" or norm.domain not in STANDARD_DOMAINS:
        return None
    trains = any(a.name == "training_mode" and a.i for a in norm.attribute) or len(norm.output) > 1
    conv = index.makers.get(norm.input[0])
    if trains or conv is None or conv.op_type not in CONVOLUTIONS or conv.domain not in STANDARD_DOMAINS:
        return None
    between = conv.output[0]
    if len(index.readers[between]) > 1 or between in index.outputs | index.captured:
        return None
    constants = [conv.input[1], *conv.input[2:3], *norm.input[1:5]]
    known = all(name in index.constants for name in constants if name)
    floats = known and {index.constants[name].data_type for name in constants if name} <= FLOAT_CODES
    return conv if floats else None


def _fold(conv: onnx.NodeProto, norm: onnx.NodeProto, index: GraphIndex, graph: onnx.GraphProto) -> None:
    affine, weight = _Affine.of(norm, index), _array(conv.input[1], index)
    bias = _array(conv.input[2], index) if len(conv.input) > 2 and conv.input[2] else 0.0
    kind = index.constants[conv.input[1]].data_type
    scaled = _scale_channels(weight, affine.factor, conv)
    weight_name = _store(conv.input[1], scaled, kind, index, graph)
    offsets = bias * affine.factor + affine.offset
    known_bias = conv.input[2] if len(conv.input) > 2 and conv.input[2] else f"{conv.input[1]}/bias"
    conv.input[:] = [conv.input[0], weight_name, _store(known_bias, offsets, kind, index, graph)]


def _scale_channels(
    weight: NDArray[np.float64], factor: NDArray[np.float64], conv: onnx.NodeProto
) -> NDArray[np.float64]:
    """Return `weight` with each output channel scaled; of ConvTranspose [C in, C out / groups, ...]."""
    if conv.op_type != "ConvTranspose":
        return weight * factor.reshape(-1, *[1] * (weight.ndim - 1))
    groups = next((a.i for a in conv.attribute if a.name == "group"), 1)
    split = weight.reshape(groups, weight.shape[0] // groups, *weight.shape[1:])
    factors = factor.reshape(groups, 1, weight.shape[1], *[1] * (weight.ndim - 2))
    return (split * factors).reshape(weight.shape)


def _store(
    name: str, values: NDArray[np.float64], kind: int, index: GraphIndex, graph: onnx.GraphProto
) -> str:
    """Store `values` under `name` if only one node reads it, else under a new one; return the name."""
    known = index.constants.get(name)
    if known is None or len(index.readers[name]) > 1 or name in index.outputs | index.captured:
        known, name = graph.initializer.add(), index.names.claim(name)
    dtype: Any = onnx.helper.tensor_dtype_to_np_dtype(kind)
    known.CopyFrom(numpy_helper.from_array(values.astype(dtype), name))
    return name
