"""AIMET's document: quantizers to small floats, whose scale maps the largest value to the largest number."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from onnxfq.errors import SpecError
from onnxfq.numerics.qtypes import QTYPES, float_qtype
from onnxfq.torch.arguments import checked_methods
from onnxfq.torch.compat.aimet.encoding_analyzer import MinMaxEncodingAnalyzer
from onnxfq.torch.compat.aimet.encodings import FLOAT_FORMATS, FloatEncoding, FloatFormat
from onnxfq.torch.compat.aimet.quantizer import EXTRA, QuantizerBase
from onnxfq.torch.compat.aimet.tensor import plain
from onnxfq.torch.onnx_node import is_lowered_later

__all__ = ["FloatEncoding", "FloatQuantizeDequantize", "QuantizeDequantize"]


def _bits(name: str, text: str) -> Any:
    """Return the property of a width of the format."""

    def change(self: FloatQuantizeDequantize, bits: int) -> None:
        self._format = _checked(**self._format._asdict() | {name: bits})

    return property(lambda self: getattr(self._format, name), change, doc=text)


@checked_methods("__init__", "set_legacy_encodings")
class FloatQuantizeDequantize(QuantizerBase):
    """Rounding to small floats; the result is a DequantizedTensor.

    It needs no range: without one, `maxval` is the format's largest number, and the scale is 1.

    Attributes:
        maxval: buffer of the given shape, the largest value.
        block_size: elements of a block along each axis of the shape, -1 for what fits; None without blocks.
        exponent_bits: bits of the exponent.
        mantissa_bits: bits behind the point.
    """

    maxval: Tensor

    def __init__(
        self,
        exponent_bits: int | None = None,
        mantissa_bits: int | None = None,
        finite: bool | None = None,
        unsigned_zero: bool | None = None,
        dtype: torch.dtype | None = None,
        shape: Sequence[int] | None = None,
        block_size: Sequence[int] | None = None,
        encoding_analyzer: Any = None,
    ) -> None:
        """Make a quantizer.

        Args:
            exponent_bits: bits of the exponent; with mantissa_bits, or dtype in place of both.
            mantissa_bits: bits behind the point.
            finite: whether the format lacks infinities; by default it has them.
            unsigned_zero: whether it lacks -0; by default it has it.
            dtype: float16, bfloat16 or a float8 type of torch.
            shape: shape of maxval; by default the analyzer's, or one value.
            block_size: elements of a block along each axis of the shape.
            encoding_analyzer: range from data; below 16 bits by default the largest value.

        Raises SpecError for contradicting arguments and formats that torch lacks.
        """
        super().__init__()
        bits = (exponent_bits, mantissa_bits, finite, unsigned_zero)
        if bits != (None,) * 4 if dtype is not None else None in bits[:2]:
            raise SpecError(f"give dtype, or exponent_bits and mantissa_bits, found {dtype} and {bits}")
        if dtype is not None and dtype not in FLOAT_FORMATS:
            known = ", ".join(map(str, FLOAT_FORMATS))
            raise SpecError(f"dtype must be one of {known}, found {dtype}; give one, or bits")
        self._format = _checked(*bits if dtype is None else FLOAT_FORMATS[dtype])
        if shape is None:
            shape = () if encoding_analyzer is None else encoding_analyzer.observer.shape
        self.block_size = None if block_size is None else tuple(block_size)
        self.register_buffer("maxval", torch.full(tuple(shape), self._format.max))
        if self.bitwidth < 16 and encoding_analyzer is None:
            encoding_analyzer = MinMaxEncodingAnalyzer(shape, block_size)
        self.encoding_analyzer = encoding_analyzer
        self._overwrites = {"maxval": True}
        self._sealed = True

    shape = property(lambda self: tuple(self.maxval.shape), doc="Shape of maxval.")
    exponent_bits: int = _bits("exponent_bits", "Bits of the exponent; setting it keeps maxval.")
    mantissa_bits: int = _bits("mantissa_bits", "Bits behind the point; setting it keeps maxval.")
    bitwidth = property(lambda self: 1 + sum(self._format[:2]), doc="Bits of a number, with its sign.")

    def is_float16(self) -> bool:
        """Tell whether the format is float16."""
        return self._format == FLOAT_FORMATS[torch.float16]

    def is_bfloat16(self) -> bool:
        """Tell whether the format is bfloat16."""
        return self._format == FLOAT_FORMATS[torch.bfloat16]

    def forward(self, input: Tensor) -> Tensor:
        """Return the rounded input with its encoding; integers pass unchanged."""
        is_integer = isinstance(input, Tensor) and not input.is_floating_point()
        return input if is_integer else super().forward(input)

    def _round(self, x: Tensor, encoding: Any) -> Tensor:
        rounded: Tensor = encoding.quantize_dequantize(x)
        return rounded

    def get_scale(self) -> Tensor:
        """Return the scale, maxval over the format's largest number."""
        return self._scale(self.maxval)

    def _scale(self, largest: Tensor) -> Tensor:
        return torch.as_tensor(2 ** (torch.log2(largest.abs()) - math.log2(self._format.max)))

    def _encoding(self, scale: Tensor) -> FloatEncoding:
        e, m, finite, unsigned_zero = self._format
        return FloatEncoding(m, e, finite, unsigned_zero, scale, self.block_size)

    def get_encodings(self) -> FloatEncoding:
        """Return the encoding."""
        return self._encoding(self.get_scale())

    @classmethod
    def from_encodings(cls, encodings: FloatEncoding) -> FloatQuantizeDequantize:
        """Return a quantizer with the scale of an encoding. Raises SpecError for one of another kind."""
        if not isinstance(encodings, FloatEncoding):
            raise SpecError(f"{cls.__name__} takes a FloatEncoding, found {type(encodings).__name__}")
        made = cls(*encodings.format, shape=encodings.scale.shape, block_size=encodings.block_size)
        made.maxval.copy_(plain(encodings.maxval).detach())
        return made

    def get_legacy_encodings(self) -> list[dict[str, Any]]:
        """Return the entry of AIMET's files, version 0.6.1."""
        return [{"bitwidth": self.bitwidth, "dtype": "float"}]

    def set_legacy_encodings(self, encodings: Sequence[Mapping[str, Any]]) -> None:
        """Become float16. Raises SpecError for entries of another width: they do not tell their format."""
        if encodings[0].get("bitwidth") != 16:
            raise SpecError(f"an entry of a float must have 16 bits, found {encodings[0].get('bitwidth')}")
        self._format = FLOAT_FORMATS[torch.float16]

    _analyzed = property(lambda self: (2.0**self.bitwidth - 1, False))

    def _largest(self, low: Tensor, high: Tensor) -> Tensor:
        largest = torch.maximum(low.abs(), high.abs()).to(self.maxval)
        return largest.reshape(self.shape) if self.block_size else largest.expand(self.shape)

    def _range_of(self, low: Tensor, high: Tensor) -> FloatEncoding:
        return self._encoding(self._scale(self._largest(low, high)))

    def _take(self, low: Tensor, high: Tensor) -> None:
        with torch.no_grad():
            self.maxval.copy_(self._largest(low, high))

    def _grid_state(self) -> dict[str, Any]:
        return self._format._asdict()

    def _set_grid_state(self, state: Mapping[str, Any]) -> None:
        known = {name: state[name] for name in FloatFormat._fields if name in state}
        self._format = _checked(*self._format._replace(**known))

    def _load_from_state_dict(self, state_dict: Mapping[str, Any], prefix: str, *args: Any) -> None:
        """Load a state; its maxval gives the shape, and AIMET's early releases have none for scale 1."""
        state = dict(state_dict)
        if prefix + "maxval" not in state and prefix + EXTRA in state:
            bits = [int(state[prefix + EXTRA][name]) for name in ("exponent_bits", "mantissa_bits")]
            state[prefix + "maxval"] = torch.full(self.shape, FloatFormat(bits[0], bits[1]).max)
        given = state.get(prefix + "maxval")
        if given is not None:
            self.maxval.data = torch.zeros(given.shape, dtype=self.maxval.dtype, device=self.maxval.device)
        super()._load_from_state_dict(state, prefix, *args)

    def check_export(self, name: str) -> None:
        """Raise SpecError for 16 bits with a scale other than 1."""
        if self.bitwidth == 16 and self._format.dtype and bool((self.get_scale() != 1).any()):
            raise SpecError(f"16-bit floats have scale 1 in a model file; remove the analyzer of {name!r}")

    def _as_node(self, x: Tensor, encoding: Any) -> Tensor:
        dtype = self._format.dtype
        if not is_lowered_later():
            return self._round(x, encoding)
        if self.bitwidth == 16 and dtype is not None:
            return x.to(dtype).to(x.dtype)
        name = str(dtype).removeprefix("torch.").replace("_", "")
        qtype = QTYPES.get(name) or float_qtype(self.exponent_bits, self.mantissa_bits)
        return self._node(x, qtype, encoding.scale, torch.zeros_like(encoding.scale))

    def extra_repr(self) -> str:
        """Return the settings in one line."""
        dtype = self._format.dtype
        settings: dict[str, Any] = dict(self._format._asdict()) if dtype is None else {"dtype": dtype}
        settings |= {"shape": self.shape or None, "block_size": self.block_size}
        return ", ".join(f"{name}={value}" for name, value in settings.items() if value is not None)


def _checked(exponent_bits: Any, mantissa_bits: Any, finite: Any, unsigned_zero: Any) -> FloatFormat:
    """Return a format. Raises SpecError for one that cannot be computed."""
    made = FloatFormat(int(exponent_bits), int(mantissa_bits), bool(finite), bool(unsigned_zero))
    if not (1 <= made.exponent_bits <= 8 and 0 <= made.mantissa_bits <= 23):
        raise SpecError(
            f"a float needs 1 to 8 exponent and 0 to 23 mantissa bits, found {exponent_bits}, {mantissa_bits}"
        )
    if not math.isfinite(made.max):
        raise SpecError(f"{made} has no largest number; give other bits")
    return made


QuantizeDequantize = FloatQuantizeDequantize
