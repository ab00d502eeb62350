"""Check of one Q/DQ model for OpenVINO on a CPU: by rules, and by the graph that it compiles.

The rules come from networks of one operator, run by OpenVINO 2026.4.1 and by ONNX Runtime.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray
from onnx import TensorProto

from onnxfq.graph.bounds import UNKNOWN
from onnxfq.graph.normalize.node_sites import NodeSite
from onnxfq.targets.findings import Finding
from onnxfq.targets.openvino.build import build_model
from onnxfq.targets.openvino.operators import OPERATORS
from onnxfq.targets.openvino.other_values import lost_scales, row_scales, signed_concats
from onnxfq.targets.openvino.policy import ALONE, FLOAT, LIMITS, STACKS, ZERO_POINT
from onnxfq.targets.reading.context import CheckContext, Rule, make_finding
from onnxfq.targets.reading.general_rules import check_quantized, refuse_simulated
from onnxfq.targets.reading.limits import check_limits
from onnxfq.targets.reading.operands import Units
from onnxfq.targets.reading.proof import make_check
from onnxfq.targets.reading.runtime_forms import check_forms

_WIDE = frozenset({TensorProto.INT16, TensorProto.UINT16})
_PAIRS = "export the model with pairs (quant_format QDQ)"
_FLOAT = frozenset({"ConvInteger", "DynamicQuantizeMatMul", "MatMulInteger"})
_BELOW, _BEYOND = "below 0", "beyond its range"
UNITS: Units = {
    **{op: slots.inputs for op, slots in OPERATORS.items() if slots.inputs != "all"},
    **{"AveragePool": (0,), "Concat": ()},
}
"""Operators that OpenVINO runs in 8 bits between pairs, and the slots of their data."""


def wide_pairs(reading: CheckContext) -> Iterator[Finding]:
    """Report pairs of 16 bits: OpenVINO takes them out, so that numbers beyond their range are not clipped.

    The results differ where a pair does the work of a Relu, else with numbers beyond the range alone. A
    MaxPool between two such pairs does not compile.
    """
    for q in reading.quantizers:
        if not (q.quantizes and q.qtype in _WIDE):
            continue
        lowest = np.iinfo(np.uint16 if q.qtype == TensorProto.UINT16 else np.int16).min
        begins = np.all((0 if q.zero_point is None else q.zero_point) == lowest)
        step = 0.0 if q.scale is None else float(np.max(q.scale))
        clips = begins and q.site.index.bounds.get(q.data, UNKNOWN)[0] < -step
        what = "numbers below 0" if clips else "numbers beyond its range"
        message = (
            f"its pair on {q.data!r} is {q.type_name}, which OpenVINO takes out without clipping {what}; "
            "use uint8 or int8"
        )
        yield make_finding("wide-pair", "wrong" if clips else "warning", q.site, message, q.data)


def shared_zero_points(reading: CheckContext) -> Iterator[Finding]:
    """Report a ReduceSum whose pair shares its zero point with another: OpenVINO changes it for both."""
    pairs: dict[str, set[str]] = {}
    for q in reading.quantizers:
        integers = q.site.node.output[0] if q.quantizes else q.data
        pairs.setdefault(q.site.input(2), set()).add(integers)
    for site in reading.sites:
        maker = site.index.maker(site.input(0)) if site.op == "ReduceSum" else None
        name = maker.input(2) if maker is not None and maker.op == "DequantizeLinear" else ""
        if name and len(pairs[name]) > 1 and np.any(site.index.value(name)):
            message = (
                f"the zero point {name!r} of its input belongs to another pair too, and OpenVINO changes it "
                "for both; store one for each pair"
            )
            yield make_finding("shared-zero-point", "wrong", site, message, site.input(0))


def stacked_weights(reading: CheckContext) -> Iterator[Finding]:
    """Report products of stacked matrices that OpenVINO computes wrongly."""
    for promised, operand, q in reading.weights():
        is_stack = promised.site.op == "MatMul" and q.shape is not None and len(q.shape) > 2
        pairs = [one.pair for one in promised.activations if one.pair is not None]
        is_plain = any(pair.zero_point is None or not np.any(pair.zero_point) for pair in pairs)
        if is_stack and is_plain and q.scale is not None and q.scale.size > 1:
            message = (
                f"its weight {operand.tensor!r} has several scales: {STACKS}; use granularity: per_tensor"
            )
            yield make_finding("stacked-weight", "wrong", promised.site, message, operand.tensor)


def rounded_constants(reading: CheckContext) -> Iterator[Finding]:
    """Refuse a pair on a constant in floats next to another pair.

    OpenVINO 2026.4.1 fails in MultiplyPartialTransformation. It compiles constants by channel.
    """
    index = reading.index
    for q in reading.quantizers:
        value = index.value(q.data) if q.quantizes else None
        if value is None or value.size < 2:
            continue
        readers = [one for pair in index.reading(q.site.node.output[0]) for one in pair.outputs[0].outputs]
        for site in (one for one in readers if one.op in ("Add", "Mul")):
            makers = [index.maker(name) for name in site.node.input]
            shape = index.shape(site.node.output[0]) or value.shape
            varying = [axis - value.ndim + len(shape) for axis, size in enumerate(value.shape) if size > 1]
            paired = all(maker is not None and maker.op == "DequantizeLinear" for maker in makers)
            if paired and (varying != [1] or len(shape) == 2):
                message = (
                    f"OpenVINO compiles no pair on the constant {q.data!r} in floats beside another pair; "
                    "store its integers"
                )
                yield make_finding("rounded-constant", "refused", site, message, q.data)


def _lack_channels(site: NodeSite) -> str | None:
    scale = site.index.value(site.input(4))
    return " with a scale for each channel" if scale is not None and scale.size > 1 else None


_LACKED: dict[str, Callable[[NodeSite], str | None]] = {
    **dict.fromkeys(("QGemm", "QLinearGlobalAveragePool"), lambda site: ""),
    **dict.fromkeys(("QLinearConv", "QLinearMatMul"), _lack_channels),
    "QLinearLeakyRelu": lambda site: None if "alpha" in site.attrs else " without alpha",
}
"""Operator -> in which form OpenVINO refuses a node of it; None for one that it reads."""


def _wrap_shifted(site: NodeSite) -> str:
    """Return what is wrapped where numbers of uint8 less their zero point are computed with."""
    zero = site.index.value(site.input(2))
    return _BELOW if zero is not None and zero.dtype == np.uint8 and zero.any() else ""


def _wrap_joined(site: NodeSite, join: Callable[..., NDArray[Any]]) -> str:
    """Return the numbers outside of the range of the result: a Relu has them below 0."""
    count = len(site.node.input)
    slots, result = (range(2, count, 3), 0) if site.op == "QLinearConcat" else ((0, 3), count - 2)
    operands = [_reals(site, slot + 1, site.index.value(site.input(slot))) for slot in slots]
    range_ = _reals(site, result)
    if range_ is None or any(one is None for one in operands):
        return ""
    ends, (low, high) = join(operands), range_
    step = (high - low) / 255
    below, above = np.any(ends < low - step), np.any(ends > high + step)
    return _BELOW if below and low == 0 else _BEYOND if below or above else ""


def _reals(site: NodeSite, slot: int, stored: NDArray[Any] | None = None) -> tuple[float, float] | None:
    """Return the ends of the real numbers whose scale and zero point stand at `slot`; None if unknown."""
    scale, zero = (site.index.value(site.input(at)) for at in (slot, slot + 1))
    zero = np.zeros((), np.uint8) if zero is None else zero
    if scale is None or scale.size != 1 or zero.size != 1 or zero.dtype not in (np.int8, np.uint8):
        return None
    limits = np.iinfo(zero.dtype)
    numbers = np.array([limits.min, limits.max]) if stored is None or not stored.size else stored
    reals = (numbers - float(zero.item())) * float(scale.item())
    return float(reals.min()), float(reals.max())


_WRAPPED: dict[str, Callable[[NodeSite], str]] = {
    **dict.fromkeys(("QLinearAveragePool", "QLinearLeakyRelu"), _wrap_shifted),
    "QLinearAdd": partial(_wrap_joined, join=lambda ends: np.add.outer(*ends)),
    "QLinearConcat": partial(_wrap_joined, join=np.array),
    "QLinearMul": partial(_wrap_joined, join=lambda ends: np.multiply.outer(*ends)),
}
"""Operator -> which numbers OpenVINO wraps around, where ONNX Runtime clips them; empty for none."""


def integer_operators(reading: CheckContext) -> Iterator[Finding]:
    """Report operators on integers that OpenVINO lacks, runs in float or computes otherwise."""
    for site in reading.sites:
        form = _LACKED[site.op](site) if site.op in _LACKED else None
        wrapped = _WRAPPED[site.op](site) if site.op in _WRAPPED else ""
        if form is not None:
            yield make_finding("operator", "refused", site, f"OpenVINO reads no {site.op}{form}; {_PAIRS}")
        elif site.op in _FLOAT or (site.op == "QLinearMatMul" and reading.index.value(site.input(3)) is None):
            yield make_finding("operator", "float", site, f"OpenVINO multiplies it in float; {_PAIRS}")
        elif wrapped:
            message = f"OpenVINO wraps numbers {wrapped} around, where ONNX Runtime clips them; {_PAIRS}"
            yield make_finding("wrapped", "wrong" if wrapped == _BELOW else "warning", site, message)


RULES: tuple[Rule, ...] = (
    refuse_simulated("OpenVINO"),
    check_quantized,
    integer_operators,
    rounded_constants,
    wide_pairs,
    check_limits(*LIMITS, ZERO_POINT, ALONE, FLOAT),
    shared_zero_points,
    stacked_weights,
    signed_concats,
    lost_scales,
    row_scales,
    check_forms("openvino"),
)

check_model = make_check("openvino", RULES, UNITS, build_model, inlines=False)
