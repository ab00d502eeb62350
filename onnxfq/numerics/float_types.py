"""Float types, rounding of scales to them, and the types that store number formats in written models."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import ml_dtypes
import numpy as np
from numpy.typing import NDArray
from onnx import TensorProto

from onnxfq.choices import FloatName as FloatName
from onnxfq.numerics.qtypes import QTYPES, QType, qtype_by_name

FloatType = Literal["float32", "float16", "bfloat16"]


@dataclass(frozen=True)
class FloatInfo:
    """Properties of a float type.

    Attributes:
        name: as in NumPy and ml_dtypes.
        short: as in recipes and options.
        dtype: NumPy dtype.
        onnx_type: value in `TensorProto.DataType`.
        onnx_name: type in operator schemas.
        min_opset: first opset whose QuantizeLinear, and Conv, take it.
        largest: largest finite number.
        smallest: smallest normal number.
        step: distance from 1 to the next number.
        smallest_scale: smallest number that is used as a scale.
    """

    name: FloatType
    short: FloatName
    dtype: np.dtype[Any]
    onnx_type: int
    onnx_name: str
    min_opset: int
    largest: float
    smallest: float
    step: float
    smallest_scale: float


def _info(name: FloatType, short: FloatName, dtype: Any, onnx_name: str, min_opset: int) -> FloatInfo:
    limits, code = ml_dtypes.finfo(dtype), int(getattr(TensorProto, onnx_name.upper()))
    smallest = float(limits.tiny)
    # GPUs flush subnormal float32 and bfloat16 numbers to zero. Hardware keeps the subnormal numbers of
    # float16, down to 2^-24, and the ranges of real weights reach them.
    scale = float(limits.smallest_subnormal) if short == "fp16" else smallest
    largest, step = float(limits.max), float(limits.eps)
    kind = f"tensor({onnx_name})"
    return FloatInfo(name, short, np.dtype(dtype), code, kind, min_opset, largest, smallest, step, scale)


FLOATS: dict[FloatType, FloatInfo] = {
    info.name: info
    for info in (
        _info("float32", "fp32", np.float32, "float", 10),
        _info("float16", "fp16", np.float16, "float16", 19),
        _info("bfloat16", "bf16", ml_dtypes.bfloat16, "bfloat16", 22),
    )
}
"""Float types by name, in the order of the custom-op library's element types.

All arithmetic is float32, and its result is rounded once.
"""
HALF_TYPES: dict[FloatName, FloatInfo] = {
    info.short: info for info in FLOATS.values() if info.short != "fp32"
}
"""16-bit float types by short name."""
FLOAT_DTYPES = tuple(info.dtype for info in FLOATS.values())
FLOAT_CODES = frozenset(info.onnx_type for info in FLOATS.values())
"""Values of the float types in `TensorProto.DataType`."""


def round_scale(scale: NDArray[np.float64], kind: FloatType) -> NDArray[np.float32]:
    """Return positive scales as numbers of `kind`, in float32.

    float32 scales are rounded to nearest. float16 and bfloat16 have coarse steps: scales are rounded up, so
    that no further value saturates.
    """
    if kind == "float32":
        return scale.astype(np.float32)
    dtype = FLOATS[kind].dtype
    near = scale.astype(dtype)
    # The codes of positive floats are in the order of the numbers.
    codes = near.view(np.uint16) + (near.astype(np.float64) < scale)
    return np.asarray(codes.astype(np.uint16).view(dtype).astype(np.float32))


def holds(values: NDArray[Any], kind: FloatType) -> bool:
    """Tell whether `kind` represents all float32 `values` exactly."""
    with np.errstate(over="ignore"):
        return bool((values.astype(FLOATS[kind].dtype).astype(values.dtype) == values).all())


@dataclass(frozen=True)
class BlockFormat:
    """Number format, type of the scales, and size of blocks along the summed axis."""

    qtype: str
    scale_type: str
    block_size: int


BLOCK_FORMATS = {
    "MXFP8": BlockFormat("float8e4m3fn", "e8m0", 32),
    "NVFP4": BlockFormat("float4e2m1", "e4m3", 16),
    "MXFP4": BlockFormat("float4e2m1", "e8m0", 32),
}
"""Block formats with small scales that a target stores: OCP MX (2023), and NVFP4 of NVIDIA's Blackwell."""


def block_format_name(qtype: QType, scale_type: str) -> str:
    """Return the name in `BLOCK_FORMATS` of the format with these numbers and scales; empty for none."""
    names = {(one.qtype, one.scale_type): name for name, one in BLOCK_FORMATS.items()}
    return names.get((qtype.name, scale_type), "")


def find_storage_qtype(qtype: QType) -> QType | None:
    """Return the type of ONNX's QuantizeLinear that holds all numbers of `qtype`; None for none.

    int8[-127,127] is stored as int8, an odd width as the next wider integer: int3 as int4, int5 as int8,
    int12 as int16. Weights are stored within their limits; activations are clipped to them.
    The result is None if the installed onnx is older than the float type.
    """
    if qtype.min_opset is not None:
        return qtype_by_name(qtype.base)
    if qtype.is_float:
        return None
    width = next(bits for bits in (4, 8, 16) if bits >= qtype.bits)
    return QTYPES[f"{'' if qtype.signed else 'u'}int{width}"]
