"""Operators and limits of classic TensorRT alone: warnings, because TensorRT for RTX cannot confirm them.

Source: NVIDIA's documentation of TensorRT 11 and NvInfer.h of 11.4.
"""

from __future__ import annotations

from collections.abc import Iterator

from onnx import TensorProto

from onnxfq.targets.findings import Finding
from onnxfq.targets.reading.context import CheckContext, Rule, make_finding

CLASSIC_ALONE = frozenset({"DeformConv", "NonMaxSuppression", "NonZero", "RoiAlign"})
"""Operators that classic TensorRT has and TensorRT for RTX 1.7.1 lacks.

Source: onnx-tensorrt, docs/operators.md, release 10.1 and later.
"""
ON_CLASSIC = "TensorRT for RTX 1.7.1 lacks it, and classic TensorRT 10 and 11 have it; build there"

CLASSIC_OPSETS = (9, 25)
"""Least and largest opset of TensorRT 11 (NVIDIA, ONNX opset guide); TensorRT for RTX 1.7.1 takes 28 too."""

GROUP = 4
"""Number that divides the channels of a group of a classic int8 convolution."""
SCALE_RANK = 2
"""Most axes of scales and zero points in classic TensorRT (IQuantizeLayer)."""


def classic_opset(reading: CheckContext) -> Iterator[Finding]:
    """Warn of an opset that TensorRT 11 does not take."""
    low, high = CLASSIC_OPSETS
    if not low <= reading.index.opset <= high and reading.sites:
        message = (
            f"the model is at opset {reading.index.opset}, and TensorRT 11 takes {low} to {high}; TensorRT "
            f"for RTX 1.7.1 takes it; convert the model to opset {high} for other releases"
        )
        yield make_finding("classic-opset", "warning", reading.sites[0], message)


def classic_groups(reading: CheckContext) -> Iterator[Finding]:
    """Warn of grouped int8 convolutions whose groups have a number of channels that 4 does not divide."""
    for promised, _, q in reading.weights():
        site, shape = promised.site, q.shape
        groups = int(site.attrs.get("group", 1))
        if site.op != "Conv" or promised.expects != "low" or q.qtype != TensorProto.INT8 or groups == 1:
            continue
        if shape is None or shape[0] is None or shape[1] is None or shape[1] == 1:
            continue  # depthwise, with other kernels
        sizes = (shape[1], shape[0] // groups)
        if any(size % GROUP for size in sizes):
            message = (
                f"its groups have {sizes[0]} channels in and {sizes[1]} out, and classic TensorRT wants "
                f"multiples of {GROUP} in int8; TensorRT for RTX takes it"
            )
            yield make_finding("classic-groups", "warning", site, message)


def classic_scale_ranks(reading: CheckContext) -> Iterator[Finding]:
    """Warn of scales with more than two axes, for example of a stack of int4 matrices."""
    for q in reading.quantizers:
        stack = q.shape is not None and len(q.shape) == SCALE_RANK + 1  # a convolution takes no blocks at all
        if stack and q.is_constant and q.scale_shape is not None and len(q.scale_shape) > SCALE_RANK:
            message = (
                f"the scales of {q.data!r} have {len(q.scale_shape)} axes, and classic TensorRT takes up to "
                f"{SCALE_RANK}; TensorRT for RTX takes them; store one matrix each"
            )
            yield make_finding("classic-scales", "warning", q.site, message, q.data)


RULES: tuple[Rule, ...] = (classic_opset, classic_groups, classic_scale_ranks)
