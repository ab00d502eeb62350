"""Dense-prediction networks: a U-Net and a detector with a feature pyramid."""

from __future__ import annotations

import numpy as np
import onnx

from networks.builder import Batch, Builder


def unet(batch: Batch) -> onnx.ModelProto:
    """Return a U-Net of 4 levels, 128 x 128 (Ronneberger, 2015): 15 Conv, 3 ConvTranspose, 3 Concat."""
    b, widths = Builder(), (32, 64, 128, 256)
    x, channels, skips = "x", 3, []
    for width in widths:
        if skips:
            x = b.node("MaxPool", [x], kernel_shape=[2, 2], strides=[2, 2])
        x = _pair(b, x, channels, width)
        skips.append(x)
        channels = width
    for width, skip in zip(widths[-2::-1], skips[-2::-1], strict=True):
        weight = b.weight(channels, width, 2, 2, gain=1.0)
        x = b.node("ConvTranspose", [x, weight, b.bias(width)], kernel_shape=[2, 2], strides=[2, 2])
        x = _pair(b, b.node("Concat", [skip, x], axis=1), 2 * width, width)
        channels = width
    mask = b.node("Sigmoid", [b.conv(x, channels, 1, 1, gain=1.0)])
    return b.model("unet", batch, {"x": (3, 128, 128)}, {mask: (1, 128, 128)})


def _pair(b: Builder, x: str, inputs: int, outputs: int) -> str:
    """Add two convolutions of 3 x 3."""
    for channels in (inputs, outputs):
        x = b.node("Relu", [b.conv(x, channels, outputs, 3)])
    return x


def detector(batch: Batch) -> onnx.ModelProto:
    """Return a detector, 160 x 160: SiLU backbone, Resize-Concat pyramid, one head for three levels."""
    b, widths, outputs = Builder(), (32, 64, 128), 8
    x, channels, levels = _silu(b, b.conv("x", 3, 16, 3, 2)), 16, []
    for width in widths:
        x = _silu(b, b.conv(x, channels, width, 3, 2))
        x = b.node("Add", [x, _silu(b, b.conv(x, width, width, 3))])
        levels.append(x)
        channels = width
    twice = b.constant(np.array([1, 1, 2, 2], np.float32))
    for level in (1, 0):
        up = _silu(b, b.conv(levels[level + 1], widths[level + 1], widths[level], 1))
        up = b.node("Resize", [up, "", twice], mode="nearest", nearest_mode="floor")
        joined = b.node("Concat", [up, levels[level]], axis=1)
        levels[level] = _silu(b, b.conv(joined, 2 * widths[level], widths[level], 3))
    flat = b.constant(np.array([0, outputs, -1], np.int64))
    boxes = []
    for level, width in zip(levels, widths, strict=True):
        head = b.conv(_silu(b, b.conv(level, width, 32, 3)), 32, outputs, 1, gain=1.0)
        boxes.append(b.node("Reshape", [b.node("Sigmoid", [head]), flat]))
    found = b.node("Transpose", [b.node("Concat", boxes, axis=2)], perm=[0, 2, 1])
    return b.model("detector", batch, {"x": (3, 160, 160)}, {found: (40 * 40 + 20 * 20 + 10 * 10, outputs)})


def _silu(b: Builder, x: str) -> str:
    return b.node("Mul", [x, b.node("Sigmoid", [x])])
