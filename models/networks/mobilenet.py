"""MobileNetV2 with folded batch normalization (Sandler, 2018)."""

from __future__ import annotations

import numpy as np
import onnx

from networks.builder import Batch, Builder

# Expansion, channels, blocks, stride of the first block.
INVERTED = [
    (1, 16, 1, 1),
    (6, 24, 2, 2),
    (6, 32, 3, 2),
    (6, 64, 4, 2),
    (6, 96, 3, 1),
    (6, 160, 3, 2),
    (6, 320, 1, 1),
]


def mobilenetv2(batch: Batch) -> onnx.ModelProto:
    """Return MobileNetV2 with folded batch normalization: 52 Conv, 17 of them depthwise, and 1 Gemm."""
    b = Builder()
    zero, six = b.constant(np.float32(0)), b.constant(np.float32(6))

    def relu6(x: str) -> str:
        return b.node("Clip", [x, zero, six])

    x, channels = relu6(b.conv("x", 3, 32, 3, 2)), 32
    for expansion, width, blocks, stride in INVERTED:
        for block in range(blocks):
            step, inner, y = stride if block == 0 else 1, channels * expansion, x
            if expansion != 1:
                y = relu6(b.conv(y, channels, inner, 1))
            y = relu6(b.conv(y, inner, inner, 3, step, group=inner))
            y = b.conv(y, inner, width, 1, gain=1.0)
            x = b.node("Add", [x, y]) if step == 1 and channels == width else y
            channels = width
    x = b.node("Flatten", [b.node("GlobalAveragePool", [relu6(b.conv(x, channels, 1280, 1))])])
    b.node("Gemm", [x, b.weight(1000, 1280)], transB=1)
    return b.model("mobilenetv2", batch)
