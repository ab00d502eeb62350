"""`GraphEditor`: a copy of a file whose tensors, pairs and links change; the rest keeps its bytes."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import helper, numpy_helper

from onnxfq.graph.external.tensor import tensor_array
from onnxfq.graph.walk import rename_tensors
from onnxfq.quantized.source_graph import SourceGraph


class GraphEditor(SourceGraph):
    """A copy of a file."""

    def __init__(self, proto: onnx.ModelProto) -> None:
        """Copy the model."""
        super().__init__(proto, "", enters_bodies=True, keeps_names=False)

    def store(self, name: str, values: NDArray[np.generic]) -> None:
        """Give an initializer other values, in its type and shape."""
        tensor = self.constants[name]
        kind = tensor_array(tensor).dtype
        tensor.CopyFrom(numpy_helper.from_array(values.astype(kind).reshape(tensor.dims), name))

    def add(self, stem: str, values: NDArray[np.generic]) -> str:
        """Add an initializer and return its name, `stem` or the next that is free."""
        return self.constant(self.names.claim(stem), values, values.dtype)

    def maker(self, tensor: str) -> onnx.NodeProto | None:
        """Return the node that computes a tensor."""
        return next((node for node in self.graph.node if tensor in node.output), None)

    def set_axis(self, node: onnx.NodeProto, axis: int) -> None:
        """Give a Q or DQ another axis."""
        kept = [attribute for attribute in node.attribute if attribute.name != "axis"]
        del node.attribute[:]
        node.attribute.extend([*kept, helper.make_attribute("axis", axis)])

    def set_axes(self, scale: str, axis: int) -> None:
        """Give every Q and DQ with this scale another axis."""
        for node in self.graph.node:
            if node.op_type in ("QuantizeLinear", "DequantizeLinear") and node.input[1] == scale:
                self.set_axis(node, axis)

    def bypass(self, quantizing: str) -> None:
        """Remove the pair whose Q has this name: its readers read what it quantized."""
        first = next(node for node in self.graph.node if node.name == quantizing)
        second = [node for node in self.graph.node if first.output[0] in node.input]
        for pair in [node for node in second if node.op_type == "DequantizeLinear"]:
            self.redirect(pair.output[0], first.input[0])
            self.graph.node.remove(pair)
        self.graph.node.remove(first)

    def redirect(self, old: str, new: str, only: Sequence[str] = ()) -> None:
        """Make the readers of a tensor, all or the ones of these names, read another one."""
        rename_tensors([n for n in self.graph.node if not only or n.name in only], {old: new}, made=False)
        if not only and any(value.name == old for value in self.graph.output):
            same = self.names.claim(f"{old}/same")
            self.graph.node.append(helper.make_node("Identity", [new], [old], same))

    def insert_pair(self, weight: str, scale: NDArray[np.float32], reader: str, axis: int) -> None:
        """Put a pair of int8 behind a constant, in front of one node."""
        zero = np.zeros(scale.shape, np.int8)
        names = [self.add(f"{weight}/scale", scale), self.add(f"{weight}/zero", zero)]
        codes, values = self.names.claim(f"{weight}/q"), self.names.claim(f"{weight}/dq")
        self.redirect(weight, values, [reader])
        first = helper.make_node("QuantizeLinear", [weight, *names], [codes], codes, axis=axis)
        second = helper.make_node("DequantizeLinear", [codes, *names], [values], values, axis=axis)
        self.graph.node.insert(0, second)
        self.graph.node.insert(0, first)
