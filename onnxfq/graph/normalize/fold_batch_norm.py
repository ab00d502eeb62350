"""Folding of BatchNormalization into the convolution in front, for runtimes that do not fold it themselves.

A runtime that fuses a quantized convolution into one integer kernel has its weight as integers already, so a
BatchNormalization behind it would run in float. In float it is one affine function of each channel [ONNX,
BatchNormalization]: y = (x - mean) * scale / sqrt(var + epsilon) + bias.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from typing import Any

import numpy as np
import onnx_graphsurgeon as gs
from numpy.typing import NDArray

from onnxfq.graph.constants import constant_array, make_constant
from onnxfq.graph.edit import Editor
from onnxfq.graph.model import Model, list_graphs
from onnxfq.graph.ops import CONVOLUTIONS, STANDARD_DOMAINS
from onnxfq.graph.queries import float_type

_EPSILON = 1e-5

_Float64s = NDArray[np.float64]


def fold_batch_norm(model: Model, kept: Collection[str] = ()) -> Model:
    """Return `model` with each BatchNormalization that only a convolution feeds folded into it.

    Weights and biases are computed in float64 and rounded once. A BatchNormalization stays if its parameters
    or the weight are computed, if it trains, if something else reads the result of the convolution, or if its
    output is one of `kept`. The model itself is returned if none can be folded.
    """
    if not any(node.op_type == "BatchNormalization" for node in model.proto.graph.node):
        return model
    graph, count = model.graph(), 0
    editor = Editor(graph)
    for scope in list_graphs(graph):
        norms = [node for node in scope.nodes if node.op == "BatchNormalization"]
        for norm in [node for node in norms if node.outputs[0].name not in kept]:
            conv = _find_convolution(norm, scope)
            if conv is not None:
                _fold(editor, conv, norm)
                conv.outputs, norm.outputs = [norm.outputs[0]], []
                scope.nodes.remove(norm)
                count += 1
    if not count:
        return model
    note = f"{count} BatchNormalization folded into the convolution in front"
    return replace(model.with_graph(graph), notes=(*model.notes, note))


def _find_convolution(norm: gs.Node, scope: gs.Graph) -> gs.Node | None:
    """Return the convolution that `norm` can be folded into; None if there is none."""
    conv = norm.inputs[0].inputs[0] if norm.inputs[0].inputs else None
    if conv is None or conv.op not in CONVOLUTIONS or not {conv.domain, norm.domain} <= {*STANDARD_DOMAINS}:
        return None
    between = conv.outputs[0]
    is_read = len(between.outputs) > 1 or any(between is output for output in scope.outputs)
    if is_read or norm.attrs.get("training_mode", 0) or len(norm.outputs) > 1:
        return None
    constants = [tensor for tensor in (*conv.inputs[1:3], *norm.inputs[1:5]) if tensor.name]
    known = all(isinstance(tensor, gs.Constant) and float_type(tensor) is not None for tensor in constants)
    return conv if known else None


def _fold(editor: Editor, conv: gs.Node, norm: gs.Node) -> None:
    scale, offset, mean, variance = (constant_array(tensor).astype(np.float64) for tensor in norm.inputs[1:5])
    factor = scale / np.sqrt(variance + np.float64(np.float32(norm.attrs.get("epsilon", _EPSILON))))
    weight, *biases = [tensor for tensor in conv.inputs[1:3] if tensor.name]
    bias = constant_array(biases[0]).astype(np.float64) if biases else np.zeros(1)
    scaled = _scale_channels(constant_array(weight).astype(np.float64), factor, conv)
    bias_name = biases[0].name if biases else f"{weight.name}/bias"
    conv.inputs = [
        conv.inputs[0],
        _store(editor, conv, weight.name, scaled.astype(weight.dtype)),
        _store(editor, conv, bias_name, ((bias - mean) * factor + offset).astype(weight.dtype)),
    ]


def _scale_channels(weight: _Float64s, factor: _Float64s, conv: gs.Node) -> _Float64s:
    """Return `weight` with each output channel scaled; of ConvTranspose [C in, C out / groups, ...]."""
    if conv.op != "ConvTranspose":
        return weight * factor.reshape(-1, *[1] * (weight.ndim - 1))
    groups = conv.attrs.get("group", 1)
    split = weight.reshape(groups, weight.shape[0] // groups, *weight.shape[1:])
    factors = factor.reshape(groups, 1, weight.shape[1], *[1] * (weight.ndim - 2))
    return np.asarray((split * factors).reshape(weight.shape))


def _store(editor: Editor, conv: gs.Node, name: str, values: NDArray[Any]) -> gs.Constant:
    """Return a constant for `conv`; under `name` if only `conv` reads that."""
    known = editor.find(name)
    if known is not None and all(reader is conv for reader in known.outputs):
        return make_constant(name, values)
    return editor.constant(editor.pick_name(name), values)
