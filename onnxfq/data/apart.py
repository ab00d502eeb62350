"""`Extents`: the largest magnitudes of samples, and the samples that stand apart from all others by them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from onnxfq.data.digest import sample_digests
from onnxfq.data.inputs import Feed, Inputs, samples

LEAST_OCTAVES = 2.0
"""Distance to the next sample from which on one stands apart: it costs a range 2 bits, which are 12 dB."""

SPREADS = 3.0
"""The same in quartile distances of the others: John Tukey's fence for values that are far away."""

MOST_SHARE = 16
"""Samples of which one may stand apart, and one of fewer; more of them are a kind of sample."""


class Apart(NamedTuple):
    """One sample that stands apart.

    Attributes:
        digest: of the sample.
        place: in the data, from 0.
        input: the input by which it does.
        amax: its largest magnitude there.
        others: the largest magnitude there of all samples that do not stand apart.
    """

    digest: int
    place: int
    input: str
    amax: float
    others: float

    def __str__(self) -> str:
        """Return the sample and its magnitude in one line."""
        return f"sample {self.place} reaches {self.amax:.3g} in {self.input!r}, all others {self.others:.3g}"


class Extents:
    """The largest magnitude of every sample in every input of floats."""

    def __init__(self, inputs: Inputs) -> None:
        """Start without samples."""
        self._inputs = inputs
        self._digests: list[int] = []
        self._amax: dict[str, list[float]] = {spec.name: [] for spec in inputs if spec.dtype.kind == "f"}

    def add(self, feed: Feed) -> None:
        """Measure the samples of `feed`."""
        self._digests += sample_digests(feed, self._inputs)
        for sample in samples(feed, self._inputs):
            for name, known in self._amax.items():
                values = np.abs(np.asarray(sample[name], np.float32))
                known.append(float(np.max(values, initial=0.0, where=np.isfinite(values))))

    def find_apart(self) -> list[Apart]:
        """Return the samples that stand apart, in the order of the data."""
        apart = [one for name, amax in self._amax.items() for one in self._find_in(name, amax)]
        return sorted({one.place: one for one in apart}.values(), key=lambda one: one.place)

    def _find_in(self, name: str, amax: Sequence[float]) -> list[Apart]:
        values = np.asarray(amax, np.float64)
        order = np.argsort(-values, kind="stable")
        octaves = np.log2(np.maximum(values[order], np.finfo(np.float32).tiny))
        most = min(max(1, len(order) // MOST_SHARE), len(order) - 2)
        for count in range(most, 0, -1):
            rest = octaves[count:]
            lower, upper = np.quantile(rest, (0.25, 0.75))
            if octaves[count - 1] - rest[0] >= max(LEAST_OCTAVES, SPREADS * (upper - lower)):
                largest = float(values[order[count]])
                return [Apart(self._digests[at], int(at), name, amax[at], largest) for at in order[:count]]
        return []
