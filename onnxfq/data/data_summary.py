"""Data summary: digest, and warnings for few, constant or repeated samples."""

from __future__ import annotations

from onnxfq.data.digest import DataDigest, DigestedFeed, digested
from onnxfq.data.inputs import Feed, Inputs, samples
from onnxfq.data.notes import Notes

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
        made = digested(feed, self._inputs)
        for sample, digest in zip(samples(feed, self._inputs), made.digests, strict=True):
            self.digest = self.digest.plus(digest)
            if digest in self._seen:
                self._repeated.append(self._number)
            elif len(self._seen) < _REMEMBERED:
                self._seen.add(digest)
            if _constant(sample):
                self._constant.append(self._number)
            self._number += 1
        self._rows += _rows(feed, self._inputs)
        return made

    def tell(self, notes: Notes) -> None:
        """Log the findings in at most two lines."""
        if self._rows < FEW:
            notes.once(f"the data has only {self._rows} samples; 100 to 500 are usual for calibration")
        found = [
            f"{len(numbers)} {what} ({_format_samples(numbers)})"
            for what, numbers in (
                ("hold one value only", self._constant),
                ("repeat earlier ones", self._repeated),
            )
            if numbers
        ]
        if found:
            notes.once(f"of {self._number} samples {' and '.join(found)}; check how the data was made")


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
