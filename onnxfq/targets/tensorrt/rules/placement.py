"""Rules about the position of pairs and the axis of scales; breaches run in float without an error.

Limits of weight-only products (`weight_only_form`, one-row int8 in `check_one_row`) were measured on TensorRT
for RTX 1.7.1 alone.
"""

from __future__ import annotations

from collections.abc import Iterator

from onnx import TensorProto

from onnxfq.graph.ops import CONVOLUTIONS, find_summed_axis
from onnxfq.targets.findings import Finding, Severity
from onnxfq.targets.reading.context import CheckContext, Rule, make_finding
from onnxfq.targets.reading.limits import check_limits
from onnxfq.targets.reading.operands import ExpectedPrecision, QuantizedOperand, one_row_sizes
from onnxfq.targets.reading.quantizer_reader import QUANTIZE_OPS, Quantizer
from onnxfq.targets.tensorrt.limits import (
    ALONE,
    FLOAT8_WINDOW,
    NO_BFLOAT16,
    NO_BFLOAT16_OPS,
    ONE_PER_TENSOR,
    explain_one_row,
)


def check_one_side(reading: CheckContext) -> Iterator[Finding]:
    """Report nodes with one multiplied input quantized and the other in float.

    Source: NVIDIA, explicit quantization: both inputs of a convolution or product. A quantized weight alone
    makes a weight-only product. The DQ may stand above operators that change no number.
    """
    for promised in reading.promises:
        # Joined constants are refused as a whole.
        missing = [o for o in promised.operands if o.pair is None and not _is_joined(o)]
        if promised.site.op != "Attention" and promised.expects != "weight-only":
            yield from (_make_side_finding(promised, operand) for operand in missing)


def _is_joined(operand: QuantizedOperand) -> bool:
    stop = operand.stopped_at
    return stop is not None and stop.op == "Concat" and stop.index.is_constant(operand.tensor)


def _make_side_finding(promised: ExpectedPrecision, operand: QuantizedOperand) -> Finding:
    """Report products with one float operand, and why its pair is none: they run in float."""
    stop, lost = operand.stopped_at, operand.lost
    if stop is None or lost is None:
        message = f"its input {operand.tensor!r} is float and the other one is quantized: it runs in float; "
        message += "put a pair in front of it"
        return make_finding("one-side", "float", promised.site, message, operand.tensor)
    if stop.op == "Concat":
        message = (
            f"its input {operand.tensor!r} is a Concat of inputs without pairs or with unequal scales: it "
            "runs in float; put a pair behind the Concat"
        )
        return make_finding("concat-scales", "float", promised.site, message, operand.tensor)
    message = (
        f"the pair of {lost.data!r} stands before {stop.op} {stop.name!r}, and TensorRT moves no DQ through "
        f"it: it runs in float; put the pair on {operand.tensor!r}"
    )
    return make_finding("pair-before", "float", promised.site, message, operand.tensor)


def weight_only_form(reading: CheckContext) -> Iterator[Finding]:
    """Report int8 weight-only products whose weight is stored in float with Q and DQ: it may be folded back.

    TensorRT for RTX 1.7.1 folds the weight of a Gemm with transB, and of a MatMul with one matrix in a batch.
    It keeps other weights, and float8 and int4 in either form.
    """
    for promised, weight, q in reading.weights():
        maker = q.site.index.maker(q.data)
        if not _is_int8_alone(promised, q) or maker is None or maker.op not in QUANTIZE_OPS:
            continue
        other = promised.site.index.shape(promised.site.input(1 - weight.slot))
        one_in_batch = other is not None and len(other) > 2 and all(size == 1 for size in other[:-2])
        folded = promised.site.attrs.get("transB", 0) or one_in_batch
        effect = "folds it back to float" if folded else "folds it back to float for other shapes"
        message = (
            f"weight {maker.input(0)!r} is float with Q and DQ, and TensorRT {effect} without a quantized "
            "partner; store int8 with a DQ"
        )
        severity: Severity = "float" if folded else "warning"
        yield make_finding("weight-only-form", severity, promised.site, message, maker.input(0))


def _is_int8_alone(promised: ExpectedPrecision, q: Quantizer) -> bool:
    """Tell whether a product has an int8 weight without blocks, and nothing else is quantized."""
    multiplied = promised.expects == "weight-only" and promised.site.op not in CONVOLUTIONS
    return multiplied and q.qtype == TensorProto.INT8 and not q.is_blocked


