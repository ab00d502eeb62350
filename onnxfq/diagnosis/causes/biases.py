"""Biases that were lost, or that do not fit their 32 bits."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray

from onnxfq.diagnosis.reading.candidate import FileCandidate
from onnxfq.diagnosis.reading.cause import Suspicion
from onnxfq.diagnosis.reading.file_editor import FileEditor
from onnxfq.diagnosis.reading.quantizers import PREFIX
from onnxfq.diagnosis.reading.relu_limits import find_layer
from onnxfq.graph.index import GraphIndex
from onnxfq.graph.node_fields import input_name
from onnxfq.graph.ops import BIASED_PRODUCTS

FULL = 2**31 - 1
"""The largest number of int32, where a bias saturates."""

CHANGED = 0.5
"""Part of the size of a bias from which its difference is more than a correction of a layer's mean error."""


def find_biases(candidate: FileCandidate) -> Iterator[Suspicion]:
    """Yield biases that are missing, saturated or another one than the float model's."""
    stored = {one.constant: one.grid.steps for one in candidate.form.constants if one.is_bias}
    index = candidate.form_index
    dynamic = [n.name for n in candidate.index.nodes if n.op_type == "ConvInteger"]
    biased = [node for node in index.nodes if node.op_type in BIASED_PRODUCTS and node.name not in dynamic]
    values = {node.name: bias for node in biased if (bias := _read_bias(index, node)) is not None}
    layers = [node for node in biased if node.name in values]
    norms = [node for node in index.nodes if node.op_type == "BatchNormalization"]
    normed = [find_layer(index, node.input[0]) for node in norms]  # their bias is the norm's
    for node in layers:
        bias, steps = values[node.name], stored.get(input_name(node, 2), np.zeros(0))
        full = int((np.abs(steps.astype(np.int64)) >= FULL).sum())
        layer = None if candidate.floats is None else candidate.floats.layers.get(node.name)
        wanted = None if layer is None else layer.bias
        if full:
            text = f"{full} of {bias.size} numbers of the bias are at the end of int32"
            yield _suspect(candidate, node, "saturated_bias", text, wanted, is_certain=True)
        elif wanted is not None and bias.shape in ((0,), wanted.shape) and np.any(wanted):
            off = float(np.linalg.norm(bias - wanted) / np.linalg.norm(wanted)) if bias.size else 1.0
            if not np.any(bias):
                text = f"the float layer has a bias of up to {np.abs(wanted).max():.4g}, the file has none"
                yield _suspect(candidate, node, "lost_bias", text, wanted, is_certain=True)
            elif off > CHANGED:
                text = f"the bias is {off:.0%} off that of the float layer"
                yield _suspect(candidate, node, "lost_bias", text, wanted, is_certain=False)
        elif candidate.floats is None and node not in normed and _lacks_bias(node, layers, values):
            text = f"the other {node.op_type} layers have a bias, this one has none"
            yield _suspect(candidate, node, "lost_bias", text, None, is_certain=True)


def _read_bias(index: GraphIndex, node: onnx.NodeProto) -> NDArray[np.float32] | None:
    """Return the constant bias of a layer, empty for one that lacks it; None for a computed one."""
    if name := input_name(node, 2):
        stored = index.array(name)
        return None if stored is None else np.asarray(stored, np.float32)
    weight = index.constants.get(node.input[1])
    is_float = weight is not None and weight.data_type == onnx.TensorProto.FLOAT
    return np.zeros(0, np.float32) if is_float and not node.input[1].startswith(PREFIX) else None


def _lacks_bias(
    node: onnx.NodeProto, layers: list[onnx.NodeProto], values: dict[str, NDArray[np.float32]]
) -> bool:
    """Tell whether a layer has a bias of zeros, and several others of its kind have all another one."""
    others = [values[one.name] for one in layers if one.op_type == node.op_type and one is not node]
    return not np.any(values[node.name]) and len(others) > 1 and all(map(np.any, others))


def _suspect(
    candidate: FileCandidate, node: onnx.NodeProto, kind: str, text: str, wanted: Any, *, is_certain: bool
) -> Suspicion:
    edits, repair = [], "give the float model, which has it"
    if wanted is not None:
        edits = [partial(FileEditor.set_bias, layer=node.name, values=wanted)]
        repair = "the bias of the float layer"
    tensor = node.output[0] if node.output[0] in candidate.index.makers else ""
    found = Suspicion(kind=kind, evidence=text, tensor=tensor, node=node.name, repair=repair)
    return replace(found, is_certain=is_certain, edits=tuple(edits))
