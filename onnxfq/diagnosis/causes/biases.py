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
from onnxfq.diagnosis.reading.relu_limits import find_layer
from onnxfq.diagnosis.reading.toggles import AS_WRITTEN, TrialState
from onnxfq.graph.external.tensor import tensor_array
from onnxfq.graph.node_fields import input_name

_BIASED = ("Conv", "ConvTranspose", "Gemm")

FULL = 2**31 - 1
"""The largest number of int32, where a bias saturates."""

CHANGED = 0.5
"""Part of the size of a bias from which its difference is more than a correction of a layer's mean error."""


def find_biases(candidate: FileCandidate) -> Iterator[Suspicion]:
    """Yield biases that are missing, saturated or another one than the float model's."""
    stored = {one.constant: one.grid.steps for one in candidate.form.constants if one.is_bias}
    index, constants = candidate.form_index, candidate.form_index.constants
    biased = [node for node in index.nodes if node.op_type in _BIASED]
    layers = [node for node in biased if input_name(node, 2) in constants]
    values = {one.name: np.asarray(tensor_array(constants[one.input[2]]), np.float32) for one in layers}
    norms = [node for node in index.nodes if node.op_type == "BatchNormalization"]
    normed = [find_layer(index, node.input[0]) for node in norms]  # their bias is the norm's
    for node in layers:
        bias, steps = values[node.name], stored.get(node.input[2], np.zeros(0))
        full = int((np.abs(steps.astype(np.int64)) >= FULL).sum())
        layer = None if candidate.floats is None else candidate.floats.layers.get(node.name)
        wanted = None if layer is None else layer.bias
        if full:
            text = f"{full} of {bias.size} numbers of the bias are at the end of int32"
            yield _suspect(candidate, node, "saturated_bias", text, wanted, is_certain=True)
        elif wanted is not None and wanted.shape == bias.shape and np.any(wanted):
            off = float(np.linalg.norm(bias - wanted) / np.linalg.norm(wanted))
            if not np.any(bias):
                text = f"the float layer has a bias of up to {np.abs(wanted).max():.4g}, the file has none"
                yield _suspect(candidate, node, "lost_bias", text, wanted, is_certain=True)
            elif off > CHANGED:
                text = f"the bias is {off:.0%} off that of the float layer"
                yield _suspect(candidate, node, "lost_bias", text, wanted, is_certain=False)
        elif candidate.floats is None and node not in normed and _lacks_bias(node, layers, values):
            text = f"the other {node.op_type} layers have a bias, this one has none"
            yield _suspect(candidate, node, "lost_bias", text, None, is_certain=True)


def _lacks_bias(
    node: onnx.NodeProto, layers: list[onnx.NodeProto], values: dict[str, NDArray[np.float32]]
) -> bool:
    """Tell whether a layer has a bias of zeros, and several others of its kind have all another one."""
    others = [values[one.name] for one in layers if one.op_type == node.op_type and one is not node]
    return not np.any(values[node.name]) and len(others) > 1 and all(map(np.any, others))


def _suspect(
    candidate: FileCandidate, node: onnx.NodeProto, kind: str, text: str, wanted: Any, *, is_certain: bool
) -> Suspicion:
    trial, edits, repair = AS_WRITTEN, [], "give the float model, which has it"
    if wanted is not None:
        trial, repair = TrialState(constants={node.input[2]: wanted}), "the bias of the float layer"
        edits = [partial(FileEditor.set_bias, layer=node.name, values=wanted)]
    tensor = node.output[0] if node.output[0] in candidate.index.makers else ""
    found = Suspicion(kind=kind, evidence=text, tensor=tensor, node=node.name, repair=repair, trial=trial)
    return replace(found, is_certain=is_certain, edits=tuple(edits))
