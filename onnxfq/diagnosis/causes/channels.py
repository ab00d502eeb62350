"""Channels of an activation of very different size under one scale, and factors that even them out."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

import numpy as np
from numpy.typing import NDArray

from onnxfq.calibration.calibrators import MSE
from onnxfq.diagnosis.causes.weight_reading import WeightReading, is_per_axis, read_weights, round_again
from onnxfq.diagnosis.reading.board import Change
from onnxfq.diagnosis.reading.cause import Suspicion
from onnxfq.diagnosis.reading.file_editor import FileEditor
from onnxfq.diagnosis.reading.patient import Patient
from onnxfq.diagnosis.reading.quantizers import ActivationQuantizer
from onnxfq.diagnosis.reading.values import TensorValues
from onnxfq.documents.layers import WIDE, ChannelSizes
from onnxfq.graph.node_fields import attributes_of

HALF = 0.5
"""Share of the noise of the file from which such a tensor is a cause: many sound networks have one."""


def find_activation_channels(patient: Patient) -> Iterator[Suspicion]:
    """Yield tensors whose largest channel is far larger than the typical one, at most of the noise."""
    if patient.board is None:
        return
    for quantizer in patient.form.activations:
        values = patient.values[quantizer.number]
        sizes = ChannelSizes.of(values.channels, len(values.seen.feed_ranges))
        if sizes is None or not sizes.median or sizes.ratio < WIDE:
            continue
        if patient.share((quantizer.number,)) < HALF:
            continue
        repair = Change(off=frozenset({quantizer.number}))
        harm = patient.harm((quantizer.number,), repair)
        if harm < HALF:
            continue
        edits = _equalize(patient, quantizer)
        by_hand = "quantize the float model again: `onnxfq quantize` evens out channels with --repair auto"
        yield Suspicion(
            kind="channel_spread",
            evidence=f"{sizes}: that one has {100 / sizes.ratio:.2g}% of the grid",
            tensor=quantizer.tensor,
            node=quantizer.node,
            repair="a Mul that evens out the channels, and its inverse in the weights" if edits else by_hand,
            harm=harm,
            numbers=(quantizer.number,),
            change=repair,
            edits=edits,
        )


def _equalize(patient: Patient, quantizer: ActivationQuantizer) -> tuple[Callable[[FileEditor], None], ...]:
    """Return the edits that divide the channels of a tensor by factors; none if not only layers read it.

    The factors follow SmoothQuant (Xiao et al., 2022, equation 4, alpha 0.5).
    """
    readers = {node.name for node in patient.readers(quantizer)}
    layers = [one for one in read_weights(patient) if one.layer.name in readers and one.constant.is_editable]
    is_shared = any(quantizer in group and len(group) > 1 for group in patient.groups)
    if quantizer.op_type != "QuantizeLinear" or is_shared or not readers or len(layers) < len(readers):
        return ()
    sizes = patient.values[quantizer.number].channels
    weights = [_weight_sizes(one) for one in layers]
    if any(one is None or one.shape != sizes.shape for one in weights):
        return ()
    largest = np.max([one for one in weights if one is not None], 0)
    factors = np.sqrt(np.where(sizes > 0, sizes, 1) / np.where(largest > 0, largest, 1)).astype(np.float32)
    factors = np.where((sizes > 0) & (largest > 0), factors, 1).astype(np.float32)
    spatial = layers[0].values.ndim - 2 if layers[0].layer.op_type == "Conv" else 0
    shaped = factors.reshape(-1, *[1] * spatial)
    parts = [
        TensorValues.of(array / shaped, not spatial)
        for feed in patient.feeds
        for array in patient.inner(feed, [quantizer])
    ]
    fit = TensorValues.over(parts).fit(quantizer, MSE)
    edits: list[Callable[[FileEditor], None]] = [
        partial(FileEditor.divide, quantizer=quantizer, factors=shaped),
        partial(FileEditor.set_grid, quantizer=quantizer, fit=fit),
    ]
    for one in layers:
        values = one.values if one.floats is None else one.floats
        wide = [-1 if at == _input_axis(one) else 1 for at in range(values.ndim)]
        weight = (values * factors.reshape(wide)).astype(np.float32)
        edits.append(round_again(one, weight, one.axis if is_per_axis(one) else None)[1])
    return tuple(edits)


def _input_axis(reading: WeightReading) -> int:
    """Return the axis of a weight along which the channels of its data lie."""
    layer, shape = reading.layer, reading.values.shape
    if layer.op_type == "Conv":
        return 0 if shape[1] == 1 else 1
    return 1 if layer.op_type == "Gemm" and attributes_of(layer).get("transB") else len(shape) - 2


def _weight_sizes(reading: WeightReading) -> NDArray[np.float32] | None:
    """Return the largest weight of each channel of the data; None where channels are in groups."""
    if reading.layer.op_type not in ("Conv", "Gemm", "MatMul"):
        return None
    at = _input_axis(reading)
    others = tuple(axis for axis in range(reading.values.ndim) if axis != at)
    return np.asarray(np.abs(reading.values).max(others))
