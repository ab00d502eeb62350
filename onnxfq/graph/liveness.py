"""How much memory the activations of a model take at a time, from their shapes."""

from __future__ import annotations

import math
from collections.abc import Mapping

import onnx

from onnxfq.graph.external.sizes import element_bytes
from onnxfq.graph.index import GraphIndex
from onnxfq.graph.model import bodies


def most_alive(graph: onnx.GraphProto, inputs: Mapping[str, tuple[int, ...]]) -> int | None:
    """Return the most bytes of tensors that are alive at a time when nodes run in their order.

    inputs: shapes of a feed, by name; they say how large named dimensions are. Constants do not count.
    A tensor is alive from the node that makes it, or the start, to the last one that reads it; none is
    written over its input. None when a shape is not known, or when the graph has bodies.
    """
    named: dict[str, int] = {}
    for value in graph.input:
        dims = value.type.tensor_type.shape.dim
        for dim, given in zip(dims, inputs.get(value.name, ()), strict=False):
            if dim.dim_param:
                named[dim.dim_param] = given
    values = GraphIndex(graph).values
    last = {name: number for number, node in enumerate(graph.node) for name in node.input}
    last |= {value.name: len(graph.node) for value in graph.output}
    alive: dict[str, int] = {}
    now = most = 0
    for number, made in enumerate([list(inputs), *(list(node.output) for node in graph.node)], -1):
        if number >= 0 and bodies(graph.node[number]):
            return None
        for name in filter(None, made):
            size = _bytes(values[name], named) if name in values else None
            if size is None:
                return None
            alive[name] = size
            now += size
        most = max(most, now)
        ended = (*graph.node[number].input, *made) if number >= 0 else ()
        now -= sum(alive.pop(name, 0) for name in ended if last.get(name, number) <= number)
    return most


def _bytes(value: onnx.ValueInfoProto, named: Mapping[str, int]) -> int | None:
    """Return what `value` takes; None when its type or a size is not known. named: sizes of dimensions."""
    kind = value.type.tensor_type
    element = element_bytes(kind.elem_type)
    if element is None or not kind.HasField("shape"):
        return None
    sizes = [d.dim_value if d.HasField("dim_value") else named.get(d.dim_param) for d in kind.shape.dim]
    known = [size for size in sizes if size is not None]
    return element * math.prod(known) if len(known) == len(sizes) else None
