"""Figures of results as matplotlib's, for notebooks and papers; needs the extra `plot`."""

from __future__ import annotations

from onnxfq.report.plot import channel_ranges, histogram, sensitivity
from onnxfq.report.plot import plot_quantization_errors as quantization_errors

__all__ = ["channel_ranges", "histogram", "quantization_errors", "sensitivity"]
