"""Inputs of products without their mean, which a constant behind the product gives back.

    x W  =  (x - m) W + m W

m and m W are constants. They go into what the model adds already, in front of the product and behind it;
elsewhere a Sub and an Add are new. TensorRT for RTX 1.7.1 fuses both: engines of a decoder in NVFP4 have as
many layers with them as without. Source: the shifts of X. Wei et al., Outlier Suppression+ (2023).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import onnx
from numpy.typing import NDArray

from onnxfq.documents.plan import Plan
from onnxfq.graph.constants import make_tensor
from onnxfq.graph.external.streaming import hash_model
from onnxfq.graph.index import GraphIndex
from onnxfq.graph.model import Model, replace_nodes
from onnxfq.graph.names import Names
from onnxfq.passes.equalize import mark_equalized
from onnxfq.passes.replace_constants import BiasFinder, BiasPlace, shift_biases

CENTERED = "/centered"
"""Ending of the name of a tensor without its mean, and of the node that makes it."""


@dataclass(frozen=True)
class CenteredProduct:
    """A product of a centered tensor.

    Attributes:
        node: MatMul or Gemm, with the tensor as its first input.
        weight: name of its matrix.
        lost: what its outputs lose with the mean, float64 [outputs].
        dtype: of the outputs.
    """

    node: str
    weight: str
    lost: NDArray[np.float64]
    dtype: np.dtype[np.generic]


@dataclass(frozen=True)
class CenteredTensor:
    """A tensor, its mean, and all products that read it quantized.

    Attributes:
        name: of the tensor.
        mean: of each channel along the last axis, in the type of the tensor.
        products: its quantized readers.
    """

    name: str
    mean: NDArray[np.generic]
    products: Sequence[CenteredProduct]


def center_tensors(model: Model, plan: Plan, tensors: Sequence[CenteredTensor]) -> Model:
    """Return `model` whose products read `tensors` without their means; outputs differ by rounding alone.

    Args:
        model: the float model, which is not changed.
        plan: of the model.
        tensors: what is centered.
    """
    finder, shifts = BiasFinder(model, plan, quantized=False), dict[BiasPlace, NDArray[np.float64]]()
    index = model.index
    read: dict[str, CenteredTensor] = {}
    made: dict[str, CenteredProduct] = {}
    for tensor in tensors:
        place = _find_maker(index, finder, tensor)
        if place is None:
            read |= {product.node: tensor for product in tensor.products}
        else:
            shifts[place] = -tensor.mean.astype(np.float64)
        for product in tensor.products:
            found = finder.find(product.node, 0, product.weight, len(product.lost))
            if isinstance(found, str):
                made[product.node] = product
            else:
                shifts[found] = product.lost
    return _insert(shift_biases(model, shifts), index, read, made)


def center_inputs(model: Model, tensors: Mapping[str, CenteredTensor], slot: int) -> Model:
    """Return `model` whose nodes read tensors without their means, which nothing gives back.

    Args:
        model: the float model, which is not changed.
        tensors: by the name of the node that reads them.
        slot: the input of these nodes.
    """
    return _insert(shift_biases(model, {}), model.index, tensors, {}, slot)


def _find_maker(index: GraphIndex, finder: BiasFinder, tensor: CenteredTensor) -> BiasPlace | None:
    """Return the constant that is added to make a tensor; None if there is none, or if others read it."""
    maker = index.makers.get(tensor.name)
    readers = {node.name for node in index.readers.get(tensor.name, ())}
    if maker is None or tensor.name in index.outputs or readers != {one.node for one in tensor.products}:
        return None
    if maker.op_type == "LayerNormalization":
        bias = maker.input[2] if len(maker.input) > 2 else ""
        slot = 2
    elif maker.op_type == "Add":
        slot = next((at for at, name in enumerate(maker.input) if name in index.constants), 1)
        bias = maker.input[slot]
    else:
        return None
    if bias and finder.explain_unfit(bias, len(tensor.mean)):
        return None
    return BiasPlace(maker.name, slot, bias, 1.0, tensor.products[0].weight)


def _insert(
    model: Model,
    index: GraphIndex,
    read: Mapping[str, CenteredTensor],
    made: Mapping[str, CenteredProduct],
    slot: int = 0,
) -> Model:
    """Put a Sub before input `slot` of nodes in `read`, one a tensor, and an Add behind those in `made`."""
    graph, values = model.proto.graph, index.values
    names = Names({*index.names, *(tensor.name for tensor in graph.initializer)})
    centered: dict[str, str] = {}

    def add(op: str, given: str, output: str, constant: NDArray[np.generic]) -> onnx.NodeProto:
        graph.initializer.append(make_tensor(names.claim(f"{output}/mean"), constant))
        inputs, name = [given, graph.initializer[-1].name], names.claim(f"{given}/{op.lower()}")
        return onnx.helper.make_node(op, inputs, [output], name)

    def note(name: str, like: str) -> None:
        if like in values:
            graph.value_info.add().CopyFrom(values[like])
            graph.value_info[-1].name = name

    nodes: list[onnx.NodeProto] = []
    for node in list(graph.node):
        if node.name in read:
            tensor = read[node.name]
            if tensor.name not in centered:
                centered[tensor.name] = names.claim(f"{tensor.name}{CENTERED}")
                note(centered[tensor.name], tensor.name)
                nodes.append(add("Sub", tensor.name, centered[tensor.name], tensor.mean))
            node.input[slot] = centered[tensor.name]
        nodes.append(node)
        if node.name in made:
            output, product = node.output[0], names.claim(f"{node.output[0]}{CENTERED}")
            note(product, output)
            node.output[0] = product
            lost = made[node.name].lost.astype(made[node.name].dtype)
            nodes.append(add("Add", product, output, lost))
    replace_nodes(graph, nodes)
    mark_equalized(model.proto, "means")
    return replace(model, sha256=hash_model(model.proto), limits={})
