"""MobileNetV2 (Sandler, 2018) and MobileNetV3-Large (Howard, 2019) with folded batch normalization."""

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

# Kernel, inner channels, channels, gate, Hardswish in place of Relu, stride.
GATED = [
    (3, 16, 16, False, False, 1),
    (3, 64, 24, False, False, 2),
    (3, 72, 24, False, False, 1),
    (5, 72, 40, True, False, 2),
    (5, 120, 40, True, False, 1),
    (5, 120, 40, True, False, 1),
    (3, 240, 80, False, True, 2),
    (3, 200, 80, False, True, 1),
    (3, 184, 80, False, True, 1),
    (3, 184, 80, False, True, 1),
    (3, 480, 112, True, True, 1),
    (3, 672, 112, True, True, 1),
    (5, 672, 160, True, True, 2),
    (5, 960, 160, True, True, 1),
    (5, 960, 160, True, True, 1),
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


def mobilenetv3(batch: Batch) -> onnx.ModelProto:
    """Return MobileNetV3-Large: gates behind depthwise convolutions, Hardswish, 62 Conv and 2 Gemm."""
    b = Builder()

    def act(x: str, hard: bool) -> str:
        return b.node("HardSwish" if hard else "Relu", [x])

    x, channels = act(b.conv("x", 3, 16, 3, 2), True), 16
    for kernel, inner, width, gated, hard, stride in GATED:
        y = x if inner == channels else act(b.conv(x, channels, inner, 1), hard)
        y = act(b.conv(y, inner, inner, kernel, stride, group=inner), hard)
        if gated:
            mean = b.node("GlobalAveragePool", [y])
            gate = b.conv(b.node("Relu", [b.conv(mean, inner, inner // 4, 1)]), inner // 4, inner, 1)
            y = b.node("Mul", [y, b.node("HardSigmoid", [gate], alpha=1 / 6)])
        y = b.conv(y, inner, width, 1, gain=1.0)
        x = b.node("Add", [x, y]) if stride == 1 and channels == width else y
        channels = width
    x = b.node("GlobalAveragePool", [act(b.conv(x, channels, 960, 1), True)])
    x = act(b.node("Gemm", [b.node("Flatten", [x]), b.weight(1280, 960)], transB=1), True)
    b.node("Gemm", [x, b.weight(1000, 1280)], transB=1)
    return b.model("mobilenetv3", batch)
