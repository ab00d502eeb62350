"""Calibration on other data: another preprocessing, or too few samples."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from onnxfq.data import Feed
from onnxfq.diagnosis.causes.ranges import APART, BETTER, LEAVING, TRIED, all_fits, grid_edits
from onnxfq.diagnosis.reading.candidate import FileCandidate
from onnxfq.diagnosis.reading.cause import Suspicion
from onnxfq.diagnosis.reading.file_editor import Edits
from onnxfq.diagnosis.reading.range_reading import RangeReading, mean_misfit
from onnxfq.graph.ops import MOVES
from onnxfq.judging.judge import GAINED_SHARE

A_BIT = 0.75
"""Share of the noise that goes where a bit of precision was lost, 6 dB."""

# Mean and deviation of ImageNet's pixels in 0..1, the usual ones (torchvision's documentation).
_MEAN, _DEVIATION = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)

_UNITS = {
    "0..1": (0.0, 1.0),
    "-1..1": (0.5, 0.5),
    "bytes": (0.0, 1 / 255),
    "bytes around 0": (0.5, 1 / 255),
    "16 bits": (0.5, 0.5 / 32768),
}
# How pictures and sounds are stored: the value of their middle or zero in 0..1, and of one.

_NORMALIZED = "mean and deviation taken out"

NEAR = 0.05
"""How far values of 0..1 may lie outside, for filters that overshoot."""

USED = 0.5
"""Part of the way from the middle or zero to 1 that the values may leave unused."""

Unit = tuple[Any, Any]
"""The value of the middle or zero in 0..1, and of one: numbers, or one for each channel."""

Transform = Callable[[NDArray[Any]], NDArray[Any]]


def find_other_preprocessing(candidate: FileCandidate) -> Iterator[Suspicion]:
    """Yield the preprocessing under which the ranges of the whole file fit the data.

    The range of an input must not fit worse: ranges that training learnt differ from the data's too. Without
    one a normalization may hide any scale, and other ranges prove nothing.
    """
    readings = _with_values(candidate.read_ranges(candidate.feeds[:TRIED]))
    before = mean_misfit(readings)
    first = candidate.proto.graph.input[0].name
    has_input = bool(readings) and candidate.index.origin(readings[0].quantizer.tensor, MOVES) == first
    if len(readings) < 2 or before < APART or not has_input:
        return
    misfits, known = {}, {reading.numbers: reading.misfit for reading in readings}
    for name, transform in _transforms(candidate).items():
        feeds = [_apply(feed, transform) for feed in candidate.feeds[:TRIED]]
        tried = _with_values(candidate.read_ranges(feeds))
        gains = [known.get(reading.numbers, 0.0) - reading.misfit for reading in tried]
        if 2 * sum(gain > 0 for gain in gains) > len(readings) and gains[0] >= 0:
            misfits[name] = mean_misfit(tried)
    name = min(misfits, key=lambda one: misfits[one], default="")
    if not name or misfits[name] > BETTER * before:
        return
    text = f"the file was calibrated on other values: its {len(readings)} ranges are {before:.0%} off "
    text += f"those of the data, and {misfits[name]:.0%} for data {name}"
    found = _recalibrate(candidate, all_fits(candidate), text, kind="preprocessing")
    yield replace(found, tensor=first, is_certain=True)


def find_few_samples(candidate: FileCandidate) -> Iterator[Suspicion]:
    """Yield a calibration whose ranges are left by unseen samples all over the file."""
    readings = _with_values(candidate.ranges)
    left = [reading for reading in readings if reading.overrun > LEAVING]
    if len(left) < 3 or 2 * len(left) < len(readings):
        return
    most = max(left, key=lambda reading: reading.overrun)
    repair = all_fits(candidate)
    alone = candidate.gain(grid_edits(candidate, most, most.fits[0]))
    if candidate.gain(repair) < max(A_BIT, alone + GAINED_SHARE):
        return
    text = f"unseen samples leave {len(left)} of {len(readings)} ranges, at {most.quantizer.tensor!r} by "
    text += f"{most.overrun:.0%} of the width: too few samples, or means of their extremes, calibrated it"
    yield _recalibrate(candidate, repair, text, kind="few_samples")


def _recalibrate(candidate: FileCandidate, edits: Edits, evidence: str, *, kind: str) -> Suspicion:
    """Return the suspicion that every range has to come from the data."""
    numbers = tuple(quantizer.number for quantizer in candidate.form.activations)
    repair, harm = f"the ranges of the data for all {len(candidate.ranges)} scales", candidate.gain(edits)
    found = Suspicion(kind=kind, evidence=evidence, repair=repair, harm=harm, is_whole=True)
    return replace(found, numbers=numbers, edits=edits)


def _with_values(readings: Sequence[RangeReading]) -> list[RangeReading]:
    return [reading for reading in readings if reading.values.power]


def _apply(feed: Feed, transform: Transform) -> Feed:
    floats = {name: array for name, array in feed.items() if array.dtype.kind == "f"}
    return {**feed, **{name: transform(array).astype(array.dtype) for name, array in floats.items()}}


def _convert(values: NDArray[Any], own: Unit, other: Unit) -> NDArray[Any]:
    """Return values of one unit in another one."""
    return np.asarray((values * own[1] + own[0] - other[0]) / other[1])


def _transforms(candidate: FileCandidate) -> dict[str, Transform]:
    """Return other preprocessings that the data may have, as far as its values tell."""
    found: dict[str, Transform] = {}
    arrays = [array for feed in candidate.feeds for array in feed.values() if array.dtype.kind == "f"]
    axis = next((at for at in (1, 3) if all(a.ndim == 4 and a.shape[at] == 3 for a in arrays)), None)
    units: dict[str, Unit] = dict(_UNITS)
    if arrays and axis is not None:
        shape = [3 if at == axis else 1 for at in range(4)]
        units[_NORMALIZED] = np.reshape(_MEAN, shape), np.reshape(_DEVIATION, shape)
        found["with channels in the other order"] = partial(np.flip, axis=axis)
    fitting = [own for own, unit in units.items() if all(_is_unit(array, *unit) for array in arrays)]
    for own, other in ((own, other) for own in fitting for other in units if other != own):
        found[f"{other} in place of {own}"] = partial(_convert, own=units[own], other=units[other])
    return found


def _is_unit(array: NDArray[Any], middle: Any, one: Any) -> bool:
    """Tell whether values of a unit lie in 0..1 and use a good part of it; filters overshoot a bit."""
    values = array * one + middle
    used = np.abs(values - middle).max() / (1 - np.max(middle))
    return bool(-NEAR <= values.min() and values.max() <= 1 + NEAR and used >= 1 - USED)
