"""Weights of another model, and weights without the factors that equalize their data."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from onnxfq.diagnosis.causes.weight_reading import OFF, WeightReading
from onnxfq.diagnosis.reading.candidate import FileCandidate
from onnxfq.diagnosis.reading.cause import Suspicion
from onnxfq.diagnosis.reading.quantizers import ActivationQuantizer


def find_other_weights(candidate: FileCandidate) -> Iterator[Suspicion]:
    """Yield that most weights of the file are none of the float model's, by their values."""
    floats = candidate.floats
    if floats is None or candidate.opened is None or 2 * len(floats.layers) >= floats.asked:
        return
    text = f"{floats.asked - len(floats.layers)} of {floats.asked} weights are no weights of the float model"
    repair = "give --float the model that the file was made of"
    yield Suspicion(kind="other_weights", evidence=text, repair=repair, harm=math.inf, is_certain=True)


def find_stale(reading: WeightReading, others: Sequence[WeightReading]) -> Suspicion | None:
    """Return that the channels of the data have factors that the weight lacks, or the other way."""
    values, floats, data = reading.values, reading.floats, reading.layer.input[0]
    quantizer = next((one for one in reading.candidate.form.activations if one.output == data), None)
    if quantizer is None or floats is None or values.ndim != 2:
        return None
    kept = reading.axis or 0
    factors = _channel_factors(reading.candidate, quantizer)
    if factors is None or factors.size != values.shape[1 - kept]:
        return None
    given = (values * floats).sum(kept) / np.maximum((floats**2).sum(kept), 1e-30)
    if np.abs(factors * given - 1).max() <= 4 * OFF:
        return None
    right = (floats / np.expand_dims(factors, kept)).astype(np.float32)
    fix = reading.round_again(right, reading.own_axis)
    text = f"the channels of {quantizer.tensor!r} are {factors.min():.3g} to {factors.max():.3g} times those "
    text += "of the float model, and the weight has not the inverse factors"
    repair = "the weight of the float layer with the inverse factors"
    return reading.suspect(text, repair, fix, kind="stale_weights", is_certain=False)


def _channel_factors(candidate: FileCandidate, quantizer: ActivationQuantizer) -> NDArray[np.float64] | None:
    """Return the factor of each channel, along the last axis, of a tensor against the float one."""
    floats = candidate.floats
    if floats is None or candidate.opened is None or quantizer.number not in floats.tensors:
        return None
    products = squares = mine = 0.0
    for feed in candidate.split.choosing:
        (have,) = candidate.inner(feed, [quantizer])
        (want,) = floats.run(feed, [floats.tensors[quantizer.number]])
        if have.shape != want.shape or have.ndim < 2:
            return None
        a, b = (np.asarray(x, np.float64).reshape(-1, x.shape[-1]) for x in (have, want))
        products, squares, mine = products + (a * b).sum(0), squares + (b * b).sum(0), mine + (a * a).sum(0)
    factors = np.asarray(products) / np.maximum(squares, 1e-30)
    residual = np.asarray(mine - factors * products).sum() / max(float(np.sum(mine)), 1e-30)
    is_scaled = residual < 0.01 and (factors > 0).all() and factors.max() / factors.min() > 1 + 4 * OFF
    return factors if is_scaled else None
