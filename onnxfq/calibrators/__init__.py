"""Calibrators: pure functions from the statistics of one tensor to a real range, one per file."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from onnxfq.calibrators.entropy import entropy
from onnxfq.calibrators.minmax import minmax
from onnxfq.calibrators.mse import mse
from onnxfq.calibrators.percentile import percentile
from onnxfq.errors import SpecError, nearest
from onnxfq.qtypes import QType
from onnxfq.statistics import TensorStatistics

Calibrator = Callable[[TensorStatistics, QType, bool], tuple[float, float]]
"""(statistics, qtype, symmetric) -> (rmin, rmax)."""

CALIBRATORS: dict[str, Calibrator] = {
    "entropy": entropy,
    "minmax": minmax,
    "mse": mse,
    "percentile": percentile,
}

DEFAULT_CALIBRATOR = "entropy"


def calibrator_by_name(name: str) -> Calibrator:
    """Return the calibrator called `name`; `percentile:99.9` sets the percentile.

    Raises SpecError with the known names.
    """
    if name in CALIBRATORS:
        return CALIBRATORS[name]
    kind, _, argument = name.partition(":")
    if kind == "percentile":
        return partial(percentile, percent=_percent(name, argument))
    raise SpecError(f"unknown calibrator {name!r}{nearest(name, CALIBRATORS)}")


def _percent(name: str, argument: str) -> float:
    try:
        percent = float(argument)
    except ValueError:
        percent = 0.0
    if not 50.0 <= percent <= 100.0:
        raise SpecError(
            f"calibrator {name!r}: the percentile must be a number from 50 to 100, as in percentile:99.9"
        )
    return percent
