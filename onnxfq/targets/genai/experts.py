"""Experts: each MoE as products that are quantized one by one, and all of them as one QMoE again.

Source: the schemas `com.microsoft.MoE` and `QMoE`, and their kernels for CPUs in ONNX Runtime 1.32. The k
largest scores of a token have gates above 0: their Softmax if `normalize_routing_weights` is set, and else
their part of the Softmax over all scores. With W1, b1, W2 and b2 of expert e, an input x and its gate g:

    y = sum over e of g (W2 f(W1 x + b1) + b2)

An expert reads 0 for tokens of others, and its second product reads g f(..). The moments that round its
weights come from its own tokens, and each counts as much as in the sum.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from itertools import chain

import numpy as np
import onnx_graphsurgeon as gs
from numpy.typing import NDArray
from onnx import parser

from onnxfq.graph.constants import constant_array, make_constant
from onnxfq.graph.edit import Editor
from onnxfq.graph.model import Model
from onnxfq.graph.node_fields import attributes_of
from onnxfq.targets.genai.matmul_nbits import DOMAIN, INT8_INPUT, LEVEL

log = logging.getLogger(__name__)

_PART = "/split_experts/"
"""In the names of what `split_experts` makes, behind the name of the MoE."""

_LEAST_OPSET = 15
"""Opset in which Shape has an end."""

_STORED = ("w1", "b1", "w2", "b2")
"""Constants of a MoE; no kernel for CPUs takes a third product."""

_SIZES = ("expert_weight_bits", "block_size", LEVEL)
"""Attributes of QMoE that all products have in common."""

_ROUNDING_BITS = 8
"""Bits of weights whose kernel for CPUs rounds its inputs to int8 at every accuracy level."""

_CHOICES = (
    "soft = Softmax <axis = -1> (spread) share, places = TopK <axis = -1> (soft, k)",
    "best, places = TopK <axis = -1> (spread, k) share = Softmax <axis = -1> (best)",
)
"""By `normalize_routing_weights`."""

_GATES = """
    rows = Shape <end = -1> (x) shape = Concat <axis = 0> (rows, count) spread = Reshape (scores, shape) {}
    empty = ConstantOfShape (shape) gates = ScatterElements <axis = -1> (empty, places, share)
"""

_EXPERT = """
    gate = Gather <axis = -1> (gates, number) reads = Sign (gate) read = Mul (x, reads)
    fc1 = MatMul (read, w1) made = Add (fc1, b1)
    even = Gather <axis = -1> (made, evens) low = Min (even, top)
    odd = Gather <axis = -1> (made, odds) between = Clip (odd, bottom, top)
    sharp = Mul (low, alpha) share = Sigmoid (sharp) opened = Mul (low, share)
    raised = Add (between, beta) inner = Mul (opened, raised) gated = Mul (inner, gate)
    fc2 = MatMul (gated, w2) bias = Mul (gate, b2) part = Add (fc2, bias)
