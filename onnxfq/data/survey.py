"""Survey of the samples of a pass: digest, few, constant or repeated samples, and ranges of values."""

from __future__ import annotations

import numpy as np

from onnxfq.data.digest import DataDigest, DigestedFeed, DigestedWhole
from onnxfq.data.inputs import Feed, Inputs, InputSpec, WholeFeed, sample_count, samples
from onnxfq.data.validation import Notes
from onnxfq.errors import DataError

FEW = 32
_REMEMBERED = 1 << 16
"""Most samples whose digests are kept to find repeated ones; it bounds the memory."""
_NAMED = 3


class Survey:
    """Summary of all samples; each sample costs one hash."""

    def __init__(self, inputs: Inputs) -> None:
        """Start without samples."""
        self._inputs = inputs
        self._number = 0
        self._rows = 0
        self._constant: list[int] = []
        self._repeated: list[int] = []
        self._seen: set[int] = set()
        self.digest = DataDigest()

    def add(self, feed: Feed) -> DigestedFeed:
        """Add the samples of `feed`; return it with their digests."""
        digested_feed = (DigestedWhole if isinstance(feed, WholeFeed) else DigestedFeed)(feed, self._inputs)
        for sample, digest in zip(samples(feed, self._inputs), digested_feed.digests, strict=True):
            self.digest = self.digest.plus(digest)
            if digest in self._seen:
                self._repeated.append(self._number)
            elif len(self._seen) < _REMEMBERED:
                self._seen.add(digest)
            if _constant(sample):
                self._constant.append(self._number)
            self._number += 1
        self._rows += _rows(feed, self._inputs)
        return digested_feed

    def tell(self, notes: Notes) -> None:
        """Log the findings in at most two lines."""
        if self._rows < FEW:
            notes.once(f"the data has only {self._rows} samples; 100 to 500 are usual for calibration")
        found = {"hold one value only": self._constant, "repeat earlier ones": self._repeated}
        findings = [f"{len(few)} {what} ({_format_samples(few)})" for what, few in found.items() if few]
        if findings:
            notes.once(f"of {self._number} samples {' and '.join(findings)}; check how the data was made")


def _constant(sample: Feed) -> bool:
    """Return whether each array of `sample` has only one value; arrays of one element are ignored."""
    arrays = [array.ravel() for array in sample.values() if array.size > 1]
    return bool(arrays) and all(bool((array == array[0]).all()) for array in arrays)


def _rows(feed: Feed, inputs: Inputs) -> int:
    """Return the number of samples in `feed`, with a fixed batch counted in full."""
    sizes = {feed[spec.name].shape[0] for spec in inputs if spec.shape}
    return int(sizes.pop()) if len(sizes) == 1 else 1


def _format_samples(numbers: list[int]) -> str:
    word = "sample" if len(numbers) == 1 else "samples"
    more = ", ..." if len(numbers) > _NAMED else ""
    return f"{word} {', '.join(map(str, numbers[:_NAMED]))}{more}"


FACTOR = 8
"""Largest ratio of ranges that different samples explain; beyond it the scale differs."""
LOOK = 32
"""Samples before ranges are compared, because a single image may be dark."""

_BRIGHT = 16
_PIXELS = 255


class ValueRange:
    """Range of each float input over the first samples, checked once."""

    def __init__(self, inputs: Inputs, example: Feed | None, notes: Notes | None) -> None:
        """Start without samples.

        Args:
            inputs: inputs of the model.
            example: known-good sample, if any.
            notes: receiver of the note about raw pixels; None if raw pixels are intended.
        """
        self._specs = [spec for spec in inputs if spec.dtype.kind == "f"]
        self._inputs = inputs
        self._example = example
        self._notes = notes
        self._limits = {spec.name: (np.inf, -np.inf) for spec in self._specs}
        self._pixels = {spec.name for spec in self._specs}
        self._seen = 0
        self._judged = not self._specs

    def add(self, feed: Feed) -> None:
        """Add a feed. Raises DataError once the range differs from the example's."""
        if self._judged:
            return
        for spec in self._specs:
            values = feed[spec.name]
            low, high = self._limits[spec.name]
            finite = values[np.isfinite(values)]
            if finite.size:
                self._limits[spec.name] = min(low, float(finite.min())), max(high, float(finite.max()))
            if spec.name in self._pixels and not _like_pixels(values):
                self._pixels.discard(spec.name)
        if not self._pixels and self._example is None:
            self._judged = True
        self._seen += sample_count(feed, self._inputs)
        if self._seen >= LOOK:
            self.judge()

    def judge(self) -> None:
        """Check the ranges of the samples so far; later calls do nothing."""
        if self._judged:
            return
        self._judged = True
        for spec in self._specs:
            low, high = self._limits[spec.name]
            if self._example is not None and low <= high:
                _compare(spec, (low, high), self._example[spec.name])
            elif self._notes is not None and spec.name in self._pixels and high > _BRIGHT:
                self._notes.once(
                    f"input {spec.name}: the values are whole numbers from {low:g} to {high:g}, as raw "
                    "pixels; if the model was trained on 0..1, give --scale 0.00392, else --scale 1"
                )


def _like_pixels(values: np.ndarray) -> bool:
    """Return whether `values` are images of rank 4 with only whole numbers from 0 to 255."""
    if values.ndim != 4 or not values.size or not {values.shape[1], values.shape[3]} & {1, 3, 4}:
        return False
    inside = (values >= 0) & (values <= _PIXELS)
    return bool(inside.all() and (values == np.rint(values)).all())


def _compare(spec: InputSpec, limits: tuple[float, float], example: np.ndarray) -> None:
    """Raise DataError if the largest magnitudes of data and example differ by more than FACTOR."""
    low, high = (float(example.min()), float(example.max())) if example.size else (0.0, 0.0)
    expected, largest = max(-low, high), max(-limits[0], limits[1])
    if not 0 < expected < np.inf:
        raise DataError(f"the example has no values to compare in input {spec.name!r}; give a real sample")
    if largest <= FACTOR * expected and expected <= FACTOR * largest:
        return
    remedy = "give --scale, --mean and --std as in training"
    if largest == 0:
        remedy = "check where the data comes from"
    elif (low < 0) == (limits[0] < 0):
        remedy = f"give --scale {_scale(expected / largest):.3g}"
    raise DataError(
        f"input {spec.name!r} has values from {limits[0]:.4g} to {limits[1]:.4g}, the example from {low:.4g} "
        f"to {high:.4g}; {remedy}"
    )


def _scale(ratio: float) -> float:
    """Return `ratio`, or 1/255 or 255 if it is within a factor of 2, because brightest pixels vary."""
    for usual in (1 / _PIXELS, float(_PIXELS)):
        if usual / 2 < ratio < usual * 2:
            return usual
    return ratio