def check_one_row(reading: CheckContext) -> Iterator[Finding]:
    """Report int8 weight-only products of a single row whose weight becomes float before each run."""
    for promised, _, q in reading.weights():
        sizes = one_row_sizes(promised) if _is_int8_alone(promised, q) else None
        why = "" if sizes is None else explain_one_row(*sizes)
        if why:
            message = f"its weight becomes float before each run: {why}"
            yield make_finding("one-row", "float", promised.site, message)


def activation_scales(reading: CheckContext) -> Iterator[Finding]:
    """Report activations with more than one scale, and for convolutions a single scale of shape [1].

    TensorRT for RTX 1.7.1 convolves in float for either. Products take a scale for each row of one matrix,
    and mix types otherwise.
    """
    for promised, operand, q in reading.activations():
        if q.scale_shape is None or len(q.scale_shape) != 1:
            continue
        count = q.scale_shape[0]
        if count == 1:
            if promised.site.op in CONVOLUTIONS:
                message = (
                    f"the scale of {q.data!r} has shape [1], and TensorRT convolves in float for it; store "
                    "it as a scalar, shape []"
                )
                yield make_finding("scale-rank", "float", promised.site, message, q.data)
            continue
        rows = q.axis is not None and q.shape is not None and q.axis == len(q.shape) - 2
        alone = rows and all(size == 1 for size in (q.shape or ())[:-2])
        moved = promised.site.op in CONVOLUTIONS or _is_summed(promised, operand, q) or not alone
        severity: Severity = "float" if moved else "warning"
        effect = "so it runs in float" if severity == "float" else "though some releases take it"
        message = f"activation {q.data!r} has {count} scales along axis {q.axis}, {effect}; {ONE_PER_TENSOR}"
        yield make_finding("activation-axis", severity, promised.site, message, q.data)


def weight_axes(reading: CheckContext) -> Iterator[Finding]:
    """Report weights with scales along the summed axis, or one for each matrix of a stack.

    Source: NVIDIA, explicit quantization: axis 0 of Conv, the output axis of Gemm and MatMul.
    """
    for promised, weight, q in reading.weights():
        several = q.scale_shape is not None and len(q.scale_shape) == 1 and q.scale_shape[0] != 1
        stacked = promised.site.op == "MatMul" and weight.axis(q.axis or 0) in range(len(q.shape or ()) - 2)
        if promised.expects == "low" and several and (stacked or _is_summed(promised, weight, q)):
            what = "a stack of matrices" if stacked else "which is summed over"
            message = (
                f"weight {q.data!r} has scales along axis {q.axis}, {what}, so it runs in float; give one "
                "scale per output channel"
            )
            yield make_finding("weight-axis", "float", promised.site, message, q.data)


def _is_summed(promised: ExpectedPrecision, operand: QuantizedOperand, q: Quantizer) -> bool:
    """Tell whether the axis of the scales of `q` is one that the node sums over."""
    axis = None if q.axis is None else operand.axis(q.axis)
    if axis is None or q.shape is None or axis >= len(q.shape):
        return False
    if promised.site.op == "Conv":
        return axis != 0 if operand.slot == 1 else axis == 1
    return axis == find_summed_axis(promised.site, operand.slot, len(q.shape))


def check_transposed_convolutions(reading: CheckContext) -> Iterator[Finding]:
    """Warn of quantized ConvTranspose: TensorRT for RTX runs it in float, and the axis is disputed.

    Source: NVIDIA/TensorRT issues 1694 and 2380 name axis 0, ModelOpt writes axis 1.
    """
    for promised, weight, q in reading.weights():
        op = promised.site.op
        if op in NO_BFLOAT16_OPS and q.float_type == TensorProto.BFLOAT16:
            message = f"{NO_BFLOAT16.format(op)}; use float16 or float32"
            yield make_finding("conv-transpose", "refused", promised.site, message, weight.tensor)
            continue
        if op != "ConvTranspose":
            continue
        message = "TensorRT for RTX runs it in float, other TensorRT may not; try trtexec"
        if q.scale_shape and q.scale_shape[0] != 1:
            message = (
                f"weight {q.data!r} has {q.scale_shape[0]} scales along axis {q.axis}, and "
                f"releases disagree on the axis; use per_tensor; TensorRT for RTX runs it in float"
            )
        yield make_finding("conv-transpose", "warning", promised.site, message, weight.tensor)


RULES: tuple[Rule, ...] = (
    check_one_side,
    check_limits(ALONE, FLOAT8_WINDOW),
    weight_only_form,
    check_one_row,
    activation_scales,
    weight_axes,
    check_transposed_convolutions,
)
