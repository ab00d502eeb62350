"""Dynamic fake quantization in NumPy, with scales computed from the tensor; C++ twin: dynamic_scales.h.

| scale_type | scale of a block                                                                             |
|------------|----------------------------------------------------------------------------------------------|
| float32    | symmetric: max(rmax / qmax, rmin / qmin); else (rmax - rmin) / (qmax - qmin) with zero point |
|            | round(qmin - rmin / scale): ONNX DynamicQuantizeLinear. A block of zeros: 1                  |
| e8m0       | 2^(floor(log2(amax)) - emax), exponent in [-127, 127]: OCP MX v1.0, usually blocks of 32     |
| e4m3       | round_e4m3(amax / qmax / global_scale) * global_scale, the first factor at least 2^-9: NVFP4 |

The range of a block covers its finite values and 0; NaN stays NaN, infinities saturate. emax is the exponent
of the largest number of a float type. An integer type of n bits has steps of 2^-(n - 2), emax 0, and omits
its lowest number (MXINT8: q / 64, q in -127 ... 127); `scale` includes that factor. A scale that underflows
becomes 2^-149; the largest scale is the largest one for which every number of the grid is finite.
"""

from __future__ import annotations

from typing import Any, Literal, NamedTuple, get_args

import numpy as np
from numpy.typing import ArrayLike, NDArray

from onnxfq.errors import SpecError, nearest
from onnxfq.numerics.affine import as_qtype, check_names, fake_quantize, float_array
from onnxfq.numerics.granularity import PER_TENSOR, Granularity
from onnxfq.numerics.layout import Layout
from onnxfq.numerics.qparams import check_symmetry
from onnxfq.numerics.qtypes import QTYPES, QType, qtype_by_name
from onnxfq.numerics.rounding import Float32Array, round_to_float_grid

ScaleType = Literal["float32", "e8m0", "e4m3"]
SCALE_TYPES: tuple[ScaleType, ...] = get_args(ScaleType)

HEADROOM = 2.0
"""Factor of a global scale of NVFP4 over the least that represents the largest known magnitude.

Unseen activations of up to twice that magnitude do not saturate, and the largest blocks of a weight can have
larger scales. Being a power of two it changes no other scale, down to 2^-13 of the largest one.
"""

_SMALLEST = np.float32(2.0**-149)
_LARGEST = np.finfo(np.float32).max
_E4M3 = QTYPES["float8e4m3fn"]


def dynamic_fake_quantize(
    x: ArrayLike,
    *,
    qtype: QType | str,
    granularity: Granularity = PER_TENSOR,
    symmetric: bool = True,
    scale_type: str = "float32",
    global_scale: float | None = None,
    rounding: str = "half_even",
) -> tuple[NDArray[Any], Float32Array, Float32Array]:
    """Return x rounded to the grid of `qtype`, and the scale and zero point of each block.

    Args:
        x: float32, float16 or bfloat16; the result has the same type.
        qtype: number format, or its name.
        granularity: which elements share a scale.
        symmetric: whether zero points are 0.
        scale_type: one of `SCALE_TYPES`.
        global_scale: for scale_type "e4m3", by default the largest magnitude of x / (448 qmax).
        rounding: name in `ROUNDINGS`.

    Scale and zero point are float32, in the shape that `granularity` gives. Raises SpecError if a parameter
    breaks its rule.
    """
    qtype = as_qtype(qtype)
    check_names(rounding=rounding)
    given = float_array(x)
    rule = ScaleRule(qtype, scale_type, symmetric, global_scale)
    scale, zero_point, _ = choose_scales(given, rule, granularity)
    grid = element_grid(qtype, scale_type)
    y = fake_quantize(given, scale, zero_point, qtype=grid, granularity=granularity, rounding=rounding)
    return y, scale, zero_point


class ScaleRule(NamedTuple):
    """Formula of dynamic scales; fields as in `dynamic_fake_quantize`."""

    qtype: QType
    scale_type: str = "float32"
    symmetric: bool = True
    global_scale: float | None = None


class Scales(NamedTuple):
    """Scale and zero point of each block, float32; global_scale is their common factor, None for none."""

    scale: Float32Array
    zero_point: Float32Array
    global_scale: float | None


