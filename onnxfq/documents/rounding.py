"""How numbers round: methods for weights, and mode and arithmetic of fake-quant models (`Simulation`)."""

from __future__ import annotations

from collections.abc import Collection
from functools import partial
from typing import Annotated, Any

import pydantic

from onnxfq.calibration.weights import METHODS
from onnxfq.errors import nearest
from onnxfq.numerics.affine import check_names
from onnxfq.support.records import Record

NEAREST = "nearest"
"""Every weight takes the nearest number of its grid."""

AUTO = "auto"
"""NEAREST, unless `quantize` finds by runs that a method of `METHODS` is better; for recipes only."""

ROUNDINGS = (NEAREST, *METHODS)
RECIPE_ROUNDINGS = (AUTO, *ROUNDINGS)


def _check_method(name: str, known: Collection[str]) -> str:
    if name not in known:
        hint = nearest(name, known) or f"; known: {', '.join(known)}"
        raise ValueError(f"unknown rounding of weights {name!r}{hint}")
    return name


RoundingMethod = Annotated[str, pydantic.AfterValidator(partial(_check_method, known=ROUNDINGS))]
RecipeRounding = Annotated[str, pydantic.AfterValidator(partial(_check_method, known=RECIPE_ROUNDINGS))]


def _check(name: str, info: pydantic.ValidationInfo) -> str:
    check_names(**{str(info.field_name): name})
    return name


_Known = Annotated[str, pydantic.AfterValidator(_check)]


class Simulation(Record):
    """How FakeQuantize rounds; a Q/DQ model rounds half to even, divides and saturates.

    Attributes:
        rounding: mode, as in `fake_quantize`: half_even, half_up (Horizon), half_away (AIMET) or another.
        arithmetic: divide, or reciprocal, which multiplies by 1 / scale as torch does.
        saturate: false lets float types overflow to infinity or NaN, and in torch modules the gradient pass
            outside the grid.
    """

    rounding: _Known = "half_even"
    arithmetic: _Known = "divide"
    saturate: bool = True

    @property
    def changes(self) -> dict[str, Any]:
        """The fields that differ from a Q/DQ model's, by name."""
        return self.model_dump(exclude_defaults=True)


def explain_mode(name: str, value: object) -> str:
    """Return why no Q/DQ model has field `name` of a `Simulation` at `value`, and the remedy."""
    usual = Simulation.model_fields[name].default
    return (
        f"simulation.{name} is {value}, and QuantizeLinear has {usual} only; remove it, or use target "
        "simulation"
    )
