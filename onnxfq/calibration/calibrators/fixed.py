"""Fixed ranges: given by the user, or by the mathematics of the operator that made the tensor."""

from __future__ import annotations

from onnxfq.calibration.statistics import TensorStatistics
from onnxfq.numerics.spec import QuantSpec

KNOWN_RANGES: dict[str, tuple[float, float]] = {
    "HardSigmoid": (0.0, 1.0),
    "Sigmoid": (0.0, 1.0),
    "Softmax": (0.0, 1.0),
    "Softsign": (-1.0, 1.0),
    "Tanh": (-1.0, 1.0),
}
"""Op type -> the smallest range that holds every output it can have (ONNX's definitions)."""


def fixed(statistics: TensorStatistics, spec: QuantSpec, low: float, high: float) -> tuple[float, float]:
    """Return (low, high), whatever was observed."""
    return low, high


def is_fixed(name: str) -> bool:
    """Tell whether the calibrator called `name` does not look at the data."""
    return name.startswith(("range:", "known:"))
