"""Calibrators: pure functions from the statistics of one tensor to a real range, one per file."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from onnxfq.calibration.calibrators.auto import auto
from onnxfq.calibration.calibrators.entropy import entropy
from onnxfq.calibration.calibrators.fixed import KNOWN_RANGES, fixed
from onnxfq.calibration.calibrators.minmax import minmax
from onnxfq.calibration.calibrators.moving_average import moving_average
from onnxfq.calibration.calibrators.mse import mse
from onnxfq.calibration.calibrators.percentile import percentile
from onnxfq.calibration.calibrators.sqnr import sqnr
from onnxfq.calibration.statistics import TensorStatistics
from onnxfq.errors import SpecError, nearest
from onnxfq.numerics.spec import QuantSpec

Calibrator = Callable[[TensorStatistics, QuantSpec], tuple[float, float]]
"""(statistics, spec) -> (rmin, rmax); of the spec the number format, symmetry and rule for scales count."""

CALIBRATORS: dict[str, Calibrator] = {
    "auto": auto,
    "entropy": entropy,
    "minmax": minmax,
    "moving_average": moving_average,
    "mse": mse,
    "percentile": percentile,
    "sqnr": sqnr,
}

DEFAULT_CALIBRATOR = "auto"

FORMS = (*CALIBRATORS, "moving_average:0.1", "percentile:99.9", "range:LOW,HIGH", "known:Softmax")
"""How a calibrator may be spelled: those of the dict, and those with an argument by example."""

_ELSEWHERE = {
    "absmax": "minmax",
    "histogram": "entropy, percentile or mse",
    "kl": "entropy",
    "max": "minmax",
    "tf": "minmax",
    "tf_enhanced": "sqnr",
}
"""Names that other tools use, and ours: pytorch-quantization, Model-Optimizer, AIMET."""

_LARGEST = 3.4028234663852886e38  # of float32


def calibrator_by_name(name: str) -> Calibrator:
    """Return the calibrator called `name`, in one of FORMS.

    Raises SpecError with the nearest names, or with what the argument must be.
    """
    if name in CALIBRATORS:
        return CALIBRATORS[name]
    kind, _, argument = name.partition(":")
    if kind in _PARSERS:
        return _PARSERS[kind](name, argument)
    if name.lower() in _ELSEWHERE:
        raise SpecError(f"unknown calibrator {name!r}: it is called {_ELSEWHERE[name.lower()]} here")
    kinds = [*CALIBRATORS, "range:LOW,HIGH", "known:OP"]
    raise SpecError(
        f"unknown calibrator {name!r}{nearest(name, kinds) or '; known: ' + ', '.join(sorted(kinds))}"
    )


def _percentile(name: str, argument: str) -> Calibrator:
    (percent,) = _numbers(argument, 1)
    if not 50.0 <= percent <= 100.0:
        raise SpecError(
            f"calibrator {name!r}: the percentile must be a number from 50 to 100, as in percentile:99.9"
        )
    return partial(percentile, percent=percent)


def _moving_average(name: str, argument: str) -> Calibrator:
    (constant,) = _numbers(argument, 1)
    if not 0.0 < constant <= 1.0:
        raise SpecError(
            f"calibrator {name!r}: the averaging constant must be above 0 and at most 1, as in "
            "moving_average:0.1"
        )
    return partial(moving_average, constant=constant)


def _range(name: str, argument: str) -> Calibrator:
    low, high = _numbers(argument, 2)
    if not -_LARGEST <= low < high <= _LARGEST:
        raise SpecError(f"calibrator {name!r}: give two finite numbers, the smaller first, as in range:-1,1")
    return partial(fixed, low=low, high=high)


def _known(name: str, argument: str) -> Calibrator:
    if argument not in KNOWN_RANGES:
        raise SpecError(
            f"calibrator {name!r}: no range is known for outputs of {argument!r}"
            f"{nearest(argument, KNOWN_RANGES)}"
        )
    low, high = KNOWN_RANGES[argument]
    return partial(fixed, low=low, high=high)


def _numbers(argument: str, count: int) -> list[float]:
    """Return `count` numbers separated by commas; NaN, which every check refuses, where it holds others."""
    try:
        numbers = [float(part) for part in argument.split(",")]
    except ValueError:
        numbers = []
    return numbers if len(numbers) == count else [float("nan")] * count


_PARSERS: dict[str, Callable[[str, str], Calibrator]] = {
    "known": _known,
    "moving_average": _moving_average,
    "percentile": _percentile,
    "range": _range,
}
