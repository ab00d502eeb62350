"""Placement for ONNX Runtime GenAI: what MatMulNBits can hold, by its schema in ONNX Runtime 1.32."""

from __future__ import annotations

from collections.abc import Collection

import onnx_graphsurgeon as gs

from onnxfq.documents.plan import Placement
from onnxfq.documents.recipe import Recipe
from onnxfq.placement.target_policy import NodeDecision, Operands, Slots, TargetPolicy

BITS = (2, 4, 8)
"""Widths of weights that the kernels for CPUs take."""

_LEAST_BLOCK = 16

_MATRIX = 2
"""Axes of the weight."""

ROUNDED_INPUT = "int8[-127,127]"
"""Numbers of the input at accuracy level 4; its scale is the largest magnitude of a block over 127."""


def _refuses(placement: Placement, operands: Operands) -> str:
    if _keeps_float(operands):  # the format of what stays in float does not matter
        return ""
    if placement.role == "activation":
        return _refuses_activation(placement)
    spec = placement.spec
    if not (not spec.qtype.is_float and spec.qtype.bits in BITS and spec.qtype.full_range):
        return f"MatMulNBits stores int2, int4, int8 and unsigned ones, not {spec.qtype}; use qtype: int4"
    if spec.scale_type != "float32" or spec.zero_point == "fractional":
        return "MatMulNBits has float scales and integer zero points; leave out scale_type and zero_point"
    size = spec.granularity.block_size
    if size is None or size < _LEAST_BLOCK or size & (size - 1):
        return (
            f"MatMulNBits has blocks of a power of two from {_LEAST_BLOCK} on, not {spec.granularity}; use "
            "granularity: blocked with block_size: 32, 64 or 128"
        )
    return ""


def _refuses_in_pairs(placement: Placement, operands: Operands) -> str:
    if placement.role == "activation" and not _keeps_float(operands):
        return "weights in DequantizeLinear have inputs in float; use activations: null, or target: genai"
    return _refuses(placement, operands)


def _refuses_activation(placement: Placement) -> str:
    spec = placement.spec
    is_rounded = spec.dynamic and spec.symmetric and spec.qtype.name == ROUNDED_INPUT
    if is_rounded and spec.granularity.block_size is not None:
        return ""
    return (
        f"MatMulNBits rounds its input to {ROUNDED_INPUT} in blocks, at run time, and not to {spec}; use "
        f"activations: null, or qtype: {ROUNDED_INPUT}, dynamic: true, granularity: blocked"
    )


def _keeps_float(operands: Operands) -> str:
    node = operands.node
    if node.op == "Gather":
        return _keeps_table(operands)
    weights = [placement for placement in operands.placements if placement.role == "weight"]
    on_the_right = node.op == "MatMul" and [one.tensor for one in weights] == [node.inputs[1].name]
    if on_the_right and len(operands.weight_shapes[weights[0].tensor]) == _MATRIX:
        return ""
    return "MatMulNBits multiplies by a constant matrix on the right of a MatMul only"


def _keeps_table(operands: Operands) -> str:
    """Return why a table stays in float: GatherBlockQuantized takes rows of whole blocks."""
    (placement,) = operands.placements
    rows = operands.weight_shapes.get(placement.tensor, ())
    size = placement.spec.granularity.block_size
    if len(rows) != _MATRIX or operands.node.attrs.get("axis", 0) != 0 or size is None or rows[1] % size:
        return f"GatherBlockQuantized takes rows of whole blocks of a matrix, not {list(rows)} by {size}"
    return ""


def _choose_tables(
    decisions: list[NodeDecision], nodes: Collection[gs.Node], recipe: Recipe
) -> list[NodeDecision]:
    """Leave out each Gather but the table of words, and this too unless the recipe quantizes it."""
    tables = (one for one in nodes if one.op == "Gather" and isinstance(one.inputs[0], gs.Constant))
    words = {table.name for table in tables if not table.inputs[1].inputs}
    if recipe.embeddings == "float":
        words = set()
    return [one for one in decisions if one.op_type != "Gather" or one.node in words]


POLICY = TargetPolicy(
    refuses=_refuses,
    keeps_float=_keeps_float,
    revise=_choose_tables,
    operators={"Gather": Slots(inputs=(0,), weights=(0,))},
)

PAIR_POLICY = TargetPolicy(refuses=_refuses_in_pairs, keeps_float=_keeps_float)
"""For weights in DequantizeLinear: the same blocks, without tables, whose rows would all be computed."""
