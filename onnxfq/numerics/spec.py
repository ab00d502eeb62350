"""`QuantSpec`: how one tensor is quantized, as data."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import pydantic

from onnxfq.errors import SpecError
from onnxfq.numerics.block_scales import element_grid
from onnxfq.numerics.granularity import Blocked, BlockShape, Granularity, PerAxis, PerTensor
from onnxfq.numerics.qtypes import QType, qtype_by_name
from onnxfq.support.records import Record


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


class NumberFormat(Record):
    """What numbers a tensor may hold and of which kind its scales are, whatever their number.

    symmetric: the zero point is 0 of a signed type, the range is [-amax, amax]. power_of_two: scales are
    rounded up to powers of two. scale_type: of the scales, as in `dynamic_scales`; e8m0 is that of the MX
    formats, e4m3 that of NVFP4, and both tell how the scale is made. zero_point: fractional ones are not
    rounded; FakeQuantize takes them, ONNX's QuantizeLinear does not.
    """

    qtype: QTypeField
    symmetric: bool = True
    power_of_two: bool = False
    scale_type: Literal["float32", "e8m0", "e4m3"] = "float32"
    zero_point: Literal["integer", "fractional"] = "integer"

    @pydantic.model_validator(mode="after")
    def _possible(self) -> NumberFormat:
        check_symmetry(self.qtype, self.symmetric)
        if self.zero_point == "fractional" and self.symmetric:
            raise ValueError("zero_point fractional needs symmetric: false; a symmetric zero point is 0")
        if self.scale_type == "float32":
            return self
        if not self.symmetric:
            raise ValueError(f"scale_type {self.scale_type} needs symmetric: true, or use scale_type float32")
        if self.scale_type == "e4m3" and not self.qtype.is_float:
            raise ValueError(
                f"scale_type e4m3 needs a float qtype, got {self.qtype}; use float4e2m1 (NVFP4), or "
                "scale_type float32"
            )
        if self.power_of_two:
            raise ValueError(f"power_of_two is for scale_type float32, got {self.scale_type}; remove it")
        return self


def check_dynamic(numbers: NumberFormat, dynamic: bool) -> None:
    """Raise ValueError, for a record's validator, when the running model cannot make scales of that kind."""
    if dynamic and numbers.power_of_two:
        raise ValueError("dynamic scales are not rounded; remove power_of_two, or use scale_type e8m0")
    if dynamic and numbers.zero_point == "fractional":
        raise ValueError("dynamic zero points are integers; use zero_point: integer, or dynamic: false")


class QuantSpec(NumberFormat):
    """Number format and granularity of one tensor.

    axis None: per tensor. axis: per axis. axis and block_size: blocked, as in ONNX's attributes.
    block_shape: one size for each dimension, -1 for the whole of it. dynamic: the scales are made from the
    values while the model runs, as `dynamic_scales` says. equalized: the scales along axis are one scale
    times powers of two, and the zero points are equal, so that the channels are brought to one scale by a
    Mul that rounds nothing.
    """

    axis: int | None = None
    block_size: int | None = pydantic.Field(default=None, ge=1)
    block_shape: tuple[int, ...] | None = None
    dynamic: bool = False
    equalized: bool = False

    @pydantic.model_validator(mode="after")
    def _consistent(self) -> QuantSpec:
        if self.block_size is not None and self.axis is None:
            raise ValueError("block_size needs an axis; add axis, or remove block_size for per-tensor")
        if self.block_shape is not None and self.axis is not None:
            raise ValueError("block_shape speaks of every axis; remove axis and block_size, or block_shape")
        check_block_shape(self.block_shape)
        check_dynamic(self, self.dynamic)
        if self.equalized and (self.axis is None or self.block_size is not None):
            raise ValueError("equalized needs the axis of the channels and no block_size")
        if self.equalized and (self.dynamic or self.scale_type != "float32"):
            raise ValueError("equalized channels have constant float32 scales; remove dynamic and scale_type")
        return self

    @property
    def observed(self) -> bool:
        """Tell whether an activation's encoding needs statistics: the global scale of e4m3 is a constant."""
        return not self.dynamic or self.scale_type == "e4m3"

    @property
    def observed_granularity(self) -> Granularity:
        """The granularity of an activation's statistics; a dynamic one is observed as a whole.

        So is an equalized one; of its channels the ranges are kept beside that.
        """
        return PerTensor() if self.dynamic or self.equalized else self.granularity

    @property
    def grid(self) -> QType:
        """The numbers that values are rounded to: `qtype`, without -128 where int8 is that of MXINT8."""
        return element_grid(self.qtype, self.scale_type)

    @property
    def blocks(self) -> dict[str, Any]:
        """The granularity as the keywords that `numerics` and the kernels take."""
        return {"axis": self.axis, "block_size": self.block_size, "block_shape": self.block_shape}

    @property
    def granularity(self) -> Granularity:
        """The granularity as a value of `onnxfq.numerics.granularity`."""
        if self.block_shape is not None:
            return BlockShape(self.block_shape)
        if self.axis is None:
            return PerTensor()
        if self.block_size is None:
            return PerAxis(self.axis)
        return Blocked(self.axis, self.block_size)

    def __str__(self) -> str:
        """Spell it as in a report."""
        kind = "power-of-two" if self.power_of_two else self.scale_type
        scales = f" with {kind} scales" if kind != "float32" else ""
        if self.zero_point == "fractional":
            scales += " with fractional zero points"
        symmetry = "symmetric" if self.symmetric else "asymmetric"
        made = ", equalized" if self.equalized else ", dynamic" if self.dynamic else ""
        return f"{self.qtype} {symmetry} {self.granularity}{scales}{made}"
