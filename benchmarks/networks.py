"""Networks of well-known shapes with random weights: enough for times, useless for accuracy."""

from __future__ import annotations

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

STAGES = [(64, 3, 1), (128, 4, 2), (256, 6, 2), (512, 3, 2)]  # width, blocks, stride of the first block


class Builder:
    """Collects nodes and weights; a method returns the name of the tensor it made."""

    def __init__(self) -> None:
        """Start empty."""
        self.rng = np.random.default_rng(0)
        self.nodes: list[onnx.NodeProto] = []
        self.weights: dict[str, np.ndarray] = {}

    def node(self, op: str, inputs: list[str], **attributes: object) -> str:
        """Append a node with one output."""
        name = f"{op.lower()}_{len(self.nodes)}"
        self.nodes.append(helper.make_node(op, inputs, [name], name=name, **attributes))
        return name

    def weight(self, *shape: int, gain: float = 2.0) -> str:
        """Random weight; its spread keeps activations at the same size from layer to layer."""
        name = f"weight_{len(self.weights)}"
        spread = np.sqrt(gain / np.prod(shape[1:]))
        self.weights[name] = (self.rng.standard_normal(shape) * spread).astype(np.float32)
        return name

    def constant(self, value: np.ndarray) -> str:
        """Constant of any type."""
        name = f"constant_{len(self.weights)}"
        self.weights[name] = value
        return name

    def bias(self, size: int) -> str:
        """Small random bias."""
        return self.constant((self.rng.standard_normal(size) * 0.1).astype(np.float32))

    def conv(
        self,
        x: str,
        inputs: int,
        outputs: int,
        kernel: int,
        stride: int = 1,
        *,
        gain: float = 2.0,
        group: int = 1,
    ) -> str:
        """Convolution with bias, as left by folding a batch normalization."""
        bias = self.bias(outputs)
        operands = [x, self.weight(outputs, inputs // group, kernel, kernel, gain=gain), bias]
        shape = {"kernel_shape": [kernel] * 2, "strides": [stride] * 2, "pads": [kernel // 2] * 4}
        return self.node("Conv", operands, group=group, **shape)

    def linear(self, x: str, inputs: int, outputs: int) -> str:
        """MatMul with a constant, and the bias added."""
        weight = self.constant(self.weight_values(inputs, outputs))
        return self.node("Add", [self.node("MatMul", [x, weight]), self.bias(outputs)])

    def weight_values(self, inputs: int, outputs: int) -> np.ndarray:
        """Random matrix that keeps the size of what it multiplies."""
        return (self.rng.standard_normal((inputs, outputs)) / np.sqrt(inputs)).astype(np.float32)

    def model(self, name: str, batch: int) -> onnx.ModelProto:
        """The graph so far, from 224 x 224 images to 1000 classes."""
        graph = helper.make_graph(
            self.nodes,
            name,
            [helper.make_tensor_value_info("x", TensorProto.FLOAT, [batch, 3, 224, 224])],
            [helper.make_tensor_value_info(self.nodes[-1].output[0], TensorProto.FLOAT, [batch, 1000])],
            [numpy_helper.from_array(value, name) for name, value in self.weights.items()],
        )
        return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)

    def bottleneck(self, x: str, inputs: int, width: int, stride: int) -> str:
        """1x1, 3x3, 1x1 and the shortcut, which is a convolution where the shape changes."""
        y = self.node("Relu", [self.conv(x, inputs, width, 1)])
        y = self.node("Relu", [self.conv(y, width, width, 3, stride)])
        y = self.conv(y, width, 4 * width, 1, gain=0.2)
        if inputs != 4 * width:
            x = self.conv(x, inputs, 4 * width, 1, stride, gain=1.0)
        return self.node("Relu", [self.node("Add", [x, y])])


def resnet50(batch: int) -> onnx.ModelProto:
    """ResNet-50 with folded batch normalization: 53 Conv and 1 Gemm, 224 x 224."""
    b = Builder()
    x = b.node("Relu", [b.conv("x", 3, 64, 7, 2)])
    x = b.node("MaxPool", [x], kernel_shape=[3, 3], strides=[2, 2], pads=[1, 1, 1, 1])
    channels = 64
    for width, blocks, stride in STAGES:
        for block in range(blocks):
            x = b.bottleneck(x, channels, width, stride if block == 0 else 1)
            channels = 4 * width
    x = b.node("Flatten", [b.node("GlobalAveragePool", [x])])
    b.node("Gemm", [x, b.weight(1000, channels)], transB=1)
    return b.model("resnet50", batch)


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


def mobilenetv2(batch: int) -> onnx.ModelProto:
    """MobileNetV2 with folded batch normalization: 52 Conv, 17 of them depthwise, and 1 Gemm."""
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


def vit_b16(batch: int) -> onnx.ModelProto:
    """ViT-B/16: 12 layers, 768 wide, 12 heads, 197 tokens; 72 linear layers and 24 products of attention."""
    b, width, heads, tokens = Builder(), 768, 12, 197
    by_head = b.constant(np.array([batch, tokens, heads, width // heads], np.int64))
    joined = b.constant(np.array([batch, tokens, width], np.int64))
    scale, half, one = (b.constant(np.float32(v)) for v in (np.sqrt(heads / width), 0.5, 1.0))
    root_half = b.constant(np.float32(np.sqrt(0.5)))

    def norm(x: str) -> str:
        ones, zeros = b.constant(np.ones(width, np.float32)), b.constant(np.zeros(width, np.float32))
        return b.node("LayerNormalization", [x, ones, zeros], axis=-1)

    def head(x: str, order: list[int]) -> str:
        return b.node("Transpose", [b.node("Reshape", [b.linear(x, width, width), by_head])], perm=order)

    def gelu(x: str) -> str:
        erf = b.node("Erf", [b.node("Mul", [x, root_half])])
        return b.node("Mul", [b.node("Mul", [x, b.node("Add", [erf, one])]), half])

    x = b.node("Conv", ["x", b.weight(width, 3, 16, 16)], kernel_shape=[16, 16], strides=[16, 16])
    x = b.node("Reshape", [x, b.constant(np.array([batch, width, 196], np.int64))])
    x = b.node("Transpose", [x], perm=[0, 2, 1])
    x = b.node("Concat", [b.constant(np.zeros((batch, 1, width), np.float32)), x], axis=1)
    for _ in range(12):
        y = norm(x)
        query, key, value = head(y, [0, 2, 1, 3]), head(y, [0, 2, 3, 1]), head(y, [0, 2, 1, 3])
        weights = b.node("Softmax", [b.node("Mul", [b.node("MatMul", [query, key]), scale])], axis=-1)
        y = b.node("Transpose", [b.node("MatMul", [weights, value])], perm=[0, 2, 1, 3])
        x = b.node("Add", [x, b.linear(b.node("Reshape", [y, joined]), width, width)])
        x = b.node("Add", [x, b.linear(gelu(b.linear(norm(x), width, 4 * width)), 4 * width, width)])
    x = b.node("Gather", [norm(x), b.constant(np.array(0, np.int64))], axis=1)
    b.node("Gemm", [x, b.weight(1000, width)], transB=1)
    return b.model("vit_b16", batch)


NETWORKS = {"resnet50": resnet50, "mobilenetv2": mobilenetv2, "vit_b16": vit_b16}
