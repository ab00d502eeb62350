"""`QuantSpec`: quantization of one tensor as data."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields
from typing import Annotated, Any, ClassVar, Literal

import pydantic

from onnxfq.errors import OnnxfqError, SpecError
from onnxfq.numerics.affine import as_qtype
from onnxfq.numerics.block_scales import ScaleType, element_grid
from onnxfq.numerics.float_types import FloatType
from onnxfq.numerics.granularity import PER_TENSOR, Granularity
from onnxfq.numerics.qparams import ParamRules, check_symmetry
from onnxfq.numerics.qtypes import QType
from onnxfq.support.records import Record

_GRANULARITY = tuple(field.name for field in fields(Granularity))
QTypeField = Annotated[QType, pydantic.PlainValidator(as_qtype), pydantic.PlainSerializer(str)]


class NumberFormat(Record):
    """Number format and scale type of a tensor, independent of granularity.

    Attributes:
        qtype: number format, by name in files.
        symmetric: the zero point is 0 of a signed type, the range is [-amax, amax].
        power_of_two: scales are rounded up to powers of two.
        scale_type: type of the scales, as in `block_scales`; e8m0 is for the MX formats, e4m3 for NVFP4, and
            both define the formula of the scale.
        zero_point: fractional zero points are not rounded; FakeQuantize takes them, ONNX's QuantizeLinear
            does not.
    """

    fault: ClassVar[type[OnnxfqError] | None] = SpecError

    qtype: QTypeField
    symmetric: bool = True
    power_of_two: bool = False
    scale_type: ScaleType = "float32"
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
    """Raise ValueError, for a record's validator, if dynamic scales cannot have this format."""
    if dynamic and numbers.power_of_two:
        raise ValueError("dynamic scales are not rounded; remove power_of_two, or use scale_type e8m0")
    if dynamic and numbers.zero_point == "fractional":
        raise ValueError("dynamic zero points are integers; use zero_point: integer, or dynamic: false")


class QuantSpec(NumberFormat):
    """Number format and granularity of one tensor.

    Attributes:
        granularity: which elements share a scale; its axis, block_size and block_shape are fields of the spec
            in files, and may be keywords.
        dynamic: the model computes the scales from the values at run time, as in `block_scales`.
        equalized: the scales along axis are one scale times powers of two, and the zero points are equal: a
            Mul without rounding gives all channels one scale.
    """

    granularity: Granularity = PER_TENSOR
    dynamic: bool = False
    equalized: bool = False

    @classmethod
    def file_fields(cls) -> tuple[str, ...]:
        """Return the names of the fields in a file, in which the granularity's fields belong to the spec."""
        named = {"granularity": _GRANULARITY}
        return tuple(part for name in cls.model_fields for part in named.get(name, (name,)))

    @pydantic.model_validator(mode="before")
    @classmethod
    def _nest_granularity(cls, given: Any) -> Any:
        if not isinstance(given, dict) or "granularity" in given:
            return given
        rest = {name: value for name, value in given.items() if name not in _GRANULARITY}
        return {"granularity": {name: given[name] for name in _GRANULARITY if name in given}} | rest

    @pydantic.model_serializer(mode="wrap")
    def _flatten_granularity(self, serialize: Callable[[QuantSpec], dict[str, Any]]) -> dict[str, Any]:
        flat: dict[str, Any] = {}
        for name, value in serialize(self).items():
            flat |= value if name == "granularity" else {name: value}
        return flat

    @pydantic.model_validator(mode="after")
    def _consistent(self) -> QuantSpec:
        check_dynamic(self, self.dynamic)
        if self.equalized and (self.granularity.axis is None or self.granularity.block_size is not None):
            raise ValueError("equalized needs the axis of the channels and no block_size")
        if self.equalized and (self.dynamic or self.scale_type != "float32"):
            raise ValueError("equalized channels have constant float32 scales; remove dynamic and scale_type")
        return self

    @property
    def observed(self) -> bool:
        """Tell whether an activation needs statistics: the global scale of dynamic e4m3 is a constant."""
        return not self.dynamic or self.scale_type == "e4m3"

    @property
    def observed_granularity(self) -> Granularity:
        """Granularity of an activation's statistics; dynamic and equalized ones are observed as a whole.

        Statistics of equalized activations also hold the range of each channel.
        """
        return PER_TENSOR if self.dynamic or self.equalized else self.granularity

    @property
    def grid(self) -> QType:
        """Grid to which values are rounded: `qtype`, without -128 for MXINT8."""
        return element_grid(self.qtype, self.scale_type)

    def param_rules(self, float_type: FloatType = "float32") -> ParamRules:
        """Return the rules for scale and zero point of a tensor of `float_type`."""
        return ParamRules(self.power_of_two, self.zero_point == "fractional", float_type)

    def __str__(self) -> str:
        """Return the text for reports."""
        kind = "power-of-two" if self.power_of_two else self.scale_type
        scales = f" with {kind} scales" if kind != "float32" else ""
        if self.zero_point == "fractional":
            scales += " with fractional zero points"
        symmetry = "symmetric" if self.symmetric else "asymmetric"
        made = ", equalized" if self.equalized else ", dynamic" if self.dynamic else ""
        return f"{self.qtype} {symmetry} {self.granularity}{scales}{made}"
