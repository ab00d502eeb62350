"""Read-only graph queries."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass
from graphlib import TopologicalSorter
from typing import Any

import numpy as np
import onnx
import onnx_graphsurgeon as gs
from numpy.typing import NDArray
from onnx import TensorProto

from onnxfq.errors import ModelError
from onnxfq.graph.constants import constant_array
from onnxfq.graph.follow import Node, Tensor
from onnxfq.graph.model import bodies, list_graphs
from onnxfq.graph.names import Use
from onnxfq.graph.ops import (
    DATA_MOVEMENT,
    FLOAT_PRODUCTS,
    QUANTIZED_OPS,
    STANDARD_DOMAINS,
    TRANSPOSES,
    is_weighted,
)
from onnxfq.numerics.float_types import FLOATS, FloatInfo, FloatType


@dataclass(frozen=True)
class WeightSource:
    """The constant behind a node's input, seen through Transpose and Identity nodes.

    Attributes:
        tensor: the constant.
        use: the slot that reads it (of the node itself, or of the first Transpose).
        permutation: axis a of the node's input is axis permutation[a] of the constant.
    """

    tensor: gs.Constant
    use: Use
    permutation: tuple[int, ...]


def weight_source(node: gs.Node, slot: int, read_in_float: Collection[str] = ()) -> WeightSource | None:
    """Return the constant behind input `slot` of `node`, or None when it is computed from data.

    A Transpose is looked through only if all its readers are weighted operators and its output is not in
    `read_in_float`: builders fold it, and no float reader sees rounded values.
    """
    tensor, use = node.inputs[slot], Use(node.name, slot)
    moves: list[gs.Node] = []
    known: set[int] = set()
    while isinstance(tensor, gs.Variable) and tensor.inputs and tensor.inputs[0].op in TRANSPOSES:
        move = tensor.inputs[0]
        readers = [reader for reader in tensor.outputs if id(reader) not in known]
        if tensor.name in read_in_float or not all(is_weighted(reader) for reader in readers):
            return None
        moves.append(move)
        known.add(id(move))
        tensor, use = move.inputs[0], Use(move.name, 0)
    if not isinstance(tensor, gs.Constant):
        return None
    rank = len(tensor.shape)
    permutation = tuple(range(rank))
    for move in moves:
        order = (
            move.attrs.get("perm", tuple(reversed(range(rank)))) if move.op == "Transpose" else range(rank)
        )
        if sorted(order) != list(range(rank)):
            raise ModelError(
                f"Transpose {move.name!r} has perm {list(order)} for the {rank} axes of {tensor.name!r}; "
                "export the model again"
            )
        permutation = tuple(order[axis] for axis in permutation)
    return WeightSource(tensor, use, permutation)


def float_type(tensor: gs.Tensor) -> FloatType | None:
    """Return the float type of `tensor`; None if it is unknown or not a type that is quantized."""
    if tensor.dtype is None:
        return None
    if isinstance(tensor.dtype, int):  # graphsurgeon keeps ONNX's number where NumPy has no type
        return next((name for name, info in FLOATS.items() if info.onnx_type == tensor.dtype), None)
    return next((name for name, info in FLOATS.items() if info.dtype == np.dtype(tensor.dtype)), None)


def is_dequantized(tensor: gs.Tensor) -> bool:
    """Tell whether the model itself quantizes `tensor` already, through Transpose and Identity nodes too."""
    while tensor.inputs and tensor.inputs[0].op in TRANSPOSES:
        tensor = tensor.inputs[0].inputs[0]
    return bool(tensor.inputs) and tensor.inputs[0].op in QUANTIZED_OPS - FLOAT_PRODUCTS


def producer_op(tensor: gs.Tensor) -> str:
    """Return the op type of the standard operator that computes `tensor`; empty when none does."""
    node = tensor.inputs[0] if tensor.inputs else None
    return str(node.op) if node is not None and node.domain in STANDARD_DOMAINS else ""


# Operators whose results are not negative, and those that return numbers of their first input.
_NEVER_NEGATIVE = frozenset({"HardSigmoid", "Relu", "Sigmoid", "Softmax"})
_CHOOSING = DATA_MOVEMENT | {"AveragePool", "GlobalAveragePool", "GlobalMaxPool"}


def is_never_negative(tensor: gs.Tensor) -> bool:
    """Tell whether the operators that compute `tensor` leave no negative number."""
    while producer_op(tensor) in _CHOOSING:
        tensor = tensor.inputs[0].inputs[0]
    if producer_op(tensor) != "Clip":
        return producer_op(tensor) in _NEVER_NEGATIVE
    node = tensor.inputs[0]
    least = node.inputs[1] if len(node.inputs) > 1 else None
    if isinstance(least, gs.Constant):
        return bool(constant_array(least).min(initial=0.0) >= 0.0)
    return float(node.attrs.get("min", -1.0)) >= 0.0


def constant_values(tensor: gs.Tensor) -> NDArray[np.generic] | None:
    """Return the values of a constant; None for another tensor."""
    return constant_array(tensor) if isinstance(tensor, gs.Constant) else None


def pads_by_zero(node: Node, value: Callable[[Tensor], Any] = constant_values) -> bool:
    """Tell whether a Pad adds zeros, or numbers of its input: others may have no integer on its grid.

    Args:
        node: the Pad.
        value: returns the values of a constant, None for another tensor.
    """
    if node.attrs.get("mode", "constant") != "constant":
        return True
    given = node.inputs[2] if len(node.inputs) > 2 and node.inputs[2].name else None
    padding = node.attrs.get("value", 0.0) if given is None else value(given)
    return padding is not None and not np.any(padding)


def dtype_name(tensor: gs.Tensor) -> str:
    """Return the element type of `tensor` for a message; `of unknown type` when it is unknown."""
    if tensor.dtype is None:
        return "of unknown type"
    if isinstance(tensor.dtype, int):
        return str(TensorProto.DataType.Name(tensor.dtype)).lower()
    return str(np.dtype(tensor.dtype))


def nodes_by_graph(graph: gs.Graph) -> list[gs.Node]:
    """Return the nodes of `graph`, then the nodes of its bodies: the order of plans."""
    return [node for one in list_graphs(graph) for node in one.nodes]


_KNOWN_BODIES = frozenset({"If", "Loop", "Scan"})


def find_fixed(nodes: Collection[gs.Node]) -> set[str]:
    """Return the names of the nodes that compute constants from constants; `nodes` has makers first."""
    fixed: set[str] = set()
    for node in nodes:
        makers = [maker.name for tensor in node.inputs for maker in tensor.inputs]
        fed = any(not tensor.inputs and not isinstance(tensor, gs.Constant) for tensor in node.inputs)
        if node.inputs and not fed and fixed.issuperset(makers):
            fixed.add(node.name)
    return fixed


def nodes_out_of_reach(graph: gs.Graph) -> dict[str, gs.Node]:
    """Return {node name: enclosing node} for nodes whose observations cannot leave their body.

    They are in the body of a node other than If, Loop and Scan, such as SequenceMap.
    """
    found: dict[str, gs.Node] = {}
    for node in nodes_by_graph(graph):
        if node.op in _KNOWN_BODIES and node.domain in STANDARD_DOMAINS:
            continue
        for body in bodies(node):
            found |= {inner.name: node for inner in nodes_by_graph(body)}
    return found


def collect_tensors(graph: gs.Graph) -> dict[str, gs.Tensor]:
    """Return the tensors of `graph` and all its bodies by name."""
    return {name: tensor for one in list_graphs(graph) for name, tensor in one.tensors().items()}


def read_in_float(graph: gs.Graph, float_nodes: Collection[str]) -> set[str]:
    """Return the names of tensors that are outputs, of bodies too, or that `float_nodes` read."""
    readers = [node for node in nodes_by_graph(graph) if node.name in float_nodes]
    outputs = {t.name for one in list_graphs(graph) for t in one.outputs}
    return outputs | {t.name for node in readers for t in node.inputs}


def distances_upward(tensor: gs.Tensor) -> dict[str, int]:
    """Return {tensor name: longest number of nodes between it and `tensor`} for all its ancestors."""
    above: dict[str, set[str]] = {}
    waiting = [tensor]
    while waiting:
        current = waiting.pop()
        if current.name not in above:
            read = [parent for node in current.inputs for parent in node.inputs]
            parents = [parent for parent in read if not isinstance(parent, gs.Constant)]
            above[current.name] = {parent.name for parent in parents}
            waiting += parents
    distance = {tensor.name: 0}
    for name in reversed([*TopologicalSorter(above).static_order()]):  # a graph has no cycles
        for parent in above[name]:
            distance[parent] = max(distance.get(parent, 0), distance[name] + 1)
    return distance


def half_slots(node: onnx.NodeProto, opset: int, half: FloatInfo) -> frozenset[int]:
    """Return the inputs of a standard operator that may have the half type, by ONNX's schema."""
    schema = find_schema(node, opset)
    return frozenset() if schema is None else _slots(schema, schema.inputs, len(node.input), half)


def half_outputs(node: onnx.NodeProto, opset: int, half: FloatInfo) -> frozenset[int]:
    """Return the outputs of a standard operator that have the half type when its inputs do."""
    if node.op_type == "LayerNormalization":  # the others are statistics, of the type of stash_type
        return frozenset({0})
    schema = find_schema(node, opset)
    return frozenset() if schema is None else _slots(schema, schema.outputs, len(node.output), half)


def find_schema(node: onnx.NodeProto, opset: int) -> onnx.defs.OpSchema | None:
    """Return the definition of a standard operator at an opset; None if ONNX has none."""
    try:
        return onnx.defs.get_schema(node.op_type, opset, "")
    except onnx.defs.SchemaError:
        return None


def _slots(
    schema: onnx.defs.OpSchema,
    formals: list[onnx.defs.OpSchema.FormalParameter],
    count: int,
    half: FloatInfo,
) -> frozenset[int]:
    allowed = {c.type_param_str: set(c.allowed_type_strs) for c in schema.type_constraints}
    # The last parameter may be repeated.
    types = [formals[min(slot, len(formals) - 1)].type_str for slot in range(count)] if formals else []
    return frozenset(slot for slot, name in enumerate(types) if half.onnx_name in allowed.get(name, {name}))
