"""Why a tensor or node stays in float: a reason for each, so that nothing is silent."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import onnx_graphsurgeon as gs

from onnxfq.documents.plan import Placement, Skipped
from onnxfq.graph.follow import carried_from, is_constant
from onnxfq.graph.ops import is_weighted, why_opaque
from onnxfq.graph.queries import all_tensors, dtype_name, float_type, nodes_by_graph, nodes_out_of_reach
from onnxfq.numerics.float_types import FLOAT_CODES, FLOAT_DTYPES
from onnxfq.numerics.qtypes import QTYPES
from onnxfq.placement.target_policy import TargetPolicy

_FLOATS = (*FLOAT_DTYPES, np.float64)
# What NumPy lacks comes as ONNX's number: bfloat16 and the float8 types.
_FLOAT_CODES = FLOAT_CODES | {one.onnx_type for one in QTYPES.values() if one.is_float and one.bits == 8}


def float_tensors(
    graph: gs.Graph, placements: Sequence[Placement], kept: dict[str, str], policy: TargetPolicy
) -> Iterator[Skipped]:
    """Yield a reason for every float tensor, of bodies too, that `placements` leave out.

    kept: reason by node name for weighted nodes that stay in float.
    """
    placed, wholes = {placement.tensor for placement in placements}, _wholes(graph, placements)
    for tensor in sorted(all_tensors(graph).values(), key=lambda t: str(t.name)):
        if tensor.name in placed or not _is_float(tensor):
            continue
        producer = (
            tensor.inputs[0].op if tensor.inputs else ("constant" if is_constant(tensor) else "model input")
        )
        source = _moved_weight(tensor, placed)
        why = f"the quantized weight {source!r}, transposed" if source else _why(tensor, kept, policy)
        if tensor.name in wholes:
            why = f"moved, or a part, of the quantized {wholes[tensor.name]!r}"
        yield Skipped(name=tensor.name, kind="tensor", op_type=producer, why=why)


def opaque_operators(graph: gs.Graph) -> Iterator[Skipped]:
    """Yield a reason for operators that multiply inside, as LSTM and fused attention, or out of reach."""
    beyond = nodes_out_of_reach(graph)
    for node in nodes_by_graph(graph):
        why = why_opaque(node)
        if node.name in beyond and is_weighted(node):
            around = beyond[node.name]
            why = (
                f"in the body of {around.op} {around.name!r}, out of which no range can be observed; export "
                "the model with a Loop in its place"
            )
        if why:
            yield Skipped(name=node.name, kind="node", op_type=node.op, why=why)


def _why(tensor: gs.Tensor, kept: dict[str, str], policy: TargetPolicy) -> str:
    readers = list(tensor.outputs)
    if not readers:
        return "output of the model or of a body"
    weighted = [node for node in readers if is_weighted(node)]
    if weighted and all(tensor is not slot for node in weighted for slot in node.inputs[:2]):
        return policy.bias
    for node in weighted:
        if node.name in kept:
            return f"read by {node.op} {node.name!r}, which stays in float: {kept[node.name]}"
    if weighted:
        return f"the recipe quantizes the weight only (read by {', '.join(sorted({n.op for n in weighted}))})"
    ops = ", ".join(sorted({node.op for node in readers}))
    if float_type(tensor) is None:
        return f"{dtype_name(tensor)}, which is not quantized (read by {ops})"
    looked_up = [node for node in readers if node.op == "Gather" and tensor is node.inputs[0]]
    if is_constant(tensor) and len(looked_up) == len(readers):
        return "embedding table: looked up, not multiplied"
    return f"constant of {ops}" if is_constant(tensor) else f"no quantized operator reads it (read by {ops})"


def _wholes(graph: gs.Graph, placements: Sequence[Placement]) -> dict[str, str]:
    """Return the quantized activation that moves and splits make a tensor of, by the tensor's name."""
    nodes = {node.name: node for node in nodes_by_graph(graph)}
    return {
        tensor.name: placement.tensor
        for placement in placements
        if placement.role == "activation"
        for use in placement.uses
        for tensor in carried_from(nodes[use.node], use.input)
    }


def _moved_weight(tensor: gs.Tensor, placed: set[str]) -> str:
    """Return the quantized constant that Transpose and Identity nodes make `tensor` of; else nothing."""
    while tensor.inputs and tensor.inputs[0].op in ("Transpose", "Identity"):
        tensor = tensor.inputs[0].inputs[0]
        if is_constant(tensor) and tensor.name in placed:
            return str(tensor.name)
    return ""


def _is_float(tensor: gs.Tensor) -> bool:
    if isinstance(tensor, gs.Variable) and tensor.type != "tensor_type":  # a sequence, an optional, a map
        return False
    if tensor.dtype is None:  # what a custom operator gives may be float
        return bool(tensor.name)
    if isinstance(tensor.dtype, int):
        return tensor.dtype in _FLOAT_CODES
    return np.dtype(tensor.dtype) in _FLOATS
