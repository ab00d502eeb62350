"""`QuantSpec`: how one tensor is quantized, as data."""

from __future__ import annotations

from typing import Annotated, Any

import pydantic

from onnxfq.documents import Record
from onnxfq.errors import SpecError
from onnxfq.granularity import Blocked, BlockShape, Granularity, PerAxis, PerTensor
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
    """Raise ValueError, for a record's validator, when qtype and `symmetric` do not go together."""
    if symmetric and not qtype.qmin < 0 < qtype.qmax:
        remedy = f"use int{qtype.bits} or symmetric: false"
        kind = "numbers on both sides of 0" if qtype.signed else "a signed qtype"
        raise ValueError(f"symmetric needs {kind}, got {qtype}; {remedy}")
    if qtype.is_float and not symmetric:
        raise ValueError(f"{qtype} has no zero point; use symmetric: true, or an integer qtype")


def check_block_shape(block_shape: tuple[int, ...] | None) -> None:
    """Raise ValueError, for a record's validator, when a size is neither positive nor -1."""
    try:
        if block_shape is not None:
            BlockShape(block_shape)
    except SpecError as error:
        raise ValueError(str(error)) from None


class QuantSpec(Record):
    """Number format, granularity, symmetry and calibrator of one tensor.

    axis None: per tensor. axis: per axis. axis and block_size: blocked, as in ONNX's attributes.
    block_shape: one size for each dimension, -1 for the whole of it. symmetric: the zero point is 0 of a
    signed type, the range is [-amax, amax]. power_of_two: scales are rounded up to powers of two.
    """

    qtype: QTypeField
    symmetric: bool = True
    axis: int | None = None
    block_size: int | None = pydantic.Field(default=None, ge=1)
    block_shape: tuple[int, ...] | None = None
    power_of_two: bool = False
    calibrator: str = "minmax"

    @pydantic.model_validator(mode="after")
    def _consistent(self) -> QuantSpec:
        if self.block_size is not None and self.axis is None:
            raise ValueError("block_size needs an axis; add axis, or remove block_size for per-tensor")
        if self.block_shape is not None and self.axis is not None:
            raise ValueError("block_shape speaks of every axis; remove axis and block_size, or block_shape")
        check_block_shape(self.block_shape)
        check_symmetry(self.qtype, self.symmetric)
        return self

    @property
    def blocks(self) -> dict[str, Any]:
        """The granularity as the keywords that `numerics` and the kernels take."""
        return {"axis": self.axis, "block_size": self.block_size, "block_shape": self.block_shape}

    @property
    def granularity(self) -> Granularity:
        """The granularity as a value of `onnxfq.granularity`."""
        if self.block_shape is not None:
            return BlockShape(self.block_shape)
        if self.axis is None:
            return PerTensor()
        if self.block_size is None:
            return PerAxis(self.axis)
        return Blocked(self.axis, self.block_size)

    def __str__(self) -> str:
        """Spell it as in a report."""
        scales = " with power-of-two scales" if self.power_of_two else ""
        return f"{self.qtype} {'symmetric' if self.symmetric else 'asymmetric'} {self.granularity}{scales}"
