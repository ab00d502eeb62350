"""`ActivationScheme` and `WeightScheme`: number format, groups, calibrator and rounding of a recipe."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import pydantic

from onnxfq.calibration.calibrators import DEFAULT_CALIBRATOR, MINMAX, MSE, Calibrator
from onnxfq.choices import Equalize
from onnxfq.documents.rounding import AUTO, RecipeRounding
from onnxfq.errors import RecipeError, nearest
from onnxfq.graph.bounds import KNOWN_RANGES
from onnxfq.numerics.granularity import Granularity
from onnxfq.numerics.qtypes import BIAS_QTYPE
from onnxfq.numerics.spec import NumberFormat, check_dynamic

ActivationGranularity = Literal["per_tensor", "per_axis", "per_row", "blocked", "block_shape"]
WeightGranularity = Literal["per_tensor", "per_axis", "blocked", "block_shape"]

CACHE_QTYPES = ("int8", "int4", "float8e4m3fn")
"""Formats of GroupQueryAttention for its cache."""

RegisteredCalibrator = Annotated[Calibrator, pydantic.PlainValidator(Calibrator.parse)]


def _check_operators(op_types: tuple[str, ...]) -> tuple[str, ...]:
    for op_type in op_types:
        if op_type not in KNOWN_RANGES:
            raise ValueError(f"no range is known for outputs of {op_type!r}{nearest(op_type, KNOWN_RANGES)}")
    return op_types


class Scheme(NumberFormat):
    """Common fields of activations and weights: number format and default block sizes.

    Attributes:
        block_shape: one size for each axis as the operator reads it, -1 for the whole axis.
    """

    fault = RecipeError

    granularity: str
    block_size: int | None = pydantic.Field(default=None, ge=1)
    block_shape: tuple[int, ...] | None = None
    calibrator: RegisteredCalibrator = MINMAX

    @pydantic.model_validator(mode="before")
    @classmethod
    def _usual_block_size(cls, fields: Any) -> Any:
        if isinstance(fields, dict) and fields.get("granularity") == "blocked":
            usual = _USUAL_BLOCKS.get(fields.get("scale_type", ""))
            if usual is not None and fields.get("block_size") is None:
                return fields | {"block_size": usual}
        return fields

    @pydantic.model_validator(mode="after")
    def _no_bias(self) -> Scheme:
        if self.qtype == BIAS_QTYPE:
            raise ValueError(f"qtype {self.qtype} is for biases, which targets decide on; use int8")
        if not self.qtype.has_kernel:
            raise ValueError(
                f"qtype {self.qtype} is for torch modules only; use limits that hold 0, of up to 16 bits"
            )
        return self

    @pydantic.model_validator(mode="after")
    def _blocks_have_a_size(self) -> Scheme:
        if (self.granularity == "blocked") != (self.block_size is not None):
            raise ValueError("granularity blocked and block_size go together; give both or neither")
        if (self.granularity == "block_shape") != (self.block_shape is not None):
            raise ValueError("granularity block_shape and block_shape go together; give both or neither")
        Granularity(block_shape=self.block_shape)
        return self


# Block sizes of OCP MX and NVFP4.
_USUAL_BLOCKS = {"e8m0": 32, "e4m3": 16}


class ActivationScheme(Scheme):
    """Scheme for activations.

    Attributes:
        dynamic: the running model computes the scales from its own values; the calibrator has no effect.
        granularity: per_tensor; per_axis, a scale for each index of the axis that an output element sums
            over, for a convolution its input channels; blocked along that axis; block_shape; for dynamic
            scales also per_row, one scale for all elements that an output element sums over. Groups of static
            ones are pooled over all other axes, including samples.
        known_ranges: op types whose outputs get their mathematical range, whatever the calibrator.
        equalize: depthwise gives inputs of depthwise convolutions a scale per channel instead of one scale,
            whatever the calibrator. The scales differ by powers of two; a Mul before the pair and the weight
            scales compensate, so that each channel uses the whole grid. It has no effect on inputs with
            several scales or dynamic ones. cross_layer first equalizes channels between operators with
            weights, in the weights themselves, in the whole model; auto does so if it raises the SQNR of the
            outputs on some samples.
    """

    granularity: ActivationGranularity = "per_tensor"
    calibrator: RegisteredCalibrator = Calibrator(name=DEFAULT_CALIBRATOR)
    dynamic: bool = False
    known_ranges: tuple[str, ...] = ()
    equalize: Equalize = "none"

    _known_ranges = pydantic.field_validator("known_ranges")(_check_operators)

    @pydantic.model_validator(mode="after")
    def _consistent(self) -> ActivationScheme:
        check_dynamic(self, self.dynamic)
        if self.dynamic and self.granularity in ("per_axis", "block_shape"):
            raise ValueError(
                f"granularity {self.granularity} of activations needs dynamic: false; dynamic scales are "
                "per_tensor, per_row or blocked"
            )
        if self.dynamic:
            return self
        if self.granularity == "per_row":
            raise ValueError(
                "granularity per_row of activations needs dynamic: true, because every sample has other "
                "rows; or use per_axis or per_tensor"
            )
        if self.scale_type != "float32":
            raise ValueError(
                f"scale_type {self.scale_type} of activations needs dynamic: true; or use float32, with "
                "power_of_two for powers of two"
            )
        return self


class CacheScheme(ActivationScheme):
    """Scheme for keys and values that a decoder hands on from token to token.

    Attributes:
        granularity: per_tensor, or per_axis: a scale for each channel of each head. Two channels of keys that
            rotary positions turn into each other share one, if the context turns them far.
        calibrator: mse for 4 bits, of which the range spends most on the largest numbers; else minmax.
    """

    granularity: Literal["per_tensor", "per_axis"] = "per_tensor"
    calibrator: RegisteredCalibrator = MINMAX

    @pydantic.model_validator(mode="before")
    @classmethod
    def _usual_calibrator(cls, fields: Any) -> Any:
        if isinstance(fields, dict) and str(fields.get("qtype")) == "int4":
            return {"calibrator": MSE} | fields
        return fields

    @pydantic.model_validator(mode="after")
    def _stored(self) -> CacheScheme:
        if self.qtype.name not in CACHE_QTYPES or not self.symmetric or self.dynamic:
            raise ValueError(
                f"caches hold {', '.join(CACHE_QTYPES)} with constant scales and without zero points, not "
                f"{self.qtype}; leave out symmetric and dynamic"
            )
        return self


class WeightScheme(Scheme):
    """Scheme for weights.

    Attributes:
        granularity: per_axis: a scale per output channel; blocked: along the summed axis.
        rounding: nearest; gptq, by second moments of the layers' inputs; qronos, by those of the float and of
            the quantized model, one layer after the other; auto: nearest, or the better of gptq and qronos
            if `quantize` measures that weights make noise and the outputs gain. Without data all weights are
            rounded to nearest.
        other_block_sizes: tried in order if block_size does not cut the summed axis into two or more equal
            blocks.
    """

    granularity: WeightGranularity = "per_axis"
    other_block_sizes: tuple[Annotated[int, pydantic.Field(ge=1)], ...] = ()
    rounding: RecipeRounding = AUTO

    @pydantic.model_validator(mode="after")
    def _consistent(self) -> WeightScheme:
        if self.scale_type != "float32" and self.calibrator not in (MINMAX, MSE):
            raise ValueError(
                f"scale_type {self.scale_type} takes scales by the largest magnitude or the least error; use "
                "calibrator minmax or mse"
            )
        return self
