"""Calibrators by name: pure functions from the statistics of one tensor to a real range, one per file."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pydantic

from onnxfq.calibration.calibrators.best_error import best_error, know_range
from onnxfq.calibration.calibrators.entropy import entropy
from onnxfq.calibration.calibrators.fixed import check_known, check_range, fix_range, known
from onnxfq.calibration.calibrators.method_parameters import Check, Parameter, read_parameters, spell
from onnxfq.calibration.calibrators.minmax import minmax
from onnxfq.calibration.calibrators.moving_average import average_ranges, check_constant
from onnxfq.calibration.calibrators.mse import mse
from onnxfq.calibration.calibrators.percentile import check_percent, percentile, percentile_each_end
from onnxfq.calibration.calibrators.sqnr import sqnr
from onnxfq.calibration.statistics import TensorStatistics
from onnxfq.data.inputs import read_only
from onnxfq.errors import SpecError, nearest
from onnxfq.numerics.spec import QuantSpec
from onnxfq.support.records import Record
from onnxfq.support.user_code import faults_of


@dataclass(frozen=True)
class CalibrationMethod:
    """Registry entry of a calibrator.

    Attributes:
        function: pure function (statistics, spec, *parameters) -> (rmin, rmax); it uses the number format,
            symmetry and scale rule of the spec.
        check: returns the rule that the parameters break; None if there are no parameters.
        form: example of a spelling with parameters.
        fixed: whether the range does not depend on data; the parameters then have no defaults.
        ordered: whether it needs the range of each feed in order.
    """

    function: Callable[..., tuple[float, float]]
    check: Check | None = None
    form: str = ""
    fixed: bool = False
    ordered: bool = False


CALIBRATORS: dict[str, CalibrationMethod] = {
    "best_error": CalibrationMethod(best_error),
    "entropy": CalibrationMethod(entropy),
    "minmax": CalibrationMethod(minmax),
    "moving_average": CalibrationMethod(average_ranges, check_constant, "moving_average:0.1", ordered=True),
    "mse": CalibrationMethod(mse),
    "percentile": CalibrationMethod(percentile, check_percent, "percentile:99.9"),
    "percentile_each_end": CalibrationMethod(percentile_each_end, check_percent, "percentile_each_end:99.9"),
    "sqnr": CalibrationMethod(sqnr),
    "range": CalibrationMethod(fix_range, check_range, "range:LOW,HIGH", fixed=True),
    "known": CalibrationMethod(known, check_known, "known:OP", fixed=True),
}

DEFAULT_CALIBRATOR = "best_error"

_OWN = __name__.partition(".")[0] + "."
"""First part of the modules of this package."""

_ELSEWHERE = {
    "absmax": "minmax",
    "auto": "best_error",
    "histogram": "entropy, percentile or mse",
    "kl": "entropy",
    "max": "minmax",
    "tf": "minmax",
    "tf_enhanced": "sqnr",
}
"""Names here before, in pytorch-quantization, Model-Optimizer and AIMET -> names here."""


def register_calibrator(name: str, method: CalibrationMethod) -> None:
    """Register a calibrator for recipes, the command line and `calibrate`.

    Args:
        name: an identifier, as `sigma`; recipes add parameters, as in `sigma:3`.
        method: its function and the check of its parameters.

    Raises SpecError for a name that is not an identifier, or that another module registered.
    """
    taken = CALIBRATORS.get(name)
    if not name.isidentifier():
        raise SpecError(f"calibrator {name!r}: a name must be an identifier, as sigma")
    is_other = taken and taken.function.__module__ != method.function.__module__
    if name in (EXTERNAL.name, BY_CHANNEL.name) or is_other:
        raise SpecError(f"calibrator {name!r}: the name is taken; register it under another")
    CALIBRATORS[name] = method


def observing_names() -> list[str]:
    """Return the names of the calibrators that depend on data."""
    return [name for name, method in CALIBRATORS.items() if not method.fixed]


def spellings() -> list[str]:
    """Return the spellings of calibrators: names, and examples with parameters."""
    return [*observing_names(), *(method.form for method in CALIBRATORS.values() if method.form)]


class Calibrator(Record):
    """Name and parameters of a calibration method, spelled `percentile:99.9` in files.

    The method may be unregistered, as in files of another machine: it is looked up when it is called.
    """

    name: str
    parameters: tuple[Parameter, ...] = ()

    @pydantic.model_validator(mode="before")
    @classmethod
    def _read(cls, value: Any) -> Any:
        if isinstance(value, dict | Calibrator):
            return value
        name, colon, rest = str(value).partition(":")
        return {"name": name, "parameters": read_parameters(rest) if colon else ()}

    def __str__(self) -> str:
        """Return the spelling for `parse`."""
        return ":".join([self.name, *([",".join(map(spell, self.parameters))] if self.parameters else [])])

    def __eq__(self, other: object) -> bool:
        """Tell whether `other` is the same calibrator, or its spelling."""
        return isinstance(other, str | Calibrator) and str(self) == str(other)

    def __hash__(self) -> int:
        """Hash the spelling."""
        return hash(str(self))

    @pydantic.model_serializer
    def _spell(self) -> str:
        return str(self)

    @staticmethod
    def parse(text: str | Calibrator) -> Calibrator:
        """Return the calibrator spelled `text`, as `mse` or `percentile:99.9`.

        Raises SpecError with the nearest names, or with the rule for its parameters.
        """
        calibrator = Calibrator.model_validate(text)
        calibrator._look_up()
        return calibrator

    def __call__(self, statistics: TensorStatistics, spec: QuantSpec) -> tuple[float, float]:
        """Return (rmin, rmax) of a tensor with `statistics`.

        Raises SpecError as in `parse`, and for a method from outside that fails or returns no range.
        """
        method = self._look_up()
        function = method.function
        if function.__module__.startswith(_OWN):
            if not (method.fixed or statistics.counts.size):
                return statistics.rmin, statistics.rmax  # there is nothing to choose from
            return know_range(str(self), lambda *given: function(*given, *self.parameters), statistics, spec)
        # Others need the statistics too.
        arrays = {name: value for name, value in vars(statistics).items() if isinstance(value, np.ndarray)}
        shared: dict[str, Any] = read_only(arrays)
        statistics = replace(statistics, **shared)
        with faults_of(f"calibrator {str(self)!r}", SpecError):
            low, high = map(float, function(statistics, spec, *self.parameters))
        if not (math.isfinite(low) and math.isfinite(high) and low <= high):
            raise SpecError(f"calibrator {str(self)!r} returned {low}, {high}; return finite ends in order")
        return low, high

    @property
    def is_fixed(self) -> bool:
        """Tell whether the range does not depend on data."""
        return self.name in CALIBRATORS and CALIBRATORS[self.name].fixed

    @property
    def is_ordered(self) -> bool:
        """Tell whether it needs the range of each feed."""
        return self.name in CALIBRATORS and CALIBRATORS[self.name].ordered

    def _look_up(self) -> CalibrationMethod:
        method = CALIBRATORS.get(self.name)
        if method is None or (self.parameters and method.check is None):
            raise _unknown(str(self))
        if method.check is not None and (self.parameters or method.fixed):
            with faults_of(f"the check of calibrator {str(self)!r}", SpecError):
                wanted = method.check(self.parameters)
            if wanted:
                raise SpecError(f"calibrator {str(self)!r}: {wanted}")
        return method


def _unknown(text: str) -> SpecError:
    if text.lower() in _ELSEWHERE:
        return SpecError(f"unknown calibrator {text!r}: it is called {_ELSEWHERE[text.lower()]} here")
    kinds = observing_names() + [method.form for method in CALIBRATORS.values() if method.fixed]
    hint = nearest(text.partition(":")[0], (kind.partition(":")[0] for kind in kinds))
    return SpecError(f"unknown calibrator {text!r}{hint or '; known: ' + ', '.join(sorted(kinds))}")


MINMAX = Calibrator(name="minmax")
MSE = Calibrator(name="mse")
EXTERNAL = Calibrator(name="external")
"""Marks scales from a file of another tool, which no calibrator computed."""
BY_CHANNEL = Calibrator(name="by_channel")
"""Marks ranges by channel, which `choose_channel_ranges` of `groups.py` finds in place of a calibrator."""
