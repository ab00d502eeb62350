"""AIMET's document: quantizers whose learned min and max give scale and offset.

    scale = max(|max - min| / (qmax - qmin), smallest scale)
    offset = round(min / scale) - qmin, between -qmax and -qmin; fixed if symmetric: -round((qmin + qmax) / 2)

aimet-torch 2.42 has the same values and gradients, bit for bit; `functions` has the rounding.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from onnxfq.errors import SpecError
from onnxfq.numerics.qtypes import qtype_of_integers
from onnxfq.torch.arguments import checked_methods
from onnxfq.torch.compat.aimet.encoding_analyzer import MinMaxEncodingAnalyzer, smallest_scale
from onnxfq.torch.compat.aimet.encodings import AffineEncoding as AffineEncoding
from onnxfq.torch.compat.aimet.encodings import GroupedBlockEncoding as GroupedBlockEncoding
from onnxfq.torch.compat.aimet.functions import dequantize as dequantize
from onnxfq.torch.compat.aimet.functions import fits, interleaved
from onnxfq.torch.compat.aimet.functions import quantize as quantize
from onnxfq.torch.compat.aimet.functions import quantize_dequantize as quantize_dequantize
from onnxfq.torch.compat.aimet.grid import IntegerGrid, check_limits, check_shift, form, limits_of, read_call
from onnxfq.torch.compat.aimet.quantizer import QuantizerBase
from onnxfq.torch.compat.aimet.statistics import as_shape
from onnxfq.torch.compat.aimet.tensor import QuantizedTensor, plain
from onnxfq.torch.qat_gradients import round_straight_through

_OTHERS = {"encoding_analyzer": None, "block_size": None, "zero_point_shift": None}
_GRID = ("qmin", "qmax", "symmetric", "zero_point_shift")
Made = TypeVar("Made", bound="AffineQuantizerBase")
_FORMS = (form("qmin", "qmax", "symmetric", **_OTHERS), form("bitwidth", "symmetric", **_OTHERS))


@checked_methods(
    "__init__", "set_range", "get_scale", "get_offset", "get_min", "get_max", "set_legacy_encodings"
)
class AffineQuantizerBase(IntegerGrid, QuantizerBase):
    """Quantizer with the parameters `min` and `max`, both of the given shape.

    Attributes:
        min: parameter from which scale and offset follow.
        max: parameter from which scale and offset follow.
        symmetric: whether the offset is fixed.
        block_size: elements of a block along each axis of the shape, -1 for what fits; None without blocks.
        zero_point_shift: 0.5 puts 0 between two steps, else 0.
    """

    min: nn.Parameter
    max: nn.Parameter
    _encodes: type[AffineEncoding] = AffineEncoding
    _copied: tuple[str, ...] = ("qmin", "qmax", "block_size", "zero_point_shift")

    def __init__(self, shape: int | Sequence[int], *args: Any, **keywords: Any) -> None:
        """Make a quantizer without a range.

        Args:
            shape: shape of min and max, which broadcasts to the input or has a value for each block.
            args: (qmin, qmax, symmetric, encoding_analyzer=None, block_size=None, zero_point_shift=0), or
                bitwidth in place of qmin and qmax: signed integers if symmetric, else from 0.
            keywords: the same by name.

        Raises SpecError for other arguments, and for an analyzer of another shape.
        """
        super().__init__()
        name = type(self).__name__
        self.qmin, self.qmax, others = read_call(name, _FORMS, args, keywords)
        self.symmetric, block_size = bool(others["symmetric"]), others["block_size"]
        self.block_size = None if block_size is None else tuple(block_size)
        self.zero_point_shift = check_shift(name, others["zero_point_shift"])
        for end, value in (("min", -1.0), ("max", 1.0)):
            self.register_quantization_parameter(end, nn.Parameter(torch.full(as_shape(shape), value)))
        given = others["encoding_analyzer"]
        self.encoding_analyzer = given or MinMaxEncodingAnalyzer(self.shape, self.block_size)
        self._overwrites = {"min": True, "max": True}
        self._sealed = True

    shape = property(lambda self: tuple(self.min.shape), doc="Shape of min and max.")
    _analyzed = property(lambda self: (self.num_steps - bool(self.zero_point_shift), self.symmetric))

    def get_scale(self, dtype: torch.dtype | None = None) -> Tensor | None:
        """Return the scale, of dtype or float32; None before a range is known."""
        return self._scale(dtype or torch.float32) if self.is_initialized() else None

    def _scale(self, dtype: torch.dtype) -> Tensor:
        steps = self.num_steps
        scale = (self.max.to(dtype) - self.min.to(dtype)) / steps
        return scale.abs().clamp_min_(smallest_scale(steps))

    def get_offset(self, dtype: torch.dtype | None = None) -> Tensor | None:
        """Return the offset, minus the zero point, of dtype or float32; None before a range is known."""
        scale = self.get_scale(dtype)
        return None if scale is None else self._offset(scale, scale.dtype)

    def _offset(self, scale: Tensor, dtype: torch.dtype) -> Tensor:
        if self.symmetric:
            return self._fixed_offset(dtype)
        offset = round_straight_through(self.min / scale) - self.qmin
        return offset.clamp(-self.qmax, -self.qmin).to(dtype)

    def _fixed_offset(self, dtype: torch.dtype) -> Tensor:
        return torch.full(self.shape, -float(self._middle), dtype=dtype, device=self.min.device)

    _middle = property(lambda self: round((self.qmin + self.qmax) / 2) if self.symmetric else 0)

    def get_min(self, dtype: torch.dtype | None = None) -> Tensor | None:
        """Return the least number of the grid, which is near `min`; None before a range is known."""
        return self._value_of(self.qmin, dtype)

    def get_max(self, dtype: torch.dtype | None = None) -> Tensor | None:
        """Return the largest number of the grid, which is near `max`; None before a range is known."""
        return self._value_of(self.qmax, dtype)

    def _value_of(self, integer: int, dtype: torch.dtype | None) -> Tensor | None:
        scale, offset = self.get_scale(dtype), self.get_offset(dtype)
        return None if scale is None or offset is None else scale * (offset + integer + self.zero_point_shift)

    def set_range(self, min: Tensor | float | None, max: Tensor | float | None) -> None:
        """Set the parameters, whose shape the values broadcast to; None keeps one.

        Raises SpecError for another shape.
        """
        for name, value in (("min", min), ("max", max)):
            if value is None:
                continue
            given = plain(torch.as_tensor(value)).detach()
            if not fits(given.shape, self.shape):
                raise SpecError(
                    f"{name} must broadcast to {list(self.shape)}, found {list(given.shape)}; reshape it"
                )
            with torch.no_grad():
                getattr(self, name).copy_(given)
            self._fresh.pop(name, None)

    def _take(self, low: Tensor, high: Tensor) -> None:
        ends = {"min": low, "max": high}
        self.set_range(*(self._of(end) if self._overwrites[name] else None for name, end in ends.items()))

    def _of(self, end: Tensor) -> Tensor:
        return end if self.block_size is None else end.reshape(self.shape)

    def _range_of(self, low: Tensor, high: Tensor) -> AffineEncoding:
        low, high = (self._of(end).to(self.min).float().expand(self.shape) for end in (low, high))
        scale = (high - low) / self.num_steps
        offset = self._fixed_offset(torch.float32) if self.symmetric else torch.round(low / scale) - self.qmin
        return self._encoding(scale, offset)

    def _encoding(self, scale: Tensor, offset: Tensor) -> AffineEncoding:
        others = self.symmetric, self.block_size, self.zero_point_shift
        return AffineEncoding(scale, offset, self.qmin, self.qmax, *others)

    def get_encodings(self) -> AffineEncoding | None:
        """Return the encoding, in float32; None before a range is known."""
        scale = self.get_scale()
        return None if scale is None else self._encoding(scale, self._offset(scale, torch.float32))

    @classmethod
    def from_encodings(cls: type[Made], encodings: AffineEncoding) -> Made:
        """Return a quantizer with the range of an encoding. Raises SpecError for one of another kind."""
        if not isinstance(encodings, cls._encodes):
            kind = cls._encodes.__name__
            raise SpecError(f"{cls.__name__} takes {kind}, found {type(encodings).__name__}; give one")
        given = {name: getattr(encodings, name) for name in cls._copied}
        made = cls(encodings.scale.shape, symmetric=encodings.symmetry, **given)
        made.set_range(encodings.min, encodings.max)
        return made

    def get_legacy_encodings(self) -> list[dict[str, Any]] | None:
        """Return the entries of AIMET's files, version 0.6.1; None before a range is known."""
        with torch.no_grad():
            encodings = self.get_encodings()
        return None if encodings is None else encodings.to_legacy()

    def set_legacy_encodings(self, encodings: Sequence[Mapping[str, Any]]) -> None:
        """Take entries of AIMET's files, version 0.6.1: width, symmetry and range.

        Integers are signed if symmetric. Raises SpecError for another number of entries, or a field that is
        missing.
        """
        if len(encodings) != self.min.numel():
            raise SpecError(
                f"shape {list(self.shape)} takes {self.min.numel()} entries, found {len(encodings)}; give all"
            )
        try:
            bits, flag = encodings[0]["bitwidth"], str(encodings[0]["is_symmetric"]).lower()
            ends = [torch.tensor([one[end] for one in encodings]) for end in ("min", "max")]
        except KeyError as error:
            raise SpecError(f"an entry of an encoding needs {error}, found {list(encodings[0])}") from None
        if flag not in ("true", "false"):
            raise SpecError(f"is_symmetric must be 'True' or 'False', found {flag!r}; correct the entry")
        self.symmetric = flag == "true"
        self.qmin, self.qmax = limits_of((1 << bits) - 1, self.symmetric)
        self.zero_point_shift = check_shift("an entry", encodings[0].get("zero_point_shift"))
        self.set_range(*(end.view(self.shape) for end in ends))

    def _grid_state(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in _GRID}

    def _set_grid_state(self, state: Mapping[str, Any]) -> None:
        if "qmin" in state and "qmax" in state:
            check_limits("a state dict", state["qmin"], state["qmax"])
        for name in filter(state.__contains__, _GRID):
            setattr(self, name, state[name])

    def check_export(self, name: str) -> None:
        """Raise as QuantizerBase, and SpecError for a shift of half a step."""
        super().check_export(name)
        if self.zero_point_shift:
            raise SpecError(f"no model file has the zero_point_shift 0.5 of {name!r}; export without it")

    def _as_node(self, x: Tensor, encoding: Any) -> Tensor:
        # The zero point of symmetric integers is 0.
        zeros = torch.zeros_like(encoding.offset) if self.symmetric else -encoding.offset
        qtype = qtype_of_integers(self.qmin - self._middle, self.qmax - self._middle)
        return self._node(x, qtype, encoding.scale, zeros - self.zero_point_shift)

    def extra_repr(self) -> str:
        """Return the settings in one line."""
        names = ["shape", "block_size", "qmin", "qmax", "symmetric"]
        names += ["zero_point_shift"] if self.zero_point_shift else []
        settings = {name: getattr(self, name) for name in names}
        return ", ".join(f"{name}={value}" for name, value in settings.items() if value is not None)


