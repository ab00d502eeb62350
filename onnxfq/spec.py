"""`QuantSpec`: how one tensor is quantized, as data."""

from __future__ import annotations

from typing import Annotated

import pydantic

from onnxfq.documents import Record
from onnxfq.errors import SpecError
from onnxfq.granularity import Blocked, Granularity, PerAxis, PerTensor
from onnxfq.qtypes import QType, qtype_by_name


def _as_qtype(value: object) -> QType:
    if isinstance(value, QType):
        return value
    try:
        return qtype_by_name(str(value))
    except SpecError as error:
        raise ValueError(str(error)) from None


QTypeField = Annotated[QType, pydantic.PlainValidator(_as_qtype), pydantic.PlainSerializer(str)]


def check_symmetry(qtype: QType, symmetric: bool) -> None:
    """Raise ValueError, for a record's validator, when `symmetric` asks for an unsigned type."""
    if symmetric and not qtype.signed:
        remedy = f"use int{qtype.bits} or symmetric: false"
        raise ValueError(f"symmetric needs a signed qtype, got {qtype}; {remedy}")


class QuantSpec(Record):
    """Number format, granularity, symmetry and calibrator of one tensor.

    axis None: per tensor. axis: per axis. axis and block_size: blocked, as in ONNX's attributes.
    symmetric: the zero point is 0 of a signed type, the range is [-amax, amax].
    """

    qtype: QTypeField
    symmetric: bool = True
    axis: int | None = None
    block_size: int | None = pydantic.Field(default=None, ge=1)
    calibrator: str = "minmax"

    @pydantic.model_validator(mode="after")
    def _consistent(self) -> QuantSpec:
        if self.block_size is not None and self.axis is None:
            raise ValueError("block_size needs an axis; add axis, or remove block_size for per-tensor")
        check_symmetry(self.qtype, self.symmetric)
        return self

    @property
    def granularity(self) -> Granularity:
        """The granularity as a value of `onnxfq.granularity`."""
        if self.axis is None:
            return PerTensor()
        if self.block_size is None:
            return PerAxis(self.axis)
        return Blocked(self.axis, self.block_size)

    def __str__(self) -> str:
        """Spell it as in a report."""
        return f"{self.qtype} {'symmetric' if self.symmetric else 'asymmetric'} {self.granularity}"
