"""Facts about half types in ONNX: which operators take and give them."""

from __future__ import annotations

import onnx

from onnxfq.numerics.float_types import FloatInfo


def half_slots(node: onnx.NodeProto, opset: int, half: FloatInfo) -> frozenset[int]:
    """Return the inputs of a standard operator that may be of the half type, by ONNX's schema."""
    schema = _schema(node, opset)
    return frozenset() if schema is None else _slots(schema, schema.inputs, len(node.input), half)


def half_outputs(node: onnx.NodeProto, opset: int, half: FloatInfo) -> frozenset[int]:
    """Return the outputs of a standard operator that are of the half type when its inputs are."""
    if node.op_type == "LayerNormalization":  # the others are statistics, of the type of stash_type
        return frozenset({0})
    schema = _schema(node, opset)
    return frozenset() if schema is None else _slots(schema, schema.outputs, len(node.output), half)


def _schema(node: onnx.NodeProto, opset: int) -> onnx.defs.OpSchema | None:
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
