"""Fields of an ONNX node as plain values: attributes, inputs by slot, and the type of quantized numbers."""

from __future__ import annotations

from typing import Any

import onnx
from onnx import TensorProto, helper


def attributes_of(node: onnx.NodeProto) -> dict[str, Any]:
    """Return the attributes of `node` by name."""
    return {a.name: helper.get_attribute_value(a) for a in node.attribute}


def input_name(node: onnx.NodeProto, slot: int | None) -> str:
    """Return the name of an input; empty if it is left out."""
    return node.input[slot] if slot is not None and slot < len(node.input) else ""


def numbers_type(node: onnx.NodeProto, zero_point: int | None) -> int:
    """Return the element type of the numbers that a QuantizeLinear gives.

    Args:
        node: the QuantizeLinear.
        zero_point: element type of its zero point, which decides; None without one.
    """
    return int(zero_point or attributes_of(node).get("output_dtype") or TensorProto.UINT8)
