"""Folding of BatchNormalization, and of sums and products with constants, into the convolution in front.

Runtimes that fuse a quantized convolution into one integer kernel do not fold them themselves: the weight is
integers already, and what stands behind it would run in float, or round its result once more. Each is one
affine function of a channel. BatchNormalization is y = (x - mean) * scale / sqrt(var + epsilon) + bias [ONNX,
BatchNormalization].
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection
from dataclasses import replace
from typing import Any

import numpy as np
import onnx_graphsurgeon as gs
from numpy.typing import NDArray

from onnxfq.graph.constants import constant_array, make_constant
from onnxfq.graph.edit import Editor
from onnxfq.graph.model import Model, list_graphs, list_nodes
from onnxfq.graph.ops import CONVOLUTIONS, STANDARD_DOMAINS
from onnxfq.graph.queries import float_type

_EPSILON = 1e-5

FOLDED = ("BatchNormalization", "Mul", "Div", "Add", "Sub")
"""Operators that are folded where their other operands are constants."""

_Float64s = NDArray[np.float64]


def fold_batch_norm(model: Model, kept: Collection[str] = ()) -> Model:
    """Return `model` with all of FOLDED that only a convolution feeds folded into it, channel by channel.

    Weights and biases are computed in float64 and rounded once. A node stays if its parameters or the weight
    are computed, if it trains, if something else reads the result of the convolution, or if its output is one
    of `kept`. The model itself is returned if none can be folded.
    """
    if not any(node.op_type in CONVOLUTIONS for node in list_nodes(model.proto.graph)):
        return model
    graph, counts = model.graph(), Counter[str]()
    editor = Editor(graph)
    for scope in list_graphs(graph):
        for node in [one for one in scope.nodes if one.op in FOLDED and one.outputs[0].name not in kept]:
            conv = _find_convolution(node, scope)
            change = None if conv is None else _read_change(node, conv)
            if conv is not None and change is not None:
                _fold(editor, conv, *change)
                conv.outputs, node.outputs = [node.outputs[0]], []
                scope.nodes.remove(node)
                counts[node.op] += 1
    if not counts:
        return model
    found = ", ".join(f"{counts[op]} {op}" for op in FOLDED if op in counts)
    note = f"{found} folded into the convolution in front"
    return replace(model.with_graph(graph), notes=(*model.notes, note))


def _find_convolution(node: gs.Node, scope: gs.Graph) -> gs.Node | None:
    """Return the convolution that `node` can be folded into; None if there is none."""
    computed = [one for one in node.inputs if not isinstance(one, gs.Constant)]
    conv = computed[0].inputs[0] if len(computed) == 1 and computed[0].inputs else None
    if conv is None or conv.op not in CONVOLUTIONS or not {conv.domain, node.domain} <= {*STANDARD_DOMAINS}:
        return None
    between = conv.outputs[0]
    is_read = len(between.outputs) > 1 or any(between is output for output in scope.outputs)
    if is_read or node.attrs.get("training_mode", 0) or len(node.outputs) > 1:
        return None
    constants = [
        tensor for tensor in (*conv.inputs[1:3], *node.inputs) if tensor.name and tensor is not between
    ]
    known = all(isinstance(tensor, gs.Constant) and float_type(tensor) is not None for tensor in constants)
    return conv if known else None


def _read_change(node: gs.Node, conv: gs.Node) -> tuple[_Float64s, _Float64s] | None:
    """Return factor and offset that each channel gets, or one for all; None for other changes."""
    if node.op == "BatchNormalization":
        scale, offset, mean, variance = (constant_array(one).astype(np.float64) for one in node.inputs[1:5])
        factor = scale / np.sqrt(variance + np.float64(np.float32(node.attrs.get("epsilon", _EPSILON))))
        return factor, offset - mean * factor
    slot = [isinstance(one, gs.Constant) for one in node.inputs].index(True)
    values, weight = constant_array(node.inputs[slot]).astype(np.float64), conv.inputs[1]
    rank = len(weight.shape)
    by_channel = (1,) * (rank - values.ndim) + values.shape
    outputs = weight.shape[0] if conv.op == "Conv" else weight.shape[1] * conv.attrs.get("group", 1)
    is_fixed = slot == 0 and node.op in ("Div", "Sub")
    is_wide = len(by_channel) > rank or max((*by_channel[:1], *by_channel[2:])) != 1
    if is_fixed or is_wide or by_channel[1] not in (1, outputs):  # one channel may become many
        return None
    values = np.broadcast_to(values.reshape(-1), outputs)
    nothing, one = np.zeros(outputs), np.ones(outputs)
    if node.op in ("Add", "Sub"):
        return one, values if node.op == "Add" else -values
    if node.op == "Mul":
        return values, nothing
    return (1 / values, nothing) if values.all() else None


def _fold(editor: Editor, conv: gs.Node, factor: _Float64s, offset: _Float64s) -> None:
    weight, *biases = [tensor for tensor in conv.inputs[1:3] if tensor.name]
    bias = constant_array(biases[0]).astype(np.float64) if biases else np.zeros(1)
    bias_name = biases[0].name if biases else f"{weight.name}/bias"
    if (factor != 1).any():
        scaled = _scale_channels(constant_array(weight).astype(np.float64), factor, conv)
        weight = _store(editor, conv, weight.name, scaled.astype(weight.dtype))
    stored = _store(editor, conv, bias_name, (bias * factor + offset).astype(weight.dtype))
    conv.inputs = [conv.inputs[0], weight, stored]


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
