"""Rules about scales and zero points: values, counts, constants."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from onnx import TensorProto

from onnxfq.targets.findings import Finding
from onnxfq.targets.reading.context import CheckContext, Rule, make_finding
from onnxfq.targets.reading.quantizer_reader import DEQUANTIZE_OPS, DYNAMIC_OPS, Quantizer
from onnxfq.targets.tensorrt.limits import ZERO_POINTS

# Another rule refuses the last one as an operator.
_DYNAMIC = {*DYNAMIC_OPS, "DynamicQuantizeLinear"}


def zero_points(reading: CheckContext) -> Iterator[Finding]:
    """Refuse zero points other than 0."""
    for q in _first_with(reading, 2):
        if q.zero_point is not None and np.any(q.zero_point):
            values = np.unique(np.asarray(q.zero_point).astype(np.float64))
            shown = ", ".join(f"{value:g}" for value in values[:3]) + (" ..." if len(values) > 3 else "")
            message = f"zero point of {q.data!r} is {shown}; {ZERO_POINTS}"
            yield make_finding("zero-point", "refused", q.site, message, q.data)


_STORED = frozenset({"Cast", "Constant", "Identity"})


def computed_zero_points(reading: CheckContext) -> Iterator[Finding]:
    """Refuse zero points that another operator than a Cast makes from a constant.

    NvInfer.h wants a Constant or a Cast of one; the builder: "Quantized constant is only allowed before DQ".
    TensorRT for RTX 1.7.1 also takes an Identity.
    """
    for q in _first_with(reading, 2):
        maker = q.site.index.maker(q.site.input(2))
        if maker is not None and maker.op not in _STORED | _DYNAMIC:
            message = f"{maker.op} {maker.name!r} makes the zero point of {q.data!r}; store it as a constant"
            yield make_finding("zero-point", "refused", q.site, message, q.data)


def scale_values(reading: CheckContext) -> Iterator[Finding]:
    """Refuse scales that are 0, negative or NaN; report infinite ones, which TensorRT takes.

    Source: NVIDIA/TensorRT operator reference, Quantize; parser: "Scale coefficients must all be positive".
    """
    for q in _first_with(reading, 1):
        if q.scale is None or q.scale.dtype == np.uint8:  # MXFP8 keeps exponents in bytes
            continue
        values = np.asarray(q.scale).astype(np.float64).ravel()
        bad = values[~(values > 0)]
        if len(bad):
            message = (
                f"scale of {q.data!r} is {bad[0]:g} in {len(bad)} of {len(values)}, and TensorRT takes "
                "positive scales only; calibrate again, a channel of zeros needs some positive scale"
            )
            yield make_finding("scale-value", "refused", q.site, message, q.data)
        elif np.isinf(values).any():
            message = f"scale of {q.data!r} is infinite, and TensorRT takes it and gives NaN; calibrate again"
            yield make_finding("scale-value", "wrong", q.site, message, q.data)


def scale_counts(reading: CheckContext) -> Iterator[Finding]:
    """Refuse a number of scales other than the length of its axis.

    Parser: "The number of scales is not equal to the number of output channels". One scale
    applies to all.
    """
    for q in _first_with(reading, 1):
        if not q.scale_shape or len(q.scale_shape) != 1 or q.shape is None or q.axis is None:
            continue
        count = q.scale_shape[0]
        if not 0 <= q.axis < len(q.shape):
            message = (
                f"scale of {q.data!r} goes along axis {q.axis}, and the tensor has {len(q.shape)}; correct it"
            )
            yield make_finding("scale-count", "refused", q.site, message, q.data)
        elif count != 1 and q.shape[q.axis] not in (None, count):
            message = (
                f"{q.data!r} has {q.shape[q.axis]} slices along axis {q.axis} and {count} scales; give one "
                "for each, or name the right axis"
            )
            yield make_finding("scale-count", "refused", q.site, message, q.data)


_FOLDED = frozenset(
    "Abs Acos Acosh Add And Asin Asinh Atan Atanh Cast CastLike Ceil Celu Clip Concat Constant "
    "ConstantOfShape Cos Cosh Div Dropout Equal Exp Expand Floor Gather Greater GreaterOrEqual HardSigmoid "
    "HardSwish Identity If LeakyRelu Less LessOrEqual Log Max Mean Min Mod Mul Neg Not Or PRelu Reciprocal "
    "Reshape Selu Shape Sign Sin Sinh Size Slice Softsign Split Sqrt Squeeze Sub Sum Tan ThresholdedRelu "
    "Tile Transpose Unsqueeze Where Xor".split()
)
"""Operators that TensorRT for RTX 1.7.1 computes while it parses, tried one by one on a scale."""

_FOLDED_INTEGERS = frozenset(
    "GatherElements GatherND OneHot Pad Pow ReduceL1 ReduceMax ReduceMean ReduceMin ReduceProd ReduceSum "
    "ReduceSumSquare".split()
)
"""Operators that it computes of integers only, such as sizes."""

_FOLDED_FLOATS = frozenset({"Mean", "PRelu"})
"""Operators of `_FOLDED` that it does not compute of integers."""

_INTEGERS = (TensorProto.INT32, TensorProto.INT64)


def computed_scales(reading: CheckContext) -> Iterator[Finding]:
    """Refuse scales that other operators than `_FOLDED` make of constants and sizes: the parser crashes.

    It folds a Gather of one number only, and no DQ in front of a Q. A size counts if it is not open.
    """
    for q in _first_with(reading, 1):
        index, names = q.site.index, [q.site.input(1)]
        while names:
            maker = index.maker(names.pop())
            if maker is None or not index.is_constant(str(maker.node.output[0])):
                continue
            several = maker.op == "Gather" and bool(q.scale_shape)
            if maker.op in DEQUANTIZE_OPS and not q.quantizes:
                continue  # a scale that is quantized itself
            of_integers = index.dtype(maker.input(0)) in _INTEGERS
            folded = maker.op in (_FOLDED - _FOLDED_FLOATS | _FOLDED_INTEGERS if of_integers else _FOLDED)
            if not folded or several:
                message = (
                    f"{maker.op} {maker.name!r} makes the scale of {q.data!r}, and TensorRT does not compute "
                    "it while it builds; store its value"
                )
                yield make_finding("runtime-scale", "refused", q.site, message, q.data)
                break
            names += [name for name in maker.node.input if name]


def runtime_scales(reading: CheckContext) -> Iterator[Finding]:
    """Refuse scales that are computed from data or fed: the parser of TensorRT for RTX 1.7.1 crashes.

    Source: NVIDIA/TensorRT operator reference, Quantize: the scale is a build-time constant. A DQ may read
    scales from the operators of `DYNAMIC_OPS`.
    """
    for q in _first_with(reading, 1):
        name, index = q.site.input(1), q.site.index
        maker = index.maker(name)
        while maker is not None and maker.op in DEQUANTIZE_OPS:  # a scale that is quantized itself
            name = maker.input(0)
            maker = index.maker(name)
        if index.is_constant(name) or (maker is not None and maker.op in _DYNAMIC):
            continue
        message = (
            f"scale of {q.data!r} is computed while running, and TensorRT needs a constant; store its value"
        )
        yield make_finding("runtime-scale", "refused", q.site, message, q.data)


def _first_with(reading: CheckContext, slot: int) -> Iterator[Quantizer]:
    """Yield the first Q or DQ that reads each scale (slot 1) or zero point (slot 2), each reported once."""
    seen = {""}
    for q in reading.quantizers:
        if q.site.input(slot) not in seen:
            seen.add(q.site.input(slot))
            yield q


RULES: tuple[Rule, ...] = (
    zero_points,
    computed_zero_points,
    scale_values,
    scale_counts,
    runtime_scales,
    computed_scales,
)
