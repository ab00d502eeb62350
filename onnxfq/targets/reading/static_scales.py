"""Scales that most runtimes take: constant float32 numbers, integer zero points, one for an activation."""

from __future__ import annotations

from onnxfq.numerics.granularity import PER_TENSOR
from onnxfq.numerics.spec import QuantSpec


def refuse_scales(spec: QuantSpec, runtime: str) -> str:
    """Return why `runtime` cannot take scales or zero points of `spec`, with the remedy; empty if it can."""
    if spec.dynamic or spec.scale_type != "float32":
        return f"{runtime} takes constant float32 scales only; use dynamic: false"
    if spec.zero_point == "fractional":
        return f"{runtime} takes integer zero points only; use zero_point: integer"
    return ""


def refuse_several(spec: QuantSpec, runtime: str) -> str:
    """Return why `runtime` cannot take an activation of `spec` for its several scales; empty if it can."""
    if spec.observed_granularity == PER_TENSOR:
        return ""
    return f"{runtime} takes one scale of an activation; use granularity: per_tensor"