"""


def split_experts(model: Model) -> Model:
    """Return `model` with the products of each MoE of constant weights in float32; itself without any.

    All experts then compute all tokens. A form that GenAI's builder does not write for CPUs stays whole.
    """
    if model.opset < _LEAST_OPSET or not any(one.op_type == "MoE" for one in model.proto.graph.node):
        return model
    graph = model.graph()
    editor = Editor(graph)
    split = (_split(editor, node) if node.op == "MoE" else [node] for node in graph.nodes)
    graph.nodes = list(chain.from_iterable(split))
    return model.with_graph(graph)


def _split(editor: Editor, node: gs.Node) -> list[gs.Node]:
    """Return the nodes that compute a MoE; itself for a form that is not known."""
    attrs = {"k": 1, "activation_alpha": 1.0, "activation_beta": 0.0, "swiglu_limit": np.inf, **node.attrs}
    x, scores, *stored = [one for one in node.inputs if not one.is_empty()]
    known = all(isinstance(one, gs.Constant) and one.dtype == np.float32 for one in stored)
    fused = (attrs.get("activation_type"), attrs.get("swiglu_fusion")) == ("swiglu", 1)
    if not fused or not known or stored != node.inputs[2 : 2 + len(_STORED)]:
        return [node]
    arrays, stem = [constant_array(one) for one in stored], f"{node.name}{_PART}"
    (count, size), top = arrays[1].shape, float(attrs["swiglu_limit"])
    numbers = {"k": [attrs["k"]], "count": [count], "evens": range(0, size, 2), "odds": range(1, size, 2)}
    values = {name: np.array(value, np.int64) for name, value in numbers.items()}
    real = (attrs["activation_alpha"], attrs["activation_beta"], top, -top)
    values |= dict(zip(("alpha", "beta", "top", "bottom"), np.array(real, np.float32), strict=True))
    given = {name: editor.constant(f"{stem}{name}", value) for name, value in values.items()}
    given |= {"x": x, "scores": scores}
    nodes = _write(editor, stem, _GATES.format(_CHOICES[attrs.get("normalize_routing_weights", 0)]), given)
    given["spread"].shape = [*x.shape[:-1], count] if x.shape else None
    parts = list[gs.Tensor]()
    for expert in range(count):
        own = {**given, "number": editor.constant(f"{stem}{expert}", np.array([expert]))}
        for name, array, tensor in zip(_STORED, arrays, stored, strict=True):
            own[name] = editor.constant(f"{tensor.name}.{expert}", array[expert].T)
        nodes += _write(editor, f"{stem}{expert}/", _EXPERT, own)
        parts.append(own["part"])
    return [*nodes, gs.Node("Sum", stem + json.dumps(dict(node.attrs)), {}, parts, list(node.outputs))]


def _write(editor: Editor, stem: str, text: str, tensors: dict[str, gs.Tensor]) -> list[gs.Node]:
    """Return the nodes of `text`, and add what they make to `tensors`, which are what it names."""
    nodes = []
    for one in parser.parse_graph(f"part () => () {{ {text} }}").node:
        tensors |= {name: editor.variable(f"{stem}{name}") for name in one.output}
        ends = ([tensors[name] for name in names] for names in (one.input, one.output))
        nodes.append(gs.Node(one.op_type, f"{stem}{one.output[0]}", attributes_of(one), *ends))
    return nodes


def find_unit(node: str) -> str:
    """Return the MoE of a product that `split_experts` made; another node itself."""
    return node.partition(_PART)[0]


def join_experts(editor: Editor) -> None:
    """Undo `split_experts` in the graph of `editor`, in place, with QMoE.

    All stay as they are, with a warning, if experts differ or something stands between their products.
    """
    nodes = {node.name: node for node in editor.graph.nodes if _PART in node.name}
    for total in [node for node in nodes.values() if node.op == "Sum"]:
        name, _, attrs = total.name.partition(_PART)
        experts = [f"{name}{_PART}{number}/" for number in range(len(total.inputs))]
        form, *others = [_form(nodes, f"{one}{product}") for product in ("fc1", "fc2") for one in experts]
        if form is None or set(others) != {form}:
            log.warning(
                f"MoE {name!r} is written as {1 + len(others)} products that compute every token: QMoE "
                "takes one format for all, whole blocks, and 8 bits only beside inputs rounded to int8"
            )
            continue
        first, second = (
            [
                make_constant(editor.pick_name(f"{name}/{product}_{at}"), np.stack(values))
                for at, values in enumerate(
                    zip(*(_read(nodes, one, product, bias) for one in experts), strict=True)
                )
            ]
            for product, bias in (("fc1", "made"), ("fc2", "bias"))
        )
        zero_points = [*[gs.Variable.empty()] * 3, *first[3:], *second[3:]] if first[3:] else []
        read = [nodes[f"{experts[0]}read"].inputs[0], nodes[f"{name}{_PART}spread"].inputs[0]]
        total.inputs = [*read, *first[:3], *second[:3], *zero_points]
        total.name, total.op, total.domain = name, "QMoE", DOMAIN
        total.attrs = json.loads(attrs) | dict(zip(_SIZES, form, strict=False)) | {"weights_prepacked": 0}
    editor.graph.cleanup(remove_unused_graph_inputs=False)


def _form(nodes: Mapping[str, gs.Node], product: str) -> tuple[int, ...] | None:
    """Return `_SIZES` and the number of inputs of a product; None if QMoE has none like it."""
    node, given = nodes[product], nodes[product].attrs
    around = {node.inputs[0].inputs[0].name, *(reader.name for reader in node.outputs[0].outputs)}
    if node.op != "MatMulNBits" or not around <= nodes.keys() or given["K"] % given["block_size"]:
        return None
    rounds = given["bits"] < _ROUNDING_BITS or given[LEVEL] == INT8_INPUT
    return (given["bits"], given["block_size"], given[LEVEL], len(node.inputs)) if rounds else None


def _read(nodes: Mapping[str, gs.Node], expert: str, product: str, bias: str) -> list[NDArray[np.generic]]:
    """Return the weight, the scales, the bias and the zero points of a product, if it has some."""
    weight, scales, *zeros = (constant_array(one) for one in nodes[expert + product].inputs[1:])
    biases = constant_array(nodes[expert + bias].inputs[1])
    return [weight.reshape(len(weight), -1), scales, biases, *zeros]
