"""`split_experts`: each MoE or QMoE as the products of its experts, which are quantized and read one by one.

Source: the schemas `com.microsoft.MoE` and `QMoE`, and their kernels for CPUs in ONNX Runtime 1.32. The k
largest scores of a token have gates above 0: their Softmax if `normalize_routing_weights` is set, and else
their part of the Softmax over all scores. With W1, b1, W2 and b2 of expert e, an input x and its gate g:

    y = sum over e of g (W2 f(W1 x + b1) + b2)

An expert reads 0 for tokens of others, and its second product reads g f(..). The moments that round its
weights come from its own tokens, and each counts as much as in the sum.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from itertools import chain
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import helper, parser

from onnxfq.graph.constants import make_tensor
from onnxfq.graph.index import GraphIndex
from onnxfq.graph.model import replace_nodes
from onnxfq.graph.node_fields import attributes_of, input_name
from onnxfq.graph.normalize.opset import raise_opset
from onnxfq.graph.ops import BLOCK_BITS
from onnxfq.graph.prune import keep_constants
from onnxfq.graph.walk import rename_tensors

PART = "/split_experts/"
"""In the names of what `split_experts` makes, behind the name of the MoE."""

_LEAST_OPSET = 15
"""Opset in which Shape has an end."""

_LEAST_BLOCK = 16
"""Of MatMulNBits."""

_FIXED: dict[str, dict[str, Any]] = {"MoE": {}, "QMoE": {"normalize_routing_weights": 1}}
"""Attributes that the kernel for CPUs does not read: the gates of a token in QMoE always have the sum 1."""

_INT8_INPUT = {2: 0, 8: 4}
"""Bits of weights in blocks -> the accuracy level that the kernel for CPUs takes at any; 4 rounds inputs."""

_SLOTS = {"MoE": {"w1": 2, "b1": 3, "w2": 4, "b2": 5}}
_SLOTS["QMoE"] = {"w1": 2, "s1": 3, "b1": 4, "w2": 5, "s2": 6, "b2": 7, "z1": 11, "z2": 12}
"""Op type -> weights, biases, scales and zero points of both products; no kernel for CPUs takes a third."""

_CHOICES = (
    "soft = Softmax <axis = -1> (scores) share = GatherElements <axis = -1> (soft, places)",
    "share = Softmax <axis = -1> (best)",
)
"""By `normalize_routing_weights`."""

_GATES = """
    best, places = TopK <axis = -1> (scores, k) {} sizes = Shape (scores) empty = ConstantOfShape (sizes)
    chosen = ScatterElements <axis = -1> (empty, places, share)
    rows = Shape <end = -1> (x) shape = Concat <axis = 0> (rows, count) gates = Reshape (chosen, shape)
"""

_EXPERT = """
    gate = Gather <axis = -1> (gates, number) reads = Sign (gate) read = Mul (x, reads)
    fc1 = {} made = Add (fc1, b1)
    even = Gather <axis = -1> (made, evens) low = Min (even, top)
    odd = Gather <axis = -1> (made, odds) between = Clip (odd, bottom, top)
    sharp = Mul (low, alpha) share = Sigmoid (sharp) opened = Mul (low, share)
    raised = Add (between, beta) inner = Mul (opened, raised) gated = Mul (inner, gate)
    fc2 = {} bias = Mul (gate, b2) part = Add (fc2, bias)
