"""Channels of an activation of very different size under one scale, and factors that even them out."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import numpy as np
from numpy.typing import NDArray

from onnxfq.calibration.calibrators import MSE
from onnxfq.diagnosis.causes.weight_reading import WeightReading, read_weights
from onnxfq.diagnosis.reading.candidate import FileCandidate
from onnxfq.diagnosis.reading.cause import Edit, Suspicion
from onnxfq.diagnosis.reading.file_editor import FileEditor
from onnxfq.diagnosis.reading.quantizers import ActivationQuantizer
from onnxfq.diagnosis.reading.toggles import TrialState
from onnxfq.diagnosis.reading.values import TensorValues
from onnxfq.documents.layers import WIDE, ChannelSizes
from onnxfq.graph.node_fields import attributes_of

HALF = 0.5
"""Share of the noise of the file from which such a tensor is a cause: many sound networks have one."""


def find_activation_channels(candidate: FileCandidate) -> Iterator[Suspicion]:
    """Yield tensors whose largest channel is far larger than the typical one, at most of the noise."""
    for quantizer in candidate.form.activations:
        values = candidate.values[quantizer.number]
        sizes = ChannelSizes.of(values.channels, len(values.seen.feed_ranges))
        if sizes is None or not sizes.median or sizes.ratio < WIDE:
            continue
        if candidate.share((quantizer.number,)) < HALF:
            continue
        repair = TrialState(off=frozenset({quantizer.number}))
        harm = candidate.harm((quantizer.number,), repair)
        if harm < HALF:
            continue
        edits = _equalize(candidate, quantizer)
        by_hand = "quantize the float model again: `onnxfq quantize` evens out channels with --repair auto"
        yield Suspicion(
            kind="channel_spread",
            evidence=f"{sizes}: that one has {100 / sizes.ratio:.2g}% of the grid",
            tensor=quantizer.tensor,
            node=quantizer.node,
            repair="a Mul that evens out the channels, and its inverse in the weights" if edits else by_hand,
            harm=harm,
            numbers=(quantizer.number,),
            trial=repair,
            edits=edits,
        )


def _equalize(candidate: FileCandidate, quantizer: ActivationQuantizer) -> tuple[Edit, ...]:
    """Return the edits that divide the channels of a tensor by factors; none if not only layers read it.

    The factors follow SmoothQuant (Xiao et al., 2022, equation 4, alpha 0.5).
    """
    readers = {node.name for node in candidate.readers(quantizer)}
    layers = [r for r in read_weights(candidate) if r.layer.name in readers and r.constant.is_editable]
    is_shared = any(quantizer in one.group and len(one.group) > 1 for one in candidate.ranges)
    if quantizer.op_type != "QuantizeLinear" or is_shared or not readers or len(layers) < len(readers):
        return ()
    sizes = candidate.values[quantizer.number].channels
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
        for feed in candidate.feeds
        for array in candidate.inner(feed, [quantizer])
    ]
    fit = TensorValues.over(parts).fit(quantizer, MSE)
    edits: list[Edit] = [
        partial(FileEditor.divide, quantizer=quantizer, factors=shaped),
        partial(FileEditor.set_grid, quantizer=quantizer, fit=fit),
    ]
    for one in layers:
        values = one.values if one.floats is None else one.floats
        wide = [-1 if at == _input_axis(one) else 1 for at in range(values.ndim)]
        weight = (values * factors.reshape(wide)).astype(np.float32)
        edits.append(one.round_again(weight, one.own_axis)[1])
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
