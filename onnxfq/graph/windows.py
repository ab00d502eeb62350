"""Zeros around an image under a window: those that `auto_pad` computes from sizes."""

from __future__ import annotations

from collections.abc import Sequence


def automatic_pads(
    auto_pad: str,
    sizes: Sequence[int],
    kernel: Sequence[int],
    strides: Sequence[int],
    dilations: Sequence[int],
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return the zeros in front of and behind an image along each dimension (ONNX, Conv).

    Args:
        auto_pad: VALID, SAME_UPPER or SAME_LOWER.
        sizes: of the image.
        kernel: sizes of the window.
        strides: steps of the window.
        dilations: steps within the window.
    """
    if auto_pad == "VALID":
        return (0,) * len(sizes), (0,) * len(sizes)
    total = [
        max((-(-n // s) - 1) * s + d * (k - 1) + 1 - n, 0)
        for n, s, d, k in zip(sizes, strides, dilations, kernel, strict=True)
    ]
    small, large = tuple(n // 2 for n in total), tuple(n - n // 2 for n in total)
    return (small, large) if auto_pad == "SAME_UPPER" else (large, small)
