"""Reasons for tensors and nodes that stay in float."""

from __future__ import annotations

from collections.abc import Container, Iterator, Sequence

import numpy as np
import onnx_graphsurgeon as gs

from onnxfq.documents.plan import Placement, Skipped
from onnxfq.documents.recipe import Recipe
from onnxfq.graph.follow import follow_values, is_constant
from onnxfq.graph.ops import explain_opaque, is_weighted
from onnxfq.graph.queries import collect_tensors, dtype_name, float_type, nodes_by_graph, nodes_out_of_reach
from onnxfq.numerics.float_types import FLOAT_CODES, FLOAT_DTYPES
from onnxfq.numerics.qtypes import QTYPES
from onnxfq.placement.target_policy import TargetPolicy
from onnxfq.support.reasons import Reason

_FLOATS = (*FLOAT_DTYPES, np.float64)
# Types that NumPy lacks appear as ONNX type numbers: bfloat16 and the float8 types.
_FLOAT_CODES = FLOAT_CODES | {one.onnx_type for one in QTYPES.values() if one.is_float and one.bits == 8}


KEPT_OPERATOR = "kept-operator"
"""Rule of an operator between pairs that an override keeps in float."""


def kept_operators(
    graph: gs.Graph, placements: Sequence[Placement], recipe: Recipe, known: Container[str]
) -> Iterator[Skipped]:
    """Yield a reason for each operator next to quantized activations that an override keeps in float.

    Args:
        graph: the model, bodies included.
        placements: of the quantized tensors.
        recipe: its overrides.
        known: names of nodes that the plan speaks of already.
    """
    placed = {one.tensor for one in placements if one.role == "activation"}
    for node in nodes_by_graph(graph) if recipe.overrides else ():
        if node.name in known or placed.isdisjoint(one.name for one in (*node.inputs, *node.outputs)):
            continue
        why = recipe.explain_float(node.name, node.op, "")
        if why:
            yield Skipped(name=node.name, kind="node", op_type=node.op, why=Reason(KEPT_OPERATOR, why))


def float_tensors(
    graph: gs.Graph, placements: Sequence[Placement], kept: dict[str, str], policy: TargetPolicy
) -> Iterator[Skipped]:
    """Yield a reason for every float tensor without a placement, bodies included; ends of a Clip have none.

    Args:
        graph: the model.
        placements: placements of the quantized tensors.
        kept: reason by node name, for weighted nodes that stay in float.
        policy: policy of the target, with its reason for float biases.
    """
    placed, wholes = {placement.tensor for placement in placements}, _wholes(graph, placements)
    weights = _find_moved_weights(graph, placed)
    for tensor in sorted(collect_tensors(graph).values(), key=lambda t: str(t.name)):
        if tensor.name in placed or not _is_float(tensor) or _is_limit(tensor):
            continue
        producer = (
            tensor.inputs[0].op if tensor.inputs else ("constant" if is_constant(tensor) else "model input")
        )
        why = _explain_skip(tensor, kept, policy)
        if tensor.name in weights:
            why = Reason("moved-weight", f"the quantized weight {weights[tensor.name]!r}, transposed")
        if tensor.name in wholes:
            why = Reason("moved-part", f"moved, or a part, of the quantized {wholes[tensor.name]!r}")
        yield Skipped(name=tensor.name, kind="tensor", op_type=producer, why=why)


def opaque_operators(graph: gs.Graph) -> Iterator[Skipped]:
    """Yield a reason for operators out of reach, or with inner products such as LSTM and fused attention."""
    beyond = nodes_out_of_reach(graph)
    for node in nodes_by_graph(graph):
        why = Reason("opaque", explain_opaque(node))
        if node.name in beyond and is_weighted(node):
            around = beyond[node.name]
            why = Reason(
                "out-of-reach",
                f"in the body of {around.op} {around.name!r}, where no range can be observed; export the "
                "model with a Loop instead",
            )
        if why:
            yield Skipped(name=node.name, kind="node", op_type=node.op, why=why)


def _explain_skip(tensor: gs.Tensor, kept: dict[str, str], policy: TargetPolicy) -> Reason:
    readers = list(tensor.outputs)
    if not readers:
        return Reason("output", "output of the model or of a body")
    weighted = [node for node in readers if is_weighted(node)]
    if weighted and all(tensor is not slot for node in weighted for slot in node.inputs[:2]):
        return Reason("bias", policy.bias)
    for node in weighted:
        if node.name in kept:
            sentence = f"read by {node.op} {node.name!r}, which stays in float: {kept[node.name]}"
            return Reason("read-in-float", sentence)
    if weighted:
        readers_ops = ", ".join(sorted({n.op for n in weighted}))
        return Reason("weights-only", f"the recipe quantizes the weight only (read by {readers_ops})")
    ops = ", ".join(sorted({node.op for node in readers}))
    if float_type(tensor) is None:
        return Reason("float-type", f"{dtype_name(tensor)}, which is not quantized (read by {ops})")
    looked_up = [node for node in readers if node.op == "Gather" and tensor is node.inputs[0]]
    if is_constant(tensor) and len(looked_up) == len(readers):
        return Reason("embedding", "embedding table: looked up, not multiplied")
    if is_constant(tensor):
        return Reason("constant", f"constant of {ops}")
    return Reason("not-read", f"no quantized operator reads it (read by {ops})")


def _wholes(graph: gs.Graph, placements: Sequence[Placement]) -> dict[str, str]:
    """Return, by tensor name, the quantized activation that each tensor is moved or split from."""
    nodes = {node.name: node for node in nodes_by_graph(graph)}
    return {
        tensor.name: placement.tensor
        for placement in placements
        if placement.role == "activation"
        for use in placement.uses
        if use.node
        for tensor in follow_values(nodes[use.node], use.input)
    }


def _find_moved_weights(graph: gs.Graph, placed: set[str]) -> dict[str, str]:
    """Return the quantized constant of each tensor that Transpose and Identity nodes make of one."""
    weights: dict[str, str] = {}
    for node in nodes_by_graph(graph):
        if node.op in ("Transpose", "Identity"):
            source = node.inputs[0].name
            if is_constant(node.inputs[0]) and source in placed:
                weights[node.outputs[0].name] = source
            elif source in weights:
                weights[node.outputs[0].name] = weights[source]
    return weights


def _is_limit(tensor: gs.Tensor) -> bool:
    ends = [node.op == "Clip" and tensor is not node.inputs[0] for node in tensor.outputs]
    return is_constant(tensor) and bool(ends) and all(ends)


def _is_float(tensor: gs.Tensor) -> bool:
    if isinstance(tensor, gs.Variable) and tensor.type != "tensor_type":  # a sequence, an optional, a map
        return False
    if tensor.dtype is None:  # outputs of a custom operator may be float
        return bool(tensor.name)
    if isinstance(tensor.dtype, int):
        return tensor.dtype in _FLOAT_CODES
    return np.dtype(tensor.dtype) in _FLOATS
