"""`Simulation`: rounding mode and arithmetic of fake-quant models and torch modules."""

from __future__ import annotations

from typing import Annotated, Any

import pydantic

from onnxfq.numerics.affine import check_names
from onnxfq.numerics.spec import refuse_as_value_error
from onnxfq.support.records import Record


def _check(name: str, info: pydantic.ValidationInfo) -> str:
    with refuse_as_value_error():
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
        f"simulation.{name} is {value}, and QuantizeLinear has {usual} only; remove it, or insert fake-quant "
        "nodes instead"
    )
