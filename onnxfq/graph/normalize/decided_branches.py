"""An If that constants and fixed sizes decide becomes the branch that runs.

ONNX Runtime does the same while it loads a model, and ends the process if this leaves moved data behind a
pair to another body. The HTP takes no node of a body.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import onnx
from numpy.typing import NDArray
from onnx import TensorProto, numpy_helper

from onnxfq.errors import ModelError
from onnxfq.graph.external.sizes import is_small
from onnxfq.graph.external.weightless import strip_weights
from onnxfq.graph.index import GraphIndex
from onnxfq.graph.model import bodies, list_graphs, list_nodes, replace_nodes
from onnxfq.graph.node_fields import attributes_of
from onnxfq.graph.normalize.node_sites import SiteIndex
from onnxfq.graph.normalize.shapes import forget_shapes, with_shapes
from onnxfq.graph.normalize.steps import name_tensors, rename_defined
from onnxfq.graph.ops import STANDARD_DOMAINS
from onnxfq.graph.prune import keep_constants
from onnxfq.graph.walk import rename_tensors

_SIZED = frozenset({"ConstantOfShape", "Expand", "Pad", "Reshape", "Resize", "Slice", "Tile", "Upsample"})
"""Operators whose shapes follow from sizes among their inputs."""


def take_branches(proto: onnx.ModelProto) -> str:
    """Replace, in place, each If that is decided; no two graphs share the name of a tensor."""
    count = 0
    while taken := _find_decided(proto):  # a branch may decide another If
        _replace(proto.graph, taken)
        count += len(taken)
    return (
        f"{count} If that constants or fixed sizes decide replaced by the branch that runs" if count else ""
    )


def with_branches(proto: onnx.ModelProto) -> onnx.ModelProto:
    """Return `proto`; if it has pairs and an If, a copy that lacks large weights and each decided If."""
    if not {"If", "QuantizeLinear"} <= {node.op_type for node in list_nodes(proto.graph)}:
        return proto
    copy = strip_weights(proto)
    name_tensors(copy)
    take_branches(copy)
    return copy


def _is_if(node: onnx.NodeProto) -> bool:
    return node.op_type == "If" and node.domain in STANDARD_DOMAINS


def _find_decided(proto: onnx.ModelProto) -> dict[str, onnx.GraphProto]:
    """Return the branch that runs of each If that is decided, outside of others, by its first output."""
    if not any(map(_is_if, list_nodes(proto.graph))):
        return {}
    index = _index_sizes(_without_weights(proto))
    taken: dict[str, onnx.GraphProto] = {}
    for node in filter(_is_if, list_nodes(proto.graph)):
        chosen = _find_value(index, node.input[0])
        if chosen is not None and chosen.size == 1 and node.output[0]:
            taken[node.output[0]] = attributes_of(node)["then_branch" if chosen.item() else "else_branch"]
    return taken


def _find_value(index: SiteIndex, name: str) -> NDArray[Any] | None:
    """Return the values of a tensor; None if it depends on more than sizes, or ONNX's reference fails."""
    try:
        return index.value(name)
    except ModelError:
        return None


def _without_weights(proto: onnx.ModelProto) -> onnx.ModelProto:
    """Return a copy of `proto` that takes its large weights, and says no inner shapes, which may be wrong."""
    bare = strip_weights(proto)
    small = {name for name, tensor in GraphIndex(bare.graph).stored.items() if is_small(tensor)}
    bare.graph.input.extend(
        onnx.helper.make_tensor_value_info(tensor.name, tensor.data_type, tensor.dims)
        for tensor in bare.graph.initializer
        if tensor.name not in small
    )
    keep_constants(bare.graph, small)
    forget_shapes(bare)
    return bare


def _index_sizes(bare: onnx.ModelProto) -> SiteIndex:
    """Return the index of `bare`, in which computed sizes become constants: ONNX infers shapes from those."""
    while True:
        index, changed = SiteIndex(with_shapes(bare)), False
        for graph in list_graphs(bare.graph):
            found: dict[str, onnx.NodeProto] = {}
            for name in (name for node in graph.node if node.op_type in _SIZED for name in node.input):
                is_computed = name in index.makers and name not in index.stored and name not in found
                if is_computed and index.dtype(name) == TensorProto.INT64:
                    value = _find_value(index, name)
                    if value is not None:
                        tensor = numpy_helper.from_array(value, index.names.claim(name))
                        found[name] = onnx.helper.make_node("Constant", [], [tensor.name], value=tensor)
            rename_tensors(graph.node, {name: one.output[0] for name, one in found.items()}, made=False)
            for one in found.values():  # in place: ONNX does not look outside of a body
                graph.node.insert(0, one)
            changed |= bool(found)
        if not changed:
            return index


def _replace(graph: onnx.GraphProto, taken: Mapping[str, onnx.GraphProto]) -> None:
    """Put the nodes of the branches `taken` in the places of their If, in `graph` and its bodies."""
    for node in graph.node:
        for body in bodies(node):
            _replace(body, taken)
    if any(node.output and node.output[0] in taken for node in graph.node):
        replace_nodes(graph, [made for node in graph.node for made in _list_made(node, graph, taken)])


def _list_made(
    node: onnx.NodeProto, graph: onnx.GraphProto, taken: Mapping[str, onnx.GraphProto]
) -> Iterator[onnx.NodeProto]:
    """Yield `node`, or what makes its outputs in the branch that runs, whose constants `graph` gets."""
    body = taken.get(node.output[0]) if _is_if(node) else None
    if body is None:
        yield node
        return
    made = {name for one in body.node for name in one.output}
    renamed: dict[str, str] = {}
    copied: list[tuple[str, str]] = []
    for value, name in zip(body.output, node.output, strict=False):
        if value.name in made and value.name not in renamed and name:
            renamed[value.name] = name
        elif name:
            copied.append((value.name, name))
    rename_defined(body, renamed)
    graph.initializer.extend(body.initializer)
    yield from body.node
    for source, name in copied:
        yield onnx.helper.make_node("Identity", [renamed.get(source, source)], [name], f"{node.name}/{name}")
