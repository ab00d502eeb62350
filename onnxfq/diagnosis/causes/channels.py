"""Channels of an activation of very different size under one scale, and factors that even them out."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import partial

import numpy as np
from numpy.typing import NDArray

from onnxfq.diagnosis.causes.weight_reading import WeightReading, read_weights
from onnxfq.diagnosis.reading.candidate import FileCandidate
from onnxfq.diagnosis.reading.cause import Suspicion
from onnxfq.diagnosis.reading.file_editor import Edit, FileEditor
from onnxfq.diagnosis.reading.quantizers import ActivationQuantizer
from onnxfq.diagnosis.reading.range_reading import RangeReading
from onnxfq.diagnosis.reading.values import TensorValues
from onnxfq.documents.layers import WIDE, ChannelSizes
from onnxfq.graph.node_fields import attributes_of
from onnxfq.numerics.granularity import Granularity
from onnxfq.numerics.layout import Layout

HALF = 0.5
"""Share of the noise of the file from which such a tensor is a cause: many sound networks have one."""


def find_activation_channels(candidate: FileCandidate) -> Iterator[Suspicion]:
    """Yield tensors whose largest channel is far larger than the typical one, at most of the noise."""
    for quantizer in candidate.form.activations:
        values = candidate.values[quantizer.number]
        sizes = ChannelSizes.of(values.channels, len(values.seen.feed_ranges))
        if sizes is None or not sizes.median or sizes.ratio < WIDE:
            continue
        numbers = (quantizer.number,)
        if (harm := candidate.share(numbers) - candidate.share(())) < HALF:
            continue
        edits = _equalize(candidate, quantizer)
        by_hand = "quantize the float model again: `onnxfq quantize` evens out channels with --repair auto"
        repair = "a Mul that evens out the channels, and its inverse in the weights" if edits else by_hand
        text = f"{sizes}: that one has {100 / sizes.ratio:.2g}% of the grid"
        found = Suspicion.of([quantizer], kind="channel_spread", evidence=text, repair=repair, harm=harm)
        yield replace(found, edits=edits)


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
    if any(one.shape != sizes.shape for one in weights):
        return ()
    largest = np.max(weights, 0)
    is_used = (sizes > 0) & (largest > 0)
    factors = np.sqrt(np.where(is_used, sizes, 1) / np.where(is_used, largest, 1)).astype(np.float32)
    spatial = layers[0].values.ndim - 2 if layers[0].layer.op_type == "Conv" else 0
    shaped = factors.reshape(-1, *[1] * spatial)
    runs = (candidate.inner(feed, [quantizer]) for feed in candidate.feeds)
    values = TensorValues.over([TensorValues.of(array / shaped, not spatial) for (array,) in runs])
    _, fit = RangeReading([quantizer], values).fits
    edits: list[Edit] = [
        partial(FileEditor.divide, quantizer=quantizer, factors=shaped),
        partial(FileEditor.set_grid, quantizer=quantizer, fit=fit),
    ]
    for one in layers:
        floats = one.values if one.floats is None else one.floats
        wide = [-1 if at == _input_axis(one) else 1 for at in range(floats.ndim)]
        weight = (floats * factors.reshape(wide)).astype(np.float32)
        edits.append(one.round_again(weight, one.own_axis))
    return tuple(edits)


def _input_axis(reading: WeightReading) -> int:
    """Return the axis of a weight along which the channels of its data lie."""
    layer, shape = reading.layer, reading.values.shape
    if layer.op_type == "Conv":
        return 0 if shape[1] == 1 else 1
    return 1 if layer.op_type == "Gemm" and attributes_of(layer).get("transB") else len(shape) - 2


def _weight_sizes(reading: WeightReading) -> NDArray[np.float32]:
    """Return the largest weight of each channel of the data; nothing for other operators."""
    if reading.layer.op_type not in ("Conv", "Gemm", "MatMul"):
        return np.zeros(0, np.float32)
    layout = Layout(Granularity(_input_axis(reading)), reading.values.shape)
    return layout.reduce(np.maximum, np.abs(reading.values), 0.0)
