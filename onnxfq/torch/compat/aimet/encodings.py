"""AIMET's document: encodings, which turn numbers into integers or small floats and back."""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from onnxfq.errors import ArgumentError, SpecError
from onnxfq.torch.arguments import checked_methods
from onnxfq.torch.compat.aimet.functions import dequantize, quantize, quantize_dequantize, split_blocks
from onnxfq.torch.compat.aimet.grid import IntegerGrid, check_shift, form, read_call


class EncodingBase(ABC):
    """Encoding of a tensor.

    Attributes:
        scale: in the quantizer's shape.
        block_size: elements of a block along each axis of scale; None without blocks.
    """

    mapping: str
    scale: Tensor
    block_size: tuple[int, ...] | None

    @property
    def granularity(self) -> str:
        """Name of the way in which scales apply: pertensor, perchannel, blockwise or unknown."""
        if self.scale.ndim == 0:
            return "pertensor"
        if self.block_size is not None:
            return "blockwise"
        return "perchannel" if sum(n > 1 for n in self.scale.shape) <= 1 else "unknown"

    @abstractmethod
    def quantize(self, input: Tensor) -> Tensor:
        """Return the numbers of the grid in steps of its scale."""

    @abstractmethod
    def dequantize(self, input: Tensor) -> Tensor:
        """Return the values of numbers of the grid."""

    @abstractmethod
    def quantize_dequantize(self, input: Tensor) -> Tensor:
        """Return the nearest values of the grid."""

    def change(self, function: Callable[[Tensor], Tensor]) -> Any:
        """Return a copy with `function` of each tensor in it, such as `torch.clone`."""
        made = copy.copy(self)
        held = vars(made)
        held |= {name: function(value) for name, value in held.items() if isinstance(value, Tensor)}
        return made

    def to(self, *args: Any, **keywords: Any) -> Any:
        """Return the encoding in another float type or on another device, itself if nothing changes.

        It takes the arguments of `Tensor.to`. Raises SpecError for a type that holds no fractions.
        """
        wanted = torch.empty(0, dtype=self.scale.dtype, device=self.scale.device).to(*args, **keywords)
        if not wanted.dtype.is_floating_point:
            raise SpecError(f"an encoding has a float type, found {wanted.dtype}; give torch.float32, say")
        if (wanted.dtype, wanted.device) == (self.scale.dtype, self.scale.device):
            return self
        return self.change(lambda value: value.to(wanted.device, wanted.dtype))


_OTHERS = {"symmetry": False, "block_size": None, "zero_point_shift": None}
_FORMS = (form("qmin", "qmax", **_OTHERS), form("bitwidth", signed=False, **_OTHERS))