"""


def split_experts(proto: onnx.ModelProto, op_type: str, source: str) -> onnx.ModelProto:
    """Return a model with the products of each MoE, or QMoE, of constants; itself without any.

    All experts then compute all tokens. A form that GenAI's builder does not write for CPUs stays whole.

    Args:
        proto: the model.
        op_type: "MoE" for MatMul of float32, "QMoE" for MatMulNBits.
        source: name of the model in messages.
    """
    if not any(one.op_type == op_type for one in proto.graph.node):
        return proto
    split = onnx.ModelProto()
    split.CopyFrom(raise_opset(proto, _LEAST_OPSET, source)[0])
    experts = _Experts(split.graph, GraphIndex.of_model(split))
    parts = [experts.split(node) if node.op_type == op_type else [node] for node in split.graph.node]
    replace_nodes(split.graph, chain.from_iterable(parts))
    keep_constants(split.graph, GraphIndex.of_model(split).used)
    return split


def find_unit(node: str) -> str:
    """Return the MoE or QMoE of a node that `split_experts` made; another node itself."""
    return node.partition(PART)[0]


class _Experts:
    """Writer of products to a graph, which gets their constants."""

    def __init__(self, graph: onnx.GraphProto, index: GraphIndex) -> None:
        self.graph, self.index = graph, index

    def split(self, node: onnx.NodeProto) -> list[onnx.NodeProto]:
        """Return the nodes that compute a MoE or QMoE; itself for a form that is not known."""
        attrs, stem = attributes_of(node) | _FIXED[node.op_type], f"{node.name}{PART}"
        names = {key: input_name(node, slot) for key, slot in _SLOTS[node.op_type].items()}
        arrays = {key: array for key, name in names.items() if (array := self.index.array(name)) is not None}
        is_fused = (attrs.get("activation_type"), attrs.get("swiglu_fusion")) == (b"swiglu", 1)
        needed = {key for key in names if key[0] != "z"}
        if not is_fused or not needed <= arrays.keys() or len(arrays) + 2 != sum(map(bool, node.input)):
            return [node]
        if not _fits(attrs, arrays):
            return [node]
        read = _read_blocks if node.op_type == "QMoE" else _read_floats
        calls = [read(attrs, arrays, at, data) for at, data in ((1, "read"), (2, "gated"))]
        if None in calls:
            return [node]
        (count, size), top = arrays["b1"].shape, np.float32(attrs.get("swiglu_limit", np.inf))
        values = {"k": [attrs.get("k", 1)], "count": [count], "top": top, "bottom": -top}
        values |= {"evens": range(0, size, 2), "odds": range(1, size, 2)}
        values["alpha"] = np.float32(attrs.get("activation_alpha", 1.0))
        values["beta"] = np.float32(attrs.get("activation_beta", 0.0))
        given = {name: self._add(f"{stem}{name}", np.array(value)) for name, value in values.items()}
        given |= {"x": node.input[0], "scores": node.input[1]}
        choice = _CHOICES[bool(attrs.get("normalize_routing_weights", 0))]
        nodes, parts = self._write(stem, _GATES.format(choice), given), list[str]()
        for expert in range(count):
            own = {key: self._add(f"{names[key]}.{expert}", array[expert]) for key, array in arrays.items()}
            own |= {**given, "number": self._add(f"{stem}{expert}", np.array([expert]))}
            nodes += self._write(f"{stem}{expert}/", _EXPERT.format(*calls), own)
            parts.append(own["part"])
        told = json.dumps(attrs, default=bytes.decode)
        return [*nodes, helper.make_node("Sum", parts, list(node.output), stem + told)]

    def _add(self, name: str, values: NDArray[Any]) -> str:
        """Add a constant with an unused name and return the name."""
        free = self.index.names.claim(name)
        self.graph.initializer.append(make_tensor(free, values))
        return free

    def _write(self, stem: str, text: str, tensors: dict[str, str]) -> list[onnx.NodeProto]:
        """Return the nodes of `text`, and add what they make to `tensors`, which are what it names."""
        nodes = list(parser.parse_graph(f"part () => () {{ {text} }}").node)
        for node in nodes:
            node.name = f"{stem}{node.output[0]}"
            tensors |= {name: self.index.names.claim(f"{stem}{name}") for name in node.output}
        rename_tensors(nodes, tensors)
        return nodes


def _fits(attrs: Mapping[str, Any], arrays: Mapping[str, NDArray[Any]]) -> bool:
    """Tell whether constants have the shapes of the schema, for the bits and blocks of the attributes."""
    bits, block = attrs.get("expert_weight_bits", 4), attrs.get("block_size", 0)
    for at in (1, 2):
        weight, rows = arrays[f"w{at}"].shape, arrays[f"b{at}"].shape
        if len(rows) != 2 or weight[:-1] != rows or 0 in weight:
            return False
        if f"s{at}" in arrays:
            width = weight[2] * 8 // bits if bits in BLOCK_BITS else 0
            if not 0 <= block <= 2 * max(width, _LEAST_BLOCK) or not width:
                return False
            if arrays[f"s{at}"].size != rows[0] * rows[1] * (-(-width // block) if block else 1):
                return False
    return {array.shape[:1] for array in arrays.values()} == {arrays["b1"].shape[:1]}


def _read_floats(attrs: Mapping[str, Any], arrays: dict[str, NDArray[Any]], at: int, data: str) -> str | None:
    """Return product `at` of an expert as text, and turn its weights; None unless they are float32."""
    weight = arrays[f"w{at}"]
    arrays[f"w{at}"] = weight.transpose(0, 2, 1)
    return f"MatMul ({data}, w{at})" if weight.dtype == np.float32 else None


def _read_blocks(attrs: Mapping[str, Any], arrays: dict[str, NDArray[Any]], at: int, data: str) -> str | None:
    """Return the same for a QMoE, and give weights the shape of MatMulNBits; None without blocks."""
    weight, scale, bits = arrays[f"w{at}"], arrays[f"s{at}"], attrs.get("expert_weight_bits", 4)
    width, block = weight.shape[2] * 8 // bits, attrs.get("block_size", 0)
    level = _INT8_INPUT.get(bits, attrs.get("accuracy_level", 0))
    if not block and f"z{at}" not in arrays:  # a scale for each row, which fills one block
        block, level = max(_LEAST_BLOCK, 1 << (width - 1).bit_length()), 0
    if not block or scale.dtype != np.float32:
        return None
    filled = np.pad(weight, ((0, 0), (0, 0), (0, -width % block * bits // 8)))
    arrays[f"w{at}"] = filled.reshape(*weight.shape[:2], -1, block * bits // 8)
    arrays[f"s{at}"] = scale.reshape(*weight.shape[:2], -1)
    sizes = f"K = {width}, N = {weight.shape[1]}, bits = {bits}, block_size = {block}"
    read = [f"{key}{at}" for key in "wsz" if f"{key}{at}" in arrays]
    return f"com.microsoft.MatMulNBits <{sizes}, accuracy_level = {level}> ({', '.join([data, *read])})"