def choose_scales(x: ArrayLike, rule: ScaleRule, granularity: Granularity = PER_TENSOR) -> Scales:
    """Return the scales with which `dynamic_fake_quantize` rounds x; arguments and errors as there."""
    check_rule(*rule)
    given = float_array(x)
    values = given.astype(np.float32)
    finite = np.where(np.isfinite(values), values, np.float32(0))
    layout = Layout(granularity, given.shape)
    grid, shared = element_grid(rule.qtype, rule.scale_type), None
    with np.errstate(all="ignore"):
        rmin, rmax = (f(layout.reduce(f, finite, 0), np.float32(0)) for f in (np.minimum, np.maximum))
        zero_point = np.zeros(layout.scale_shape, np.float32)
        if not rule.symmetric:
            scale, zero_point = _asymmetric(rmin, rmax, grid)
        elif rule.scale_type == "float32":
            step = np.maximum(rmax / np.float32(grid.qmax), rmin / np.float32(grid.qmin))
            scale = np.where(rmin == rmax, np.float32(1), _limit_scales(step, grid, True))
        elif rule.scale_type == "e8m0":
            scale = _power_of_two(np.maximum(-rmin, rmax), grid)
        else:
            shared = rule.global_scale
            if shared is None:
                shared = global_scale_of(0.0 if finite.size == 0 else np.abs(finite).max(), rule.qtype)
            scale = _nvfp4(np.maximum(-rmin, rmax), grid, np.float32(shared))
    return Scales(np.asarray(scale, np.float32), np.asarray(zero_point, np.float32), shared)


def global_scale_of(amax: float, qtype: QType, headroom: float = 1.0) -> float:
    """Return the common factor of the e4m3 scales of a tensor: headroom amax / (448 qmax), 1 if amax is 0."""
    if amax == 0:
        return 1.0
    return float(max(np.float32(amax) / np.float32(448 / headroom * qtype.qmax), _SMALLEST))


def element_grid(qtype: QType, scale_type: str) -> QType:
    """Return the grid to which values are rounded: MXINT8 omits the lowest number of int8."""
    if scale_type != "e8m0" or qtype.is_float or qtype.qmin >= -qtype.qmax:
        return qtype
    return qtype_by_name(f"{qtype.base}[{-int(qtype.qmax)},{int(qtype.qmax)}]")


def check_rule(qtype: QType, scale_type: str, symmetric: bool, global_scale: float | None) -> None:
    """Raise SpecError if the arguments of `dynamic_fake_quantize` contradict each other."""
    if scale_type not in SCALE_TYPES:
        raise SpecError(f"unknown scale_type {scale_type!r}{nearest(scale_type, SCALE_TYPES)}")
    check_symmetry(qtype, symmetric)
    if not symmetric and scale_type != "float32":
        raise SpecError(
            f"symmetric=False needs an integer qtype and scale_type 'float32', got {qtype} and {scale_type!r}"
        )
    if global_scale is None:
        return
    if scale_type != "e4m3":
        raise SpecError("global_scale is for scale_type 'e4m3'; leave it out")
    if not 0 < np.float32(global_scale) <= _LARGEST:
        raise SpecError(f"global_scale must be finite and positive in float32, found {global_scale}")


def _asymmetric(rmin: Float32Array, rmax: Float32Array, grid: QType) -> tuple[Float32Array, Float32Array]:
    qmin, qmax = np.float32(grid.qmin), np.float32(grid.qmax)
    empty = rmin == rmax
    scale = np.where(empty, np.float32(1), _limit_scales((rmax - rmin) / (qmax - qmin), grid, False))
    zero_point = np.where(empty, np.float32(0), np.rint(np.clip(qmin - rmin / scale, qmin, qmax)))
    return scale, zero_point + np.float32(0)


def _power_of_two(amax: Float32Array, grid: QType) -> Float32Array:
    # Zero has no logarithm; exponents of subnormals are at most -127, the lower limit of e8m0.
    exponent = np.where(amax < 2.0**-126, -127, np.frexp(amax)[1] - 1)
    last_place = 0 if grid.is_float else 2 - grid.bits
    emax = int(np.frexp(grid.qmax)[1]) - 1 if grid.is_float else 0
    result: Float32Array = np.ldexp(np.float32(1), np.clip(exponent - emax, -127, 127) + last_place)
    return result


def _nvfp4(amax: Float32Array, grid: QType, shared: np.float32) -> Float32Array:
    block = round_to_float_grid(np.asarray(amax / np.float32(grid.qmax) / shared, np.float32), _E4M3)
    return _limit_scales(np.maximum(block, np.float32(2.0**-9)) * shared, grid, True)


def _limit_scales(scale: Float32Array, grid: QType, symmetric: bool) -> Float32Array:
    widest = np.float32(max(grid.qmax, -grid.qmin) if symmetric else grid.qmax - grid.qmin)
    largest = _LARGEST / widest
    if largest * widest > _LARGEST:  # the quotient was rounded up
        largest = np.nextafter(largest, np.float32(0))
    result: Float32Array = np.minimum(np.maximum(scale, _SMALLEST), largest)
    return result
