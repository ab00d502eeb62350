"""ResNet-18 and ResNet-50 with folded batch normalization (He, 2015)."""

from __future__ import annotations

import onnx

from networks.builder import Batch, Builder

DEEP = [(64, 3, 1), (128, 4, 2), (256, 6, 2), (512, 3, 2)]  # width, blocks, stride of the first block
SHALLOW = [(64, 2, 1), (128, 2, 2), (256, 2, 2), (512, 2, 2)]


def resnet50(batch: Batch) -> onnx.ModelProto:
    """Return ResNet-50 with folded batch normalization: 53 Conv and 1 Gemm, 224 x 224."""
    b = Builder()
    x = b.node("Relu", [b.conv("x", 3, 64, 7, 2)])
    x = b.node("MaxPool", [x], kernel_shape=[3, 3], strides=[2, 2], pads=[1, 1, 1, 1])
    channels = 64
    for width, blocks, stride in DEEP:
        for block in range(blocks):
            x = _bottleneck(b, x, channels, width, stride if block == 0 else 1)
            channels = 4 * width
    x = b.node("Flatten", [b.node("GlobalAveragePool", [x])])
    b.node("Gemm", [x, b.weight(1000, channels)], transB=1)
    return b.model("resnet50", batch)


def resnet18(batch: Batch) -> onnx.ModelProto:
    """Return ResNet-18: 20 Conv and 1 Gemm, 224 x 224."""
    b = Builder()
    x = b.node("Relu", [b.conv("x", 3, 64, 7, 2)])
    x = b.node("MaxPool", [x], kernel_shape=[3, 3], strides=[2, 2], pads=[1, 1, 1, 1])
    channels = 64
    for width, blocks, stride in SHALLOW:
        for block in range(blocks):
            x = _basic(b, x, channels, width, stride if block == 0 else 1)
            channels = width
    x = b.node("Flatten", [b.node("GlobalAveragePool", [x])])
    b.node("Gemm", [x, b.weight(1000, channels)], transB=1)
    return b.model("resnet18", batch)


def _bottleneck(b: Builder, x: str, inputs: int, width: int, stride: int) -> str:
    """Add 1x1, 3x3, 1x1 and the shortcut, which is a convolution if the shape changes."""
    y = b.node("Relu", [b.conv(x, inputs, width, 1)])
    y = b.node("Relu", [b.conv(y, width, width, 3, stride)])
    y = b.conv(y, width, 4 * width, 1, gain=0.2)
    if inputs != 4 * width:
        x = b.conv(x, inputs, 4 * width, 1, stride, gain=1.0)
    return b.node("Relu", [b.node("Add", [x, y])])


def _basic(b: Builder, x: str, inputs: int, width: int, stride: int) -> str:
    """Add two 3x3 and the shortcut."""
    y = b.node("Relu", [b.conv(x, inputs, width, 3, stride)])
    y = b.conv(y, width, width, 3, gain=0.2)
    if inputs != width:
        x = b.conv(x, inputs, width, 1, stride, gain=1.0)
    return b.node("Relu", [b.node("Add", [x, y])])
