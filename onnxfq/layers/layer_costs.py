"""Costs of leaving a group of quantizers in float: shares of time, of multiply-adds and of weight bytes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass
from math import prod
from typing import NamedTuple

import onnx

from onnxfq.data import Feed
from onnxfq.documents.plan import Plan
from onnxfq.graph.external.sizes import tensor_bytes
from onnxfq.graph.index import GraphIndex
from onnxfq.graph.model import list_nodes
from onnxfq.graph.node_notes import module_paths
from onnxfq.graph.ops import WEIGHTED_INPUTS
from onnxfq.graph.signature import with_outputs
from onnxfq.layers.quantizer_toggles import LayerGroup
from onnxfq.runtime.session import Session


def _run_shapes(given: onnx.ModelProto, feed: Feed, tensors: Sequence[str]) -> dict[str, tuple[int, ...]]:
    """Return the shapes of computed `tensors` of the main graph on `feed`, without their values."""
    proto = deepcopy(given)
    taken = GraphIndex(proto.graph).names
    names = {tensor: taken.claim(f"{tensor}/shape") for tensor in tensors}
    proto.graph.node.extend(onnx.helper.make_node("Shape", [t], [n], n) for t, n in names.items())
    asked = list(names.values())
    found = Session(with_outputs(proto, asked), 1).run(feed, asked) if asked else []
    return {tensor: tuple(shape.tolist()) for tensor, shape in zip(tensors, found, strict=True)}


@dataclass(frozen=True)
class Costs:
    """Multiply-adds by node of the main graph, and bytes by weight.

    Attributes:
        types: operator by node, in bodies too.
        modules: path of the torch module by node, where it is known.
        products: multiply-adds by node of the main graph.
        sizes: bytes by quantized weight.
        elements: of the inputs and outputs of products, each tensor once.
    """

    types: dict[str, str]
    modules: dict[str, str]
    products: dict[str, int]
    sizes: dict[str, int]
    elements: int = 0

    def multiplies(self, group: LayerGroup) -> float | None:
        """Return the share of the multiply-adds; None with products in a body, whose shapes are unknown."""
        total = sum(self.products.values())
        unknown = any(self.types.get(n) in _PRODUCTS and n not in self.products for n in group.nodes)
        return None if unknown or not total else sum(self.products.get(n, 0) for n in group.nodes) / total

    def prices(self, groups: Sequence[LayerGroup]) -> list[float]:
        """Return the share of each group in the time of all: multiply-adds, and starts of kernels.

        A GPU starts and ends a layer of a small network at once: layers there have equal prices. In a large
        network their multiply-adds make the price.
        """
        times = [sum(KERNEL_MULTIPLIES + self.products.get(n, 0) for n in group.nodes) for group in groups]
        total = sum(times)
        return [time / total if total else 0.0 for time in times]

    def weight_bytes(self, group: LayerGroup) -> float:
        """Return the share of the bytes of quantized weights."""
        total = sum(self.sizes.values())
        return sum(self.sizes.get(tensor, 0) for tensor in group.tensors) / total if total else 0.0


def look_up(group: LayerGroup, texts: Mapping[str, str]) -> tuple[str, ...]:
    """Return the texts of the nodes that read the group, such as their operators, each once."""
    return tuple(dict.fromkeys(texts[node] for node in group.nodes if node in texts))


class WeightSize(NamedTuple):
    """A weight that can be rounded by moments: its elements, inputs of one output, their rows in a sample."""

    elements: int
    inputs: int
    rows: int


def weight_sizes(proto: onnx.ModelProto, plan: Plan, products: Mapping[str, int]) -> list[WeightSize]:
    """Return the sizes of the weights of `plan` that can be rounded, without depthwise convolutions.

    Args:
        proto: the model.
        plan: with the weights.
        products: multiply-adds of a sample by node.
    """
    kinds = {node.node: node.op_type for node in plan.nodes}
    dims = {name: tuple(t.dims) for name, t in GraphIndex.of_model(proto).constants.items()}
    sizes = []
    for placement in plan.weights:
        shape = dims.get(placement.tensor)
        nodes = [use.node for use in placement.uses]
        others = {kinds.get(node) for node in nodes} - {None, *WEIGHTED_INPUTS}
        if shape is None or others or (len(shape) > 2 and shape[1] == 1):
            continue
        granularity = placement.spec.granularity
        outputs = shape[granularity.axis or 0] if granularity.block_size is None else 1
        elements = prod(shape)
        inputs = elements // max(outputs, 1) if outputs > 1 else max(shape, default=0)
        rows = sum(products.get(node, 0) for node in nodes) // max(elements, 1)
        sizes.append(WeightSize(elements, inputs, rows))
    return sizes


KERNEL_MULTIPLIES = 5e7
"""Multiply-adds in the time that a GPU takes to start a kernel, 5 us at the 1e13 a second of a small one."""

_PRODUCTS = frozenset({"Conv", "ConvTranspose", "Gemm", "MatMul"})


def measure_costs(proto: onnx.ModelProto, plan: Plan, feed: Feed) -> Costs:
    """Return the costs of the weights of `plan`, and of the nodes of `proto`, with the shapes of a run."""
    graph = proto.graph
    index = GraphIndex(graph)
    products = [node for node in graph.node if node.op_type in _PRODUCTS]
    tensors = list(dict.fromkeys(name for node in products for name in (*node.input[:2], node.output[0])))
    known = {name: index.shape(name) for name in tensors}
    shapes = {name: tuple(filter(None, dims)) for name, dims in known.items() if dims and all(dims)}
    shapes |= {name: array.shape for name, array in feed.items()}
    shapes |= _run_shapes(
        proto, feed, [name for name in tensors if name not in shapes and name in index.makers]
    )
    sizes = {name: tensor_bytes(one) for name, one in GraphIndex.of_model(proto).constants.items()}
    counts = {}
    for node in products:
        left, right = (shapes.get(name, ()) for name in node.input[:2])
        made = prod(shapes.get(node.output[0], ()))
        if node.op_type == "Conv":
            counts[node.name] = made * prod(right[1:])
        elif node.op_type == "ConvTranspose":
            counts[node.name] = prod(left) * prod(right[1:])
        else:
            transposed = any(attr.name == "transA" and attr.i for attr in node.attribute)
            counts[node.name] = made * (left[-2 if transposed else -1] if left else 1)
    weights = {p.tensor: sizes[p.tensor] for p in plan.weights if p.tensor in sizes}
    types = {node.name: node.op_type for node in list_nodes(graph)}
    elements = sum(prod(dims) for name, dims in shapes.items() if name not in index.constants)
    return Costs(types, module_paths(graph), counts, weights, elements)