@checked_methods("__init__", "to", "quantize", "dequantize", "quantize_dequantize")
class AffineEncoding(IntegerGrid, EncodingBase):
    """Encoding by integers: value = (integer + offset + zero_point_shift) * scale.

    Attributes:
        offset: minus the zero point, of scale's shape.
        symmetry: whether the offset is fixed.
        zero_point_shift: 0.5 puts 0 between two steps, else 0.
    """

    mapping = "affine"

    def __init__(self, scale: Tensor, offset: Tensor, *args: Any, **keywords: Any) -> None:
        """Make an encoding.

        Args:
            scale: value of a step.
            offset: minus the zero point.
            args: (qmin, qmax, symmetry=False, block_size=None, zero_point_shift=0), or (bitwidth,
                signed=False, symmetry=False, block_size=None, zero_point_shift=0).
            keywords: the same by name.

        Raises ArgumentError for other arguments, SpecError for an empty grid.
        """
        name = type(self).__name__
        for end, value in (("scale", scale), ("offset", offset)):
            if not isinstance(value, Tensor):
                raise ArgumentError(f"{end} of {name} must be a tensor, found {value!r:.40}; make it one")
        self.scale, self.offset = scale, offset
        self.qmin, self.qmax, others = read_call(name, _FORMS, args, keywords)
        self.symmetry, self.block_size = bool(others["symmetry"]), others["block_size"]
        self.zero_point_shift = check_shift(name, others["zero_point_shift"])

    min = property(lambda self: (self.offset + self.qmin) * self.scale, doc="Value of qmin.")
    max = property(lambda self: (self.offset + self.qmax) * self.scale, doc="Value of qmax.")
    grid = property(lambda self: (self.scale, self.offset, self.qmin, self.qmax), doc="What rounding takes.")

    @property
    def dtype(self) -> torch.dtype:
        """The narrowest of uint8, int8, int16 and int32 that holds the grid."""
        limits = map(torch.iinfo, (torch.uint8, torch.int8, torch.int16))
        holding = (one.dtype for one in limits if one.min <= self.qmin and self.qmax <= one.max)
        return getattr(torch, next(holding, "int32"))

    def _params(self, input: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        if self.zero_point_shift and not torch.compiler.is_compiling():
            raise SpecError("integers have no zero_point_shift, found 0.5; use quantize_dequantize")
        return input, self.scale.to(input.dtype), self.offset.to(input.dtype)

    def quantize(self, input: Tensor) -> Tensor:
        """Return the integers of a tensor as floats of its type."""
        return quantize(*self._params(input), self.qmin, self.qmax, self.block_size)

    def dequantize(self, input: Tensor) -> Tensor:
        """Return the values of integers in their type."""
        return dequantize(*self._params(input), self.block_size)

    def quantize_dequantize(self, input: Tensor) -> Tensor:
        """Return the values nearest to a tensor, of its type."""
        scale, offset = self.scale.to(input.dtype), self.offset.to(input.dtype)
        others = self.qmin, self.qmax, self.block_size, self.zero_point_shift
        return quantize_dequantize(input, scale, offset, *others)

    def with_scale(self, scale: Tensor, mirrored: bool) -> AffineEncoding | None:
        """Return the encoding with another scale, of values times -1 if `mirrored`.

        Returns None for a symmetric grid whose mirror has another offset.
        """
        if mirrored and self.symmetry and (self.qmin + self.qmax) % 2:
            return None
        made: AffineEncoding = self.change(torch.clone)
        made.scale = scale
        if mirrored:
            made.offset = -self.qmax - self.qmin - self.offset
        return made

    def to_legacy(self) -> list[dict[str, Any]]:
        """Return the entries of AIMET's files, version 0.6.1: one for each scale, offsets with qmin added."""
        shift = {"zero_point_shift": self.zero_point_shift} if self.zero_point_shift else {}
        common = {"bitwidth": self.bitwidth, "dtype": "int", "is_symmetric": str(self.symmetry)} | shift
        columns = (self.min, self.max, self.scale, self.offset + self.qmin)
        return [
            {"min": low, "max": high, "scale": scale, "offset": int(offset), **common}
            for low, high, scale, offset in zip(*(c.flatten().tolist() for c in columns), strict=True)
        ]


class GroupedBlockEncoding(AffineEncoding):
    """Encoding of LPBQ: scales of blocks are integers times one scale for each group of blocks.

    Attributes:
        block_grouping: blocks of a group along each axis, -1 for all.
        decompressed_bw: width of the integers times their block's integer.
        per_channel_scale: scales of the groups.
    """

    def __init__(
        self,
        scale: Tensor,
        offset: Tensor,
        *args: Any,
        block_grouping: Sequence[int],
        decompressed_bw: int,
        per_channel_scale: Tensor,
        **keywords: Any,
    ) -> None:
        """Make an encoding; AffineEncoding explains the other arguments."""
        super().__init__(scale, offset, *args, **keywords)
        self.block_grouping, self.decompressed_bw = tuple(block_grouping), decompressed_bw
        self.per_channel_scale = per_channel_scale

    @property
    def per_block_int_scale(self) -> Tensor:
        """The integer of each block, from 1 to 2^(decompressed_bw - bitwidth)."""
        unit, most = self.per_channel_scale, 1 << (self.decompressed_bw - self.bitwidth)
        return quantize(self.scale, unit, torch.zeros_like(unit), 1, most, self.block_grouping)


class FloatFormat(NamedTuple):
    """Small float with a sign.

    Attributes:
        exponent_bits: bits of the exponent.
        mantissa_bits: bits behind the point.
        finite: whether the format lacks infinities.
        unsigned_zero: whether it lacks -0.
    """

    exponent_bits: int
    mantissa_bits: int
    finite: bool = False
    unsigned_zero: bool = False

    @property
    def dtype(self) -> torch.dtype | None:
        """Type of torch that is this format; None without one."""
        return next((dtype for dtype, known in FLOAT_FORMATS.items() if known == self), None)

    @property
    def max(self) -> float:
        """Largest number; without a type of torch (2 - 2^-m) 2^(2^(e-1) - 1), as in IEEE 754."""
        if self.dtype is not None:
            return float(torch.finfo(self.dtype).max)
        if self == (2, 1, True, False):
            return 6.0
        if self.finite or self.unsigned_zero:
            raise SpecError(f"torch lacks {self}; use {', '.join(map(str, FLOAT_FORMATS))}")
        most = (1 << self.exponent_bits) - 1
        return float((2 - 2.0**-self.mantissa_bits) * 2.0 ** (most - most // 2 - 1))


FLOAT_FORMATS: dict[torch.dtype, FloatFormat] = {
    torch.float16: FloatFormat(5, 10),
    torch.bfloat16: FloatFormat(8, 7),
    torch.float8_e4m3fn: FloatFormat(4, 3, True, False),
    torch.float8_e4m3fnuz: FloatFormat(4, 3, True, True),
    torch.float8_e5m2: FloatFormat(5, 2, False, False),
    torch.float8_e5m2fnuz: FloatFormat(5, 2, True, True),
}


def cast_to_float(x: Tensor, form: FloatFormat) -> Tensor:
    """Return x, limited to the largest number, rounded to the float format, of x's type.

    Formats that torch lacks follow AIMET's formula: bias = 2^e - log2(max) + log2(2 - 2^-m) - 1, and steps
    are 2^(max(floor(log2|x| + bias), 1) - m - bias). Source: aimet_torch.fp_quantization.
    """
    most, dtype = form.max, form.dtype
    limited = x.clamp(-most, most)
    if dtype is not None:
        return limited.to(dtype).to(x.dtype)
    e, m = form.exponent_bits, form.mantissa_bits
    wide = torch.tensor((most, 2 - 2.0**-m), dtype=torch.float64).log2()
    bias = float(2**e - wide[0] + wide[1] - 1)
    steps = 2.0 ** (torch.floor(torch.log2(limited.abs()) + bias).detach().clamp(min=1.0) - m - bias)
    rounded = torch.round(limited / steps) * steps
    return (rounded if form.finite else torch.where(x.isinf(), x, rounded)).to(x.dtype)


@checked_methods("__init__", "to", "quantize", "dequantize", "quantize_dequantize")
class FloatEncoding(EncodingBase):
    """Encoding by small floats times a scale.

    Attributes:
        format: the float format, whose four fields are attributes too.
        bitwidth: bits of a number, with its sign.
    """

    mapping = "float"

    def __init__(
        self,
        mantissa_bits: int,
        exponent_bits: int,
        finite: bool,
        unsigned_zero: bool,
        scale: Tensor,
        block_size: Sequence[int] | None = None,
    ) -> None:
        """Make an encoding; `FloatFormat` explains the first four. Raises ArgumentError without a scale."""
        if not isinstance(scale, Tensor):
            raise ArgumentError(f"scale of FloatEncoding must be a tensor, found {scale!r:.40}; make it one")
        self.format = FloatFormat(exponent_bits, mantissa_bits, finite, unsigned_zero)
        self.exponent_bits, self.mantissa_bits, self.finite, self.unsigned_zero = self.format
        self.bitwidth = 1 + exponent_bits + mantissa_bits
        self.scale, self.block_size = scale, tuple(block_size) if block_size else None

    maxval = property(lambda self: self.scale * self.format.max, doc="Largest value.")

    def quantize(self, input: Tensor) -> Tensor:
        """Return input / scale rounded to the format."""
        return self._by_blocks(lambda x, scale: cast_to_float(x / scale, self.format), input)

    def dequantize(self, input: Tensor) -> Tensor:
        """Return input * scale."""
        return self._by_blocks(torch.mul, input)

    def quantize_dequantize(self, input: Tensor) -> Tensor:
        """Return the values nearest to input."""
        return self.dequantize(self.quantize(input))

    def _by_blocks(self, function: Callable[[Tensor, Tensor], Tensor], x: Tensor) -> Tensor:
        seen, shape = split_blocks(x, self.scale.shape, self.block_size)
        return function(seen, self.scale.view(shape)).reshape(x.shape)
