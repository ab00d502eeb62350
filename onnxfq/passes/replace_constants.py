"""Replacement of constants: of weights where their readers are quantized, and of what layers add."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

import numpy as np
import onnx
from numpy.typing import NDArray

from onnxfq.documents.plan import Plan
from onnxfq.graph.constants import make_tensor, weight_array
from onnxfq.graph.external.weightless import with_initializers
from onnxfq.graph.index import GraphIndex
from onnxfq.graph.model import Model, list_graphs, list_nodes
from onnxfq.graph.names import Use


def separate_float_readers(model: Model, plan: Plan, tensors: Iterable[str]) -> Model:
    """Return `model` in which only the uses of `plan` read `tensors`.

    Other readers, such as a Gather of a tied embedding, read a copy with the same values.
    """
    uses = {p.tensor: set(p.uses) for p in plan.weights if p.tensor in set(tensors)}
    proto = with_initializers(model.proto, model.proto.graph.initializer)
    taken = GraphIndex(proto.graph).names
    copies: dict[str, str] = {}

    def copy_of(name: str) -> str:
        if name not in copies:
            copies[name] = taken.claim(f"{name}/float")
        return copies[name]

    for node in list_nodes(proto.graph):
        for slot, name in enumerate(node.input):
            if name in uses and Use(node.name, slot) not in uses[name]:
                node.input[slot] = copy_of(name)
    for graph in list_graphs(proto.graph)[1:]:
        for value in graph.output:
            if value.name in uses:
                value.name = copy_of(value.name)
    for tensor in list(proto.graph.initializer):
        if tensor.name in copies:
            proto.graph.initializer.add().CopyFrom(tensor)
            proto.graph.initializer[-1].name = copies[tensor.name]
    return replace(model, proto=proto)


def replace_weights(model: Model, values: Mapping[str, onnx.TensorProto]) -> Model:
    """Return `model` with the tensors `values`, of the same types and shapes, instead of the present ones."""
    tensors = (values.get(tensor.name, tensor) for tensor in model.proto.graph.initializer)
    return replace(model, proto=with_initializers(model.proto, tensors))


def weight_tensor(name: str, values: NDArray[np.float32], like: NDArray[np.generic]) -> onnx.TensorProto:
    """Return `values` as a tensor called `name` of the type of `like`."""
    return make_tensor(name, values.astype(like.dtype))


_BIAS = 2
"""Slot of the bias of Conv and Gemm."""


@dataclass(frozen=True)
class BiasPlace:
    """Constant that is added to the products of a layer.

    Attributes:
        node: that reads it: the layer's node, or the Add behind a MatMul.
        slot: of the constant.
        tensor: its name; empty if the node has none yet.
        gain: change of the output for a change of the constant by 1, over that for a change of the products.
        like: a constant with the type of a new one.
    """

    node: str
    slot: int
    tensor: str
    gain: float
    like: str


class BiasFinder:
    """Search for the biases of layers in the outermost graph of a model."""

    def __init__(self, model: Model, plan: Plan, quantized: bool) -> None:
        """Start with a model and its plan.

        Args:
            model: the float model.
            plan: the tensors to quantize.
            quantized: whether the target quantizes biases, so that a new one in float would cost its kernel.
        """
        graph = model.proto.graph
        self._model, self._quantized = model, quantized
        self._given = {value.name for value in graph.input}
        self._nodes = {node.name: node for node in graph.node}
        self._placed = {use for placement in plan.placements for use in placement.uses}

    def find(self, name: str, slot: int, weight: str, outputs: int) -> BiasPlace | str:
        """Return where the bias of a layer is, or the reason why it cannot change.

        Args:
            name: of the layer's node.
            slot: of its input that is not the weight.
            weight: its weight.
            outputs: number of its output channels.
        """
        node = self._nodes[name]
        if node.op_type not in ("Conv", "Gemm", "MatMul"):
            return f"{node.op_type} has other inputs at each position of its output"
        if slot != 0:
            return "its weight multiplies from the left, and its bias has no value for each row"
        if node.op_type == "MatMul":
            return self._behind(node, outputs, weight)
        attributes = {one.name: one.f for one in node.attribute}
        alpha, beta = (
            attributes.get(key, 1.0) if node.op_type == "Gemm" else 1.0 for key in ("alpha", "beta")
        )
        if not beta or not alpha:
            return f"it has alpha {alpha:g} and beta {beta:g}, and both must differ from 0"
        bias = node.input[_BIAS] if len(node.input) > _BIAS else ""
        if not bias and self._quantized:
            return "it has no bias, and a new one in float would not fit the integer kernel of the target"
        if bias:
            fault = self.explain_unfit(bias, outputs)
            if fault:
                return fault
        return BiasPlace(name, _BIAS, bias, beta / alpha, weight)

    def _behind(self, node: onnx.NodeProto, outputs: int, weight: str) -> BiasPlace | str:
        """Return the constant of the Add that alone reads the output of `node`."""
        product, index = node.output[0], self._model.index
        add, *others = index.readers.get(product, [node])
        if add.op_type != "Add" or add.name not in self._nodes or others or product in index.outputs:
            return "no Add of a constant alone reads its output"
        at = list(add.input).index(product)
        bias = add.input[1 - at]
        if Use(add.name, 1 - at) in self._placed:
            return f"the other input of {add.name!r} is quantized"
        return self.explain_unfit(bias, outputs) or BiasPlace(add.name, 1 - at, bias, 1.0, weight)

    def explain_unfit(self, bias: str, outputs: int) -> str:
        """Return why a tensor is not a constant with a value for each output; empty if it is."""
        tensor = self._model.constants.get(bias)
        if tensor is None or bias in self._given:
            return f"its bias {bias!r} is computed while the model runs"
        shape = list(tensor.dims)
        if not shape or shape[-1] != outputs or np.prod(shape) != outputs:
            return f"its bias {bias!r} has shape {shape}, not one value for each of {outputs} output channels"
        return ""


def shift_biases(model: Model, shifts: Mapping[BiasPlace, NDArray[np.float64]]) -> Model:
    """Return `model` whose layers add other constants.

    A constant with several readers stays as it is for the others; this reader gets a copy.

    Args:
        model: the float model.
        shifts: what the outputs of the products change by, [output channels].
    """
    proto = with_initializers(model.proto, model.proto.graph.initializer)
    nodes = {node.name: node for node in proto.graph.node}
    taken, index = GraphIndex(proto.graph).names, model.index
    changed: dict[str, onnx.TensorProto] = {}
    added = []
    for place, shift in shifts.items():
        like = weight_array(model, place.tensor or place.like)
        old = like.astype(np.float64) if place.tensor else np.zeros(len(shift))
        values = (old + (shift / place.gain).reshape(old.shape)).astype(like.dtype)
        if place.tensor and len(index.readers[place.tensor]) == 1 and place.tensor not in index.outputs:
            changed[place.tensor] = make_tensor(place.tensor, values)
            continue
        node, name = nodes[place.node], taken.claim(f"{place.node}/bias")
        node.input.extend([""] * (place.slot + 1 - len(node.input)))
        node.input[place.slot] = name
        added.append(make_tensor(name, values))
    tensors = [changed.get(tensor.name, tensor) for tensor in proto.graph.initializer]
    return replace(model, proto=with_initializers(proto, [*tensors, *added]))
