"""Weights that were rounded before or after the factors that equalize their data."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from onnxfq.diagnosis.causes.weight_reading import OFF, WeightReading
from onnxfq.diagnosis.reading.candidate import FileCandidate
from onnxfq.diagnosis.reading.cause import Suspicion


def find_stale(reading: WeightReading, others: Sequence[WeightReading]) -> Suspicion | None:
    """Return that the channels of the data have factors that the weight lacks, or the other way."""
    if (
        reading.candidate.floats is None
        or reading.candidate.opened is None
        or reading.floats is None
        or reading.values.ndim != 2
    ):
        return None
    data = reading.layer.input[0]
    number = next((q.number for q in reading.candidate.form.activations if data == q.output), None)
    name = None if number is None else reading.candidate.floats.tensors.get(number)
    if number is None or name is None:
        return None
    summed = 1 - (reading.axis or 0)
    factors = _channel_factors(reading.candidate, number, name)
    if factors is None or factors.size != reading.values.shape[summed]:
        return None
    shape = [-1 if at == summed else 1 for at in range(2)]
    given = (reading.values * reading.floats).sum(1 - summed) / np.maximum(
        (reading.floats**2).sum(1 - summed), 1e-30
    )
    product = factors * given
    if np.abs(product - 1).max() <= 4 * OFF:
        return None
    right = (reading.floats / factors.reshape(shape)).astype(np.float32)
    fix = reading.round_again(right, reading.own_axis)
    text = (
        f"the channels of {reading.candidate.form.activations[number].tensor!r} are {factors.min():.3g} to "
        f"{factors.max():.3g} times those of the float model, and the weight has not the inverse factors"
    )
    repair = "the weight of the float layer with the inverse factors"
    return reading.suspect(text, repair, fix, kind="stale_weights", is_certain=False)


def _channel_factors(candidate: FileCandidate, number: int, name: str) -> NDArray[np.float64] | None:
    """Return the factor of each channel, along the last axis, of a tensor against the float one."""
    assert candidate.opened is not None and candidate.floats is not None
    products = squares = mine = 0.0
    for feed in candidate.split.choosing:
        (have,) = candidate.inner(feed, [candidate.form.activations[number]])
        (want,) = candidate.floats.run(feed, [name])
        if have.shape != want.shape or have.ndim < 2:
            return None
        a, b = (np.asarray(x, np.float64).reshape(-1, x.shape[-1]) for x in (have, want))
        products, squares, mine = products + (a * b).sum(0), squares + (b * b).sum(0), mine + (a * a).sum(0)
    factors = np.asarray(products) / np.maximum(squares, 1e-30)
    residual = np.asarray(mine - factors * products).sum() / max(float(np.sum(mine)), 1e-30)
    is_scaled = residual < 0.01 and (factors > 0).all() and factors.max() / factors.min() > 1 + 4 * OFF
    return factors if is_scaled else None
