"""Experts: each MoE as products that are quantized one by one, and all of them as one QMoE again."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import onnx
import onnx_graphsurgeon as gs
from numpy.typing import NDArray

from onnxfq.graph.constants import constant_array, make_constant
from onnxfq.graph.edit import Editor
from onnxfq.graph.model import Model
from onnxfq.graph.normalize.experts import PART, split_experts
from onnxfq.targets.genai.matmul_nbits import DOMAIN, INT8_INPUT, LEVEL

log = logging.getLogger(__name__)

_SIZES = ("expert_weight_bits", "block_size", LEVEL)
"""Attributes of QMoE that all products have in common."""

NORMALIZES = "normalize_routing_weights"
"""Attribute by which the gates of a token have the sum 1, which QMoE gives them without it too."""

_LEVELS = {2: (0,), 4: (0, INT8_INPUT), 8: (INT8_INPUT,)}
"""Accuracy levels by bits that the kernel for CPUs keeps: with 2 it never rounds inputs, with 8 always."""


def split_moe(model: Model) -> Model:
    """Return `model` with the products of each MoE, see `split_experts`; itself without any."""
    proto = split_experts(model.proto, "MoE", model.source)
    return model if proto is model.proto else replace(model, proto=proto)


def join_file(proto: onnx.ModelProto) -> onnx.ModelProto:
    """Return a file with QMoE again that was split for reading; itself without any."""
    if not any(PART in node.name for node in proto.graph.node):
        return proto
    model = Model(proto, "", "")
    graph = model.graph()
    join_experts(Editor(graph))
    return model.with_graph(graph).proto


def join_experts(editor: Editor) -> None:
    """Undo `split_experts` in the graph of `editor`, in place, with QMoE.

    All stay as they are, with a warning, if experts differ or something stands between their products.
    """
    nodes = {node.name: node for node in editor.graph.nodes if PART in node.name}
    for total in [node for node in nodes.values() if node.op == "Sum"]:
        name, _, attrs = total.name.partition(PART)
        experts = [f"{name}{PART}{number}/" for number in range(len(total.inputs))]
        form, *others = [_form(nodes, f"{one}{product}") for product in ("fc1", "fc2") for one in experts]
        if form is None or set(others) != {form}:
            log.warning(
                f"MoE {name!r} is written as {1 + len(others)} products that compute every token: QMoE "
                "takes one format for all, whole blocks, 8 bits beside inputs rounded to int8, 2 beside float"
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
        read = [nodes[f"{experts[0]}read"].inputs[0], nodes[f"{name}{PART}best"].inputs[0]]
        total.inputs = [*read, *first[:3], *second[:3], *zero_points]
        total.name, total.op, total.domain = name, "QMoE", DOMAIN
        given = json.loads(attrs)
        if not given.get(NORMALIZES):  # the kernel does so at any value
            gates = nodes[f"{name}{PART}gates"].outputs[0]
            kept, parts = (editor.variable(f"{name}/{part}") for part in ("kept", "parts"))
            for one in [node for at, node in nodes.items() if at.startswith(f"{name}{PART}")]:
                one.name = one.name.replace(PART, "/routing/")  # the gates
            axis = editor.constant(f"{name}/axis", np.array([-1]))
            editor.graph.nodes.append(gs.Node("ReduceSum", kept.name, {}, [gates, axis], [kept]))
            editor.graph.nodes.append(gs.Node("Mul", parts.name, {}, [parts, kept], list(total.outputs)))
            total.outputs = [parts]
        given |= {NORMALIZES: 1, "weights_prepacked": 0}
        total.attrs = given | dict(zip(_SIZES, form, strict=False))
    editor.graph.cleanup(remove_unused_graph_inputs=False).toposort()


def _form(nodes: Mapping[str, gs.Node], product: str) -> tuple[int, ...] | None:
    """Return `_SIZES` and the number of inputs of a product; None if QMoE has none like it."""
    node, given = nodes[product], nodes[product].attrs
    around = {node.inputs[0].inputs[0].name, *(reader.name for reader in node.outputs[0].outputs)}
    if node.op != "MatMulNBits" or not around <= nodes.keys() or given["K"] % given["block_size"]:
        return None
    kept = given[LEVEL] in _LEVELS[given["bits"]]
    return (given["bits"], given["block_size"], given[LEVEL], len(node.inputs)) if kept else None


def _read(nodes: Mapping[str, gs.Node], expert: str, product: str, bias: str) -> list[NDArray[np.generic]]:
    """Return the weight, the scales, the bias and the zero points of a product, if it has some."""
    weight, scales, *zeros = (constant_array(one) for one in nodes[expert + product].inputs[1:])
    biases = constant_array(nodes[expert + bias].inputs[1])
    return [weight.reshape(len(weight), -1), scales, biases, *zeros]
