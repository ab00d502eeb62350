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

    def conv(self, x: str, inputs: int, outputs: int, kernel: int, stride: int = 1, gain: float = 2.0) -> str:
        """Convolution with bias, as left by folding a batch normalization."""
        bias = f"bias_{len(self.weights)}"
        self.weights[bias] = (self.rng.standard_normal(outputs) * 0.1).astype(np.float32)
        operands = [x, self.weight(outputs, inputs, kernel, kernel, gain=gain), bias]
        shape = {"kernel_shape": [kernel] * 2, "strides": [stride] * 2, "pads": [kernel // 2] * 4}
        return self.node("Conv", operands, **shape)

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
    graph = helper.make_graph(
        b.nodes,
        "resnet50",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [batch, 3, 224, 224])],
        [helper.make_tensor_value_info(b.nodes[-1].output[0], TensorProto.FLOAT, [batch, 1000])],
        [numpy_helper.from_array(value, name) for name, value in b.weights.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
