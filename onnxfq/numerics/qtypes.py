"""Number formats of quantized tensors: `QType`, found by name with `qtype_by_name`.

| name                              | meaning                                                       |
|-----------------------------------|---------------------------------------------------------------|
| int2 ... int16, uint2 ... uint16  | integers of this width                                        |
| int32                             | integers of biases only                                       |
| int8[-127,127]                    | integers with custom limits, here the narrow range            |
| integers[5,10]                    | any limits, by `qtype_of_integers`; for simulation in torch   |
| float8e4m3fn, float8e5m2          | OCP 8-bit floats (FP8 formats for deep learning, 2022)        |
| float8e4m3fnuz, float8e5m2fnuz    | 8-bit floats without negative zero (GraphCore, AMD)           |
| float6e2m3, float6e3m2            | OCP MX 6-bit floats                                           |
| float4e2m1                        | OCP MX 4-bit float                                            |
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np
from onnx import TensorProto

from onnxfq.errors import SpecError, nearest


@dataclass(frozen=True)
class FloatLayout:
    """Bit layout of a small float: sign, exponent, mantissa.

    Attributes:
        exponent_bits: bits of the exponent.
        mantissa_bits: stored bits of the mantissa.
        bias: bias of the exponent.
        special: meaning of the largest codes: "ieee" (infinities and NaN), "fn" (one NaN per sign, no
            infinity), "fnuz" (one NaN in place of -0), "finite" (neither).
    """

    exponent_bits: int
    mantissa_bits: int
    bias: int
    special: str


@dataclass(frozen=True)
class QType:
    """Number format of quantized values, before scaling.

    Attributes:
        name: name for `qtype_by_name`.
        bits: width of one code.
        signed: whether it has negative numbers.
        qmin: smallest finite number, an integer for integer types.
        qmax: largest finite number, an integer for integer types.
        layout: bits of a float type; None for integers.
    """

    name: str
    bits: int
    signed: bool
    qmin: float
    qmax: float
    layout: FloatLayout | None = None

    @property
    def is_float(self) -> bool:
        """Tell whether the format is a small float."""
        return self.layout is not None

    @property
    def base(self) -> str:
        """Name without custom limits: `int8` for `int8[-127,127]`."""
        return self.name.partition("[")[0]

    @property
    def full_range(self) -> bool:
        """Tell whether every code of the width may be used."""
        return self.base == self.name

    @property
    def onnx_type(self) -> int | None:
        """The `TensorProto.DataType` with exactly these codes; None if ONNX has none."""
        code = getattr(TensorProto, self.base.upper(), None)
        return None if code is None else int(code)

    @property
    def has_kernel(self) -> bool:
        """Tell whether the custom-op library knows the format: limits that hold 0, of at most 16 bits."""
        return self.base in QTYPES

    @property
    def dtype(self) -> np.dtype[np.generic]:
        """NumPy dtype of quantized values, one element per item.

        A width that neither NumPy nor ml_dtypes has is stored in the next wider integer.
        """
        if self.layout is not None:
            found: Any = getattr(ml_dtypes, _ML_DTYPES[self.base])
        elif self.bits in (2, 4) and self.has_kernel:
            found = getattr(ml_dtypes, self.base)
        else:
            found = self.storage_dtype
        dtype: np.dtype[np.generic] = np.dtype(found)
        return dtype

    @property
    def storage_dtype(self) -> str:
        """Name of the narrowest integer dtype of NumPy and torch that holds the integers."""
        return f"{'' if self.signed else 'u'}int{next(n for n in (8, 16, 32, 64) if n >= self.bits)}"

    @property
    def min_opset(self) -> int | None:
        """Lowest ai.onnx opset whose QuantizeLinear and DequantizeLinear take this type; None for none.

        Source: ONNX operator changelog; 8 bit per axis since 13, float8 19, 16 and 4 bit 21, float4 23,
        2 bit 25, float6 28. Also None if the installed onnx is older than the type.
        """
        return None if self.onnx_type is None else _OPSETS.get(self.base)

    def __str__(self) -> str:
        """Return the name."""
        return self.name


_ML_DTYPES = {
    "float8e4m3fn": "float8_e4m3fn",
    "float8e4m3fnuz": "float8_e4m3fnuz",
    "float8e5m2": "float8_e5m2",
    "float8e5m2fnuz": "float8_e5m2fnuz",
    "float6e2m3": "float6_e2m3fn",
    "float6e3m2": "float6_e3m2fn",
    "float4e2m1": "float4_e2m1fn",
}

_OPSETS = {name: 13 for name in ("int8", "uint8", "int32")}
_OPSETS |= {name: 19 for name in ("float8e4m3fn", "float8e4m3fnuz", "float8e5m2", "float8e5m2fnuz")}
_OPSETS |= {name: 21 for name in ("int4", "uint4", "int16", "uint16")}
_OPSETS |= {"float4e2m1": 23, "int2": 25, "uint2": 25, "float6e2m3": 28, "float6e3m2": 28}


def _integer(bits: int, signed: bool) -> QType:
    half = 1 << (bits - 1)
    name = f"{'int' if signed else 'uint'}{bits}"
    return QType(name, bits, signed, -half if signed else 0, half - 1 if signed else 2 * half - 1)


def _float(name: str, exponent_bits: int, mantissa_bits: int, bias: int, special: str, qmax: float) -> QType:
    layout = FloatLayout(exponent_bits, mantissa_bits, bias, special)
    return QType(name, 1 + exponent_bits + mantissa_bits, True, -qmax, qmax, layout)


_ALL = (
    *(_integer(bits, signed) for bits in range(2, 17) for signed in (True, False)),
    _float("float8e4m3fn", 4, 3, 7, "fn", 448.0),
    _float("float8e4m3fnuz", 4, 3, 8, "fnuz", 240.0),
    _float("float8e5m2", 5, 2, 15, "ieee", 57344.0),
    _float("float8e5m2fnuz", 5, 2, 16, "fnuz", 57344.0),
    _float("float6e2m3", 2, 3, 1, "finite", 7.5),
    _float("float6e3m2", 3, 2, 3, "finite", 28.0),
    _float("float4e2m1", 2, 1, 1, "finite", 6.0),
)

QTYPES: dict[str, QType] = {q.name: q for q in _ALL}

BIAS_QTYPE = QType("int32", 32, True, -(2**31), 2**31 - 128)
"""int32 for biases, up to the largest number below 2^31 in float32."""

_FREE = re.compile(r"integers\[(-?\d+),(-?\d+)\]")
_LIMITED = re.compile(r"(u?int\d+)\[(-?\d+),(-?\d+)\]")


def qtype_by_name(name: str) -> QType:
    """Return the `QType` called `name`; `int8[-127,127]` has custom limits.

    Raises SpecError with the nearest names, or with the possible limits.
    """
    if name == BIAS_QTYPE.name:
        return BIAS_QTYPE
    if name in QTYPES:
        return QTYPES[name]
    if free := _FREE.fullmatch(name):
        return qtype_of_integers(int(free[1]), int(free[2]))
    limited = _LIMITED.fullmatch(name)
    if limited and limited[1] in QTYPES:
        return _with_limits(QTYPES[limited[1]], int(limited[2]), int(limited[3]))
    hint = nearest(name, QTYPES) or "; known are int8, uint4, float8e4m3fn, float4e2m1 and others like them"
    raise SpecError(f"unknown qtype {name!r}{hint}")


def qtype_of_integers(low: int, high: int) -> QType:
    """Return the integers from `low` to `high`: a named type if there is one, else one for simulation only.

    Limits need not hold 0, and may have up to 64 bits. Raises SpecError if `low` is above `high`.
    """
    low, high = int(low), int(high)
    if low > high:
        raise SpecError(f"quant_min must be at most quant_max, got {low} and {high}; swap them")
    signed = low < 0
    bits = max((~low if signed else 0).bit_length() + signed, max(high, 0).bit_length() + signed, 2)
    if bits > 64:
        raise SpecError(f"quant_min {low} and quant_max {high} need {bits} bits; use at most 64")
    named = QTYPES.get(f"{'int' if signed else 'uint'}{bits}")
    if named is not None and low <= 0 <= high and low < high:
        return _with_limits(named, low, high)
    return QType(f"integers[{low},{high}]", bits, signed, low, high)


def float_qtype(exponent_bits: int, mantissa_bits: int) -> QType:
    """Return the float of these widths with a sign, infinities and NaN, as IEEE 754 defines them.

    For simulation only. Raises SpecError for fewer than 2 exponent bits or widths beyond float32's.
    """
    if not (2 <= exponent_bits <= 8 and 1 <= mantissa_bits <= 23):
        raise SpecError(
            "a float needs 2 to 8 exponent bits and 1 to 23 mantissa bits, got "
            f"{exponent_bits} and {mantissa_bits}"
        )
    bias = (1 << (exponent_bits - 1)) - 1
    largest = (2.0 - 2.0**-mantissa_bits) * 2.0**bias
    return _float(
        f"float_e{exponent_bits}m{mantissa_bits}", exponent_bits, mantissa_bits, bias, "ieee", largest
    )


def _with_limits(qtype: QType, qmin: int, qmax: int) -> QType:
    if not (qtype.qmin <= qmin <= 0 <= qmax <= qtype.qmax and qmin < qmax):
        raise SpecError(
            f"limits [{qmin},{qmax}] of {qtype} must hold 0 and lie in [{qtype.qmin},{qtype.qmax}]; "
            f"give others, or {qtype} for all"
        )
    if (qmin, qmax) == (qtype.qmin, qtype.qmax):
        return qtype
    return QType(f"{qtype.name}[{qmin},{qmax}]", qtype.bits, qtype.signed, qmin, qmax)
