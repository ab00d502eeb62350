"""Builder of networks node by node; random weights, from one seed, keep activations at one magnitude."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

Batch = int | str
"""A number of samples, or the name of an open dimension."""

IMAGENET: Mapping[str, Sequence[int]] = {"x": (3, 224, 224)}


class Builder:
    """Collector of nodes and weights; each method returns the name of its output tensor."""

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
        """Add a random weight; its spread keeps activations at one magnitude from layer to layer."""
        name = f"weight_{len(self.weights)}"
        spread = np.sqrt(gain / np.prod(shape[1:]))
        self.weights[name] = (self.rng.standard_normal(shape) * spread).astype(np.float32)
        return name

    def constant(self, value: np.ndarray) -> str:
        """Add a constant of any type."""
        name = f"constant_{len(self.weights)}"
        self.weights[name] = value
        return name

    def bias(self, size: int) -> str:
        """Add a small random bias."""
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
        """Add a convolution with bias, as after folding a batch normalization."""
        bias = self.bias(outputs)
        operands = [x, self.weight(outputs, inputs // group, kernel, kernel, gain=gain), bias]
        shape = {"kernel_shape": [kernel] * 2, "strides": [stride] * 2, "pads": [kernel // 2] * 4}
        return self.node("Conv", operands, group=group, **shape)

    def linear(self, x: str, inputs: int, outputs: int) -> str:
        """Add a MatMul with a constant, and a bias."""
        weight = self.constant(self.weight_values(inputs, outputs))
        return self.node("Add", [self.node("MatMul", [x, weight]), self.bias(outputs)])

    def weight_values(self, inputs: int, outputs: int) -> np.ndarray:
        """Return a random matrix that keeps the magnitude of its input."""
        return (self.rng.standard_normal((inputs, outputs)) / np.sqrt(inputs)).astype(np.float32)

    def model(
        self,
        name: str,
        batch: Batch,
        inputs: Mapping[str, Sequence[int]] = IMAGENET,
        outputs: Mapping[str, Sequence[int]] | None = None,
        input_type: int = TensorProto.FLOAT,
    ) -> onnx.ModelProto:
        """Return the graph so far; sizes exclude the batch. The last tensor has 1000 classes by default."""
        outputs = outputs or {self.nodes[-1].output[0]: (1000,)}
        graph = helper.make_graph(
            self.nodes,
            name,
            [helper.make_tensor_value_info(n, input_type, [batch, *sizes]) for n, sizes in inputs.items()],
            [
                helper.make_tensor_value_info(n, TensorProto.FLOAT, [batch, *sizes])
                for n, sizes in outputs.items()
            ],
            [numpy_helper.from_array(value, name) for name, value in self.weights.items()],
        )
        return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