class QuantizeDequantize(AffineQuantizerBase):
    """Rounding to the grid; the result is a DequantizedTensor."""

    def _round(self, x: Tensor, encoding: Any) -> Tensor:
        return quantize_dequantize(x, *encoding.grid, encoding.block_size, encoding.zero_point_shift)


class _IntegerQuantizer(AffineQuantizerBase):
    """Quantizer that a model file has as half of a pair only."""

    def __init__(self, shape: int | Sequence[int], *args: Any, **keywords: Any) -> None:
        """Make a quantizer, see AffineQuantizerBase. Raises SpecError for a shift of half a step."""
        super().__init__(shape, *args, **keywords)
        if self.zero_point_shift:
            raise SpecError(f"{type(self).__name__} has no zero_point_shift, found 0.5; leave it out")

    def check_export(self, name: str) -> None:
        """Raise SpecError."""
        raise SpecError(f"{type(self).__name__} alone cannot be exported; use QuantizeDequantize")

    def _as_node(self, x: Tensor, encoding: Any) -> Tensor:
        self.check_export("")
        return x


class Quantize(_IntegerQuantizer):
    """Rounding to integers, which are floats; the result is a QuantizedTensor."""

    result = QuantizedTensor

    def _round(self, x: Tensor, encoding: Any) -> Tensor:
        return quantize(x, *encoding.grid, encoding.block_size)


