"""Scales of constants that a model stores as integers: behind DequantizeLinear, or as Cast, Sub and Mul.

The scale of each tensor that depends on such constants alone is computed next to the tensor: data movement
moves both, a Mul by a constant multiplies the scale.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto

from onnxfq.errors import ModelError
from onnxfq.graph.external.tensor import tensor_array
from onnxfq.graph.index import GraphIndex
from onnxfq.graph.model import list_graphs, list_nodes
from onnxfq.graph.node_fields import attributes_of, input_name
from onnxfq.graph.normalize.steps import evaluate_node
from onnxfq.graph.ops import MOVES, ONNXFQ_DOMAIN, QUANTIZED_OPS, SPLITS, STANDARD_DOMAINS
from onnxfq.graph.stored_grid import StoredScale
from onnxfq.numerics.float_types import FLOAT_CODES
from onnxfq.numerics.granularity import PER_TENSOR, Granularity, normalize_axis
from onnxfq.numerics.qtypes import QTYPES

_STORED = {q.onnx_type for q in QTYPES.values()} | {TensorProto.INT32}
_MOVED = MOVES | SPLITS | {"Concat"}
_ONE, _UNKNOWN = np.ones((), np.float32), np.full((), np.nan, np.float32)


def find_stored_scales(proto: onnx.ModelProto) -> dict[str, StoredScale]:
    """Return the scale of each float tensor that is a constant of integers times scale, by name.

    `proto` is a normalised model before its constants are folded.
    """
    found = _Scales(proto)
    is_stored = any(tensor.data_type in _STORED for tensor in found.constants.values())
    if not is_stored and not any(node.op_type in QUANTIZED_OPS for node in list_nodes(proto.graph)):
        return {}
    for graph in list_graphs(proto.graph):
        for node in graph.node:
            found.follow(node)
    return {name: scale for name, scale in found.computed.items() if np.isfinite(scale.params).all()}


def granularity_of(node: onnx.NodeProto) -> Granularity:
    """Return the granularity of the scales of a quantizer of ONNX or of onnxfq."""
    given = attributes_of(node)
    axis = given.get("axis", 1 if node.domain != ONNXFQ_DOMAIN else None)
    return Granularity.of(axis, given.get("block_size"), given.get("block_shape"))


class _Scales:
    """Scales of tensors that depend on constants alone; NaN for float numbers without a known grid."""

    def __init__(self, proto: onnx.ModelProto) -> None:
        self.proto = proto
        self.constants = GraphIndex.of_model(proto).stored
        self.computed: dict[str, StoredScale] = {}

    def follow(self, node: onnx.NodeProto) -> None:
        """Find the scale of the output of `node`, if its inputs are known."""
        domain = "" if node.domain in STANDARD_DOMAINS else node.domain
        rule = _RULES.get((domain, node.op_type))
        if rule is None or all(self.scale(name) is None for name in node.input):
            return
        try:
            scale = rule(self, node)
        except (ModelError, ValueError, IndexError):  # a damaged model, which later steps name
            return
        if scale is not None:
            self.computed[node.output[0]] = scale

    def scale(self, name: str) -> StoredScale | None:
        """Return the scale of tensor `name`, 1 for integers; None unless it depends on constants alone."""
        if name in self.computed:
            return self.computed[name]
        tensor = self.constants.get(name)
        if tensor is None or tensor.data_type not in _STORED | FLOAT_CODES:
            return None
        return StoredScale(_ONE if tensor.data_type in _STORED else _UNKNOWN, PER_TENSOR, tuple(tensor.dims))

    def constant(self, node: onnx.NodeProto, slot: int) -> NDArray[np.generic] | None:
        """Return the constant at input `slot`, None for a computed or absent one."""
        name = input_name(node, slot)
        return tensor_array(self.constants[name]) if name in self.constants else None

    def times(self, node: onnx.NodeProto) -> StoredScale | None:
        """Return the scale of a Mul or Div by a constant."""
        for slot in (0, 1) if node.op_type == "Mul" else (0,):
            scale, factor = self.scale(node.input[slot]), self.constant(node, 1 - slot)
            if scale is None or factor is None or np.isnan(scale.params).any():
                continue
            number = np.asarray(factor, np.float32)
            number = number if node.op_type == "Mul" else np.float32(1) / number
            if number.size == 1:
                return StoredScale(scale.params * number.reshape(()), scale.granularity, scale.shape)
            shape = np.broadcast_shapes(scale.shape, number.shape)
            if scale.params.size == 1:  # blocks of one element along each axis with several factors
                aligned = number.reshape((1,) * (len(shape) - number.ndim) + number.shape)
                sizes = tuple(-1 if n == 1 else 1 for n in aligned.shape)
                return StoredScale(aligned * scale.params.reshape(()), Granularity(block_shape=sizes), shape)
            return _of_elements(np.broadcast_to(scale.elementwise * number, shape))
        return None

    def shifted(self, node: onnx.NodeProto) -> StoredScale | None:
        """Return the scale of integers plus or minus a constant of integers."""
        scale, offset = self.scale(node.input[0]), self.constant(node, 1)
        if scale is None or offset is None or (scale.params != 1).any():
            return None
        number = np.asarray(offset, np.float32)
        shape = np.broadcast_shapes(scale.shape, number.shape)
        return StoredScale(_ONE, PER_TENSOR, shape) if (number == np.rint(number)).all() else None

    def moved(self, node: onnx.NodeProto) -> StoredScale | None:
        """Return the scale of moved numbers."""
        count = len(node.input) if node.op_type == "Concat" else 1
        scales = [self.scale(name) for name in node.input[:count]]
        if len(node.output) > 1 or any(scale is None for scale in scales):
            return None
        known = [scale for scale in scales if scale is not None]
        if node.op_type == "Identity":
            return known[0]
        if node.op_type == "Transpose":
            return _transpose(known[0], node)
        if any(np.isnan(scale.params).any() for scale in known):
            return None
        inputs = {name: scale.elementwise for name, scale in zip(node.input, known, strict=False)}
        for slot in range(count, len(node.input)):
            value = self.constant(node, slot)
            if node.input[slot] and value is None:
                return None
            inputs |= {node.input[slot]: value} if value is not None else {}
        made = np.asarray(evaluate_node(node, inputs, self.proto)[0], np.float32)
        if all(scale.params.size == 1 for scale in known) and (made == made.flat[0]).all():
            return StoredScale(made.reshape(-1)[0], PER_TENSOR, made.shape)
        return _of_elements(made)

    def same(self, node: onnx.NodeProto) -> StoredScale | None:
        """Return the scale of the first input."""
        return self.scale(node.input[0])

    def unit(self, node: onnx.NodeProto) -> StoredScale | None:
        """Return the scale 1 of the integers that a QuantizeLinear makes of a constant."""
        scale = self.scale(node.input[0])
        return None if scale is None else StoredScale(_ONE, PER_TENSOR, scale.shape)

    def dequantized(self, node: onnx.NodeProto) -> StoredScale | None:
        """Return the scale of the numbers of a DequantizeLinear or FakeQuantize."""
        numbers, scale = self.scale(node.input[0]), self.constant(node, 1)
        if scale is None and self.scale(node.input[1]) is not None:  # scales that have scales, as in NVFP4
            return None
        if numbers is None or scale is None:
            return None
        if node.op_type == "DequantizeLinear" and (numbers.params != 1).any():
            return None
        params, granularity = np.asarray(scale, np.float32), granularity_of(node)
        if params.size == 1:
            return StoredScale(params.reshape(()), PER_TENSOR, numbers.shape)
        if granularity.axis is not None:
            axis = normalize_axis(granularity.axis, len(numbers.shape))
            granularity = Granularity(axis, granularity.block_size)
        return StoredScale(params, granularity, numbers.shape)


def _of_elements(scale: NDArray[np.float32]) -> StoredScale:
    return StoredScale(scale, Granularity(block_shape=(1,) * scale.ndim), scale.shape)


def _transpose(scale: StoredScale, node: onnx.NodeProto) -> StoredScale:
    rank = len(scale.shape)
    order = list(attributes_of(node).get("perm", range(rank)[::-1]))
    shape = tuple(scale.shape[axis] for axis in order)
    params = scale.params.transpose(order) if scale.granularity.is_blocked else scale.params
    return StoredScale(params, scale.granularity.permute([order.index(axis) for axis in range(rank)]), shape)


_RULES: dict[tuple[str, str], Callable[[_Scales, onnx.NodeProto], StoredScale | None]] = {
    **{("", op): _Scales.moved for op in sorted(_MOVED)},
    ("", "Add"): _Scales.shifted,
    ("", "Cast"): _Scales.same,
    ("", "Clip"): _Scales.same,
    ("", "DequantizeLinear"): _Scales.dequantized,
    ("", "Div"): _Scales.times,
    ("", "Mul"): _Scales.times,
    ("", "QuantizeLinear"): _Scales.unit,
    ("", "Sub"): _Scales.shifted,
    (ONNXFQ_DOMAIN, "FakeQuantize"): _Scales.dequantized,
}
