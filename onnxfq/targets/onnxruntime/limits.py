"""Scales that ONNX Runtime's fused kernels take: above ORT_ENABLE_BASIC a session with others fails.

Tried on ONNX Runtime 1.31.1, one operator at a time.
"""

from __future__ import annotations

from onnxfq.graph.follow import Node
from onnxfq.targets.reading.limits import Product, TargetLimit

# In float behind several scales.
_NOT_FUSED = ("ConvTranspose", "Gemm")

STACKS = "ONNX Runtime's kernels of MatMul take one scale of a weight with more than two axes"


def copies(node: Node) -> bool:
    """Tell whether a Resize copies numbers: ONNX Runtime interpolates in float, and copies integers."""
    return bool(node.attrs.get("mode", "nearest") == "nearest")


def _explain_activation(product: Product) -> str:
    """Refuse uint8 activations with several scales: the fused kernels take one, and the session fails."""
    if product.is_weight or product.numbers != "uint8" or product.scales == "one" or product.op in _NOT_FUSED:
        return ""
    return (
        f"ONNX Runtime's kernels of {product.op} take one scale of a uint8 input; use qtype: int8, "
        "granularity: per_tensor, or target simulation"
    )


def _explain_stack(product: Product) -> str:
    """Refuse stacked weights of a MatMul with several scales, for which the fused kernel fails."""
    stacked = product.op == "MatMul" and product.is_weight and len(product.kernel or ()) > 2
    fused = stacked and not product.weight_only and product.scales != "one"
    return f"{STACKS}; use granularity: per_tensor, or run it at ORT_ENABLE_BASIC" if fused else ""


ACTIVATION = TargetLimit("activation-scales", "refused", _explain_activation)

WEIGHT = TargetLimit("weight-scales", "refused", _explain_stack)
"""The planner gives such a weight one scale."""