class Dequantize(_IntegerQuantizer):
    """Values of the integers of a `Quantize` with the same range; the result is a DequantizedTensor."""

    def _round(self, x: Tensor, encoding: Any) -> Tensor:
        return dequantize(x, encoding.scale, encoding.offset, encoding.block_size)


@checked_methods("__init__", "get_per_channel_scale")
class GroupedBlockQuantizeDequantize(QuantizeDequantize):
    """LPBQ: scales of blocks are small integers times one scale for each group of blocks.

    The integers lie in [1, 2^(decompressed_bw - bitwidth)]; the group's scale fits its largest block.

    Attributes:
        decompressed_bw: width of the integers times their block's integer.
        block_grouping: blocks of a group along each axis, -1 for all.
    """

    _encodes = GroupedBlockEncoding
    _copied = ("bitwidth", "block_size", "decompressed_bw", "block_grouping")

    def __init__(
        self,
        shape: int | Sequence[int],
        bitwidth: int,
        symmetric: bool,
        decompressed_bw: int,
        encoding_analyzer: Any = None,
        block_size: Sequence[int] | None = None,
        block_grouping: Sequence[int] | None = None,
    ) -> None:
        """Make a quantizer; groups are single blocks by default.

        Raises SpecError without symmetry, for groups that do not divide the shape, and for a
        decompressed_bw below bitwidth.
        """
        super().__init__(shape, bitwidth, symmetric, encoding_analyzer, block_size)
        sizes = tuple(block_grouping or (1,) * len(self.shape))
        if not symmetric:
            raise SpecError("LPBQ has symmetric grids, found symmetric=False; give True")
        if len(sizes) != len(self.shape) or any(
            size != -1 and (size < 1 or n % size) for n, size in zip(self.shape, sizes, strict=True)
        ):
            raise SpecError(f"groups of {list(sizes)} blocks do not divide {list(self.shape)}; give others")
        if decompressed_bw < self.bitwidth:
            raise SpecError(f"decompressed_bw must be at least {bitwidth}, found {decompressed_bw}; raise it")
        self.__dict__.update(decompressed_bw=decompressed_bw, block_grouping=sizes)  # others are sealed

    def _scale(self, dtype: torch.dtype) -> Tensor:
        return self._grouped(dtype)[0]

    def _grouped(self, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """Return the scales of blocks and of groups."""
        own, most = super()._scale(dtype), 1 << (self.decompressed_bw - self.bitwidth)
        sizes = self.block_grouping
        full = [n if size == -1 else size for n, size in zip(own.shape, sizes, strict=True)]
        groups = [n // size for n, size in zip(own.shape, full, strict=True)]
        unit = own.reshape(interleaved(groups, full)).amax(tuple(range(1, 2 * own.ndim, 2))) / most
        zeros = torch.zeros_like(unit)
        return quantize_dequantize(own, unit, zeros, 1, most, block_size=sizes), unit

    def get_per_channel_scale(self, dtype: torch.dtype | None = None) -> Tensor | None:
        """Return the scales of the groups, of dtype or float32; None before a range is known."""
        return self._grouped(dtype or torch.float32)[1] if self.is_initialized() else None

    def get_per_block_integer_scale(self) -> Tensor | None:
        """Return the integer of each block as int32; None before a range is known."""
        encodings = self.get_encodings()
        return None if encodings is None else encodings.per_block_int_scale.to(torch.int32)

    def get_encodings(self) -> GroupedBlockEncoding | None:
        """Return the encoding, in float32; None before a range is known."""
        made, names = super().get_encodings(), ("block_grouping", "decompressed_bw")
        if made is None:
            return None
        limits = made.qmin, made.qmax, made.symmetry, made.block_size
        grouping = {name: getattr(self, name) for name in names}
        unit = self._grouped(torch.float32)[1]
        return GroupedBlockEncoding(made.scale, made.offset, *limits, per_channel_scale=unit, **grouping)
