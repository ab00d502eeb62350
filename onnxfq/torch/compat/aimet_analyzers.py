"""AIMET's document: encoding analyzers, which turn data into a range.

A user's own one is a subclass of `onnxfq.torch.Observer`.
"""

from __future__ import annotations

from collections.abc import Sequence


class EncodingAnalyzer:
    """Name of an observer and of its calibrator.

    Attributes:
        name: observer of `FakeQuantize`.
        calibrator: name in `CALIBRATORS`.
    """

    name, calibrator = "minmax", "minmax"

    def __init__(self, shape: Sequence[int] = (), block_size: Sequence[int] | None = None) -> None:
        """Take AIMET's arguments; the quantizer's own shape counts."""


class MinMaxEncodingAnalyzer(EncodingAnalyzer):
    """Smallest and largest value."""


class SqnrEncodingAnalyzer(EncodingAnalyzer):
    """Range of least error, AIMET's `tf_enhanced`; one scale per tensor, or the last tensor of a weight."""

    name, calibrator = "histogram", "sqnr"

    def __init__(self, shape: Sequence[int] = (), *arguments: object, **keywords: object) -> None:
        """Use the histogram of the last tensor where several scales are needed."""
        super().__init__(shape)
        self.name = "histogram" if all(n == 1 for n in shape) else "latest"


class PercentileEncodingAnalyzer(SqnrEncodingAnalyzer):
    """Range without 100 - percentile % of the values at each end."""

    def __init__(self, shape: Sequence[int] = (), num_bins: int = 2048, percentile: float = 100) -> None:
        """Cut at each end; the number of bins has no effect, because histograms here are exact to 1/128."""
        super().__init__(shape)
        self.calibrator = f"percentile_each_end:{percentile}"
