"""Check of one Q/DQ model for OpenVINO on a CPU: by rules, and by the graph that it compiles.

The rules come from networks of one operator, run by OpenVINO 2026.4.1 and by ONNX Runtime.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from onnx import TensorProto

from onnxfq.graph.index import Shape
from onnxfq.graph.ops import CONVOLUTIONS, FAKE_QUANTIZE_OPS
from onnxfq.targets.findings import Finding
from onnxfq.targets.openvino.build import build_model
from onnxfq.targets.openvino.operators import OPERATORS
from onnxfq.targets.reading.context import CheckContext, Rule, make_finding
from onnxfq.targets.reading.general_rules import check_quantized
from onnxfq.targets.reading.operands import ExpectedPrecision, QuantizedOperand, Units
from onnxfq.targets.reading.proof import make_check
from onnxfq.targets.reading.quantizer_reader import Quantizer
from onnxfq.targets.reading.session_forms import check_forms

_WIDE = frozenset({TensorProto.INT16, TensorProto.UINT16})
_BYTES = frozenset({TensorProto.INT8, TensorProto.UINT8})
UNITS: Units = {
    **{op: slots.inputs for op, slots in OPERATORS.items() if slots.inputs != "all"},
    **{"AveragePool": (0,), "Concat": ()},
}
"""Operators that OpenVINO runs in 8 bits between pairs, and the slots of their data."""


def simulated(reading: CheckContext) -> Iterator[Finding]:
    """Refuse operators of onnxfq: OpenVINO finds no conversion rule for them."""
    for site in reading.sites:
        if site.op in FAKE_QUANTIZE_OPS:
            message = f"OpenVINO has no operator {site.op}; quantize with a recipe that writes Q/DQ pairs"
            yield make_finding("operator", "refused", site, message)


def wide_pairs(reading: CheckContext) -> Iterator[Finding]:
    """Report pairs of 16 bits: OpenVINO takes them out, so that numbers beyond their range are not clipped.

    The results differ if a pair does the work of a Relu or meets an outlier. A MaxPool between two such pairs
    does not compile.
    """
    for q in reading.quantizers:
        if q.quantizes and q.qtype in _WIDE:
            message = (
                f"its pair on {q.data!r} is {q.type_name}, which OpenVINO takes out without clipping to its "
                "range; use uint8 or int8"
            )
            yield make_finding("wide-pair", "wrong", q.site, message, q.data)


def zero_points(reading: CheckContext) -> Iterator[Finding]:
    """Report zero points of products of two activations and of some convolutions: in float.

    These are ConvTranspose, depthwise ones over three dimensions, and every one whose input is int8.
    """
    for promised in reading.promises:
        if promised.site.op in UNITS:
            continue
        weighted = any(operand.constant for operand in promised.operands)
        takes = weighted and promised.site.op != "ConvTranspose" and len(_depthwise_shape(promised)) <= 4
        for operand, q in _activations(promised):
            signed = promised.site.op == "Conv" and q.qtype == TensorProto.INT8
            if (signed or not takes) and q.zero_point is not None and np.any(q.zero_point):
                message = (
                    f"its input {operand.tensor!r} has a zero point other than 0, and OpenVINO multiplies it "
                    "in float; use int8 and symmetric: true"
                )
                yield make_finding("zero-point", "float", promised.site, message, operand.tensor)
                break


def activation_scales(reading: CheckContext) -> Iterator[Finding]:
    """Report several scales of an activation: only a depthwise convolution keeps them, along its channels."""
    for promised in reading.promises:
        for operand, q in _activations(promised):
            if q.scale is not None and q.scale.size > 1 and not (_depthwise_shape(promised) and q.axis == 1):
                message = (
                    f"its input {operand.tensor!r} has several scales, and OpenVINO multiplies it in float; "
                    "use granularity: per_tensor"
                )
                yield make_finding("activation-scales", "float", promised.site, message, operand.tensor)


def channel_zero_points(reading: CheckContext) -> Iterator[Finding]:
    """Report zero points that differ by channel where a channel has several outputs: OpenVINO mixes them."""
    for promised in reading.promises:
        shape = _depthwise_shape(promised)
        for operand, q in _activations(promised):
            if q.zero_point is None or q.axis != 1 or not shape or shape[0] == q.zero_point.size:
                continue
            if np.unique(q.zero_point).size > 1:
                message = (
                    f"its input {operand.tensor!r} has a zero point for each channel and {shape[0]} outputs, "
                    "and OpenVINO takes the zero points of other channels; use granularity: per_tensor"
                )
                yield make_finding("channel-zero-points", "wrong", promised.site, message, operand.tensor)


def weight_types(reading: CheckContext) -> Iterator[Finding]:
    """Report a weight that makes its product run in float: it is not int8, or has a zero point."""
    for promised, operand, q in reading.weights():
        if promised.expects != "low":
            continue
        if q.qtype != TensorProto.INT8 or (q.zero_point is not None and np.any(q.zero_point)):
            found = q.type_name if q.qtype != TensorProto.INT8 else "int8 with a zero point"
            message = (
                f"its weight {operand.tensor!r} is {found}, and OpenVINO multiplies in 8 bits with int8 and "
                "zero point 0 only; quantize it so"
            )
            yield make_finding("weight-type", "float", promised.site, message, operand.tensor)


def lone_weights(reading: CheckContext) -> Iterator[Finding]:
    """Report convolutions of which only the weight is quantized: in float."""
    for promised in reading.promises:
        if promised.expects == "weight-only" and promised.site.op in CONVOLUTIONS:
            message = "only its weight is quantized, and OpenVINO multiplies in float; quantize its input too"
            yield make_finding("weight-only", "float", promised.site, message)


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


def _activations(promised: ExpectedPrecision) -> Iterator[tuple[QuantizedOperand, Quantizer]]:
    for operand in promised.activations:
        if operand.pair is not None and operand.pair.qtype in _BYTES:
            yield operand, operand.pair


def _depthwise_shape(promised: ExpectedPrecision) -> Shape:
    """Return the shape of the weight of a depthwise convolution; () for other nodes."""
    weight = promised.weight
    shape = None if weight is None else promised.site.index.shape(weight.tensor)
    depthwise = promised.site.op == "Conv" and shape is not None and shape[1] == 1 and shape[0] != 1
    return shape if depthwise and shape is not None else ()


RULES: tuple[Rule, ...] = (
    simulated,
    check_quantized,
    wide_pairs,
    zero_points,
    activation_scales,
    channel_zero_points,
    weight_types,
    lone_weights,
    shared_zero_points,
    check_forms("openvino"),
)

check_model = make_check("openvino", RULES, UNITS, build_model)
