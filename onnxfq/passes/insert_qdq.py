"""Insertion of QuantizeLinear/DequantizeLinear on every placed tensor, in any format that ONNX supports."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import onnx_graphsurgeon as gs
from numpy.typing import NDArray

from onnxfq.documents.encodings import Encoding, Encodings
from onnxfq.documents.plan import Placement, Plan
from onnxfq.documents.rounding import explain_mode
from onnxfq.errors import PlanError
from onnxfq.graph.body_reads import pair_moved_reads
from onnxfq.graph.constants import constant_array, make_constant
from onnxfq.graph.edit import Editor
from onnxfq.graph.model import Model
from onnxfq.graph.normalize.opset import edit_model
from onnxfq.graph.queries import producer_op
from onnxfq.numerics.float_types import FLOATS, find_storage_qtype, holds
from onnxfq.numerics.granularity import PER_TENSOR
from onnxfq.numerics.qtypes import QType
from onnxfq.numerics.spec import QuantSpec
from onnxfq.passes.equalize import common_encoding, factors_of_weights, to_common_scale
from onnxfq.passes.qdq_form import (
    PLAIN,
    OnnxParams,
    QdqForm,
    expand_to_one_axis,
    needs_blocks,
    quantize_in_chunks,
)
from onnxfq.passes.stored_caches import store_cache
from onnxfq.placement.equalization import find_channels
from onnxfq.placement.skip_reasons import KEPT_OPERATOR
from onnxfq.support.attempts import attempt

# First opset in which QuantizeLinear has output_dtype; onnxruntime 1.31 mishandles zero-point inputs there.
_OUTPUT_DTYPE_OPSET = 21
# First opset in which x and scale may be float16 and bfloat16.
_HALF_OPSET = 19


def with_qdq(
    model: Model, plan: Plan, encodings: Encodings, lowest_opset: int = 13, form: QdqForm = PLAIN
) -> Model:
    """Return `model` with placed activations quantized at run time, and placed weights now.

    An activation gets Q and DQ, shared by all its placed readers. A weight is stored as integers with a DQ
    only: a quarter of the size, and the form of weight-only layers.

    Odd widths and custom limits use the next wider type. A weight holds no number outside its limits. An
    activation gets a Clip in front of Q to the real numbers of the limits. That is exact: such a number
    divided by the scale is its integer to 2^-23 of its size. (Clip on the integers after Q is equivalent, but
    ONNX Runtime 1.31 has none for 16 bits.)

    Scales have the type of their tensor, including float16 and bfloat16, so that the result of
    DequantizeLinear fits its readers.

    ONNX has one operator for dynamic activations, DynamicQuantizeLinear; `form` adds the operators of the
    target. Weight scales in other small formats are written as their float32 values. If a rewrite of the
    target fails, the model is written without its rewrites, with a note.

    Raises PlanError when plan or encodings belong to another model, or ONNX lacks a type or mode.
    """
    check_encodings(plan, encodings, model)
    _check_formats(plan, encodings, form)
    opset = _find_opset(plan, encodings, lowest_opset, form)

    def write(form: QdqForm) -> Model:
        written = edit_model(model, lambda graph, at: _insert_pairs(graph, at, plan, encodings, form), opset)
        if written is model:
            return written
        proto = written.proto if form.finish is None else form.finish(written.proto)
        return replace(written, proto=pair_moved_reads(proto))

    if form.edit is None and form.finish is None:
        return write(form)
    plain = replace(form, edit=None, finish=None)
    what = f"rewriting {model.source} for {plan.target}"
    return attempt(what, lambda: write(form), lambda: write(plain))


def _find_opset(plan: Plan, encodings: Encodings, lowest: int, form: QdqForm) -> int:
    """Return the lowest opset, at least `lowest`, that supports all formats and block sizes of the plan."""
    needs = [lowest]
    for placement in plan.placements:
        carrier = find_storage_qtype(placement.spec.qtype)
        needs += [carrier.min_opset or 0] if carrier else []
        blocks = form.writer(placement) is None and needs_blocks(encodings[placement.tensor])
        needs += [_OUTPUT_DTYPE_OPSET] if blocks else []
        needs += [_HALF_OPSET] if placement.float_type != "float32" else []
    return max(needs)


def _check_formats(plan: Plan, encodings: Encodings, form: QdqForm) -> None:
    for name, value in plan.simulation.changes.items():
        raise PlanError(f"recipe {plan.recipe}: {explain_mode(name, value)}")
    for placement in plan.placements:
        spec = placement.spec
        if find_storage_qtype(spec.qtype) is None:
            raise PlanError(
                f"tensor {placement.tensor!r}: the installed onnx has no {spec.qtype}; upgrade "
                "onnx, or insert fake-quant nodes instead"
            )
        if form.writer(placement) is not None:
            continue
        if not _standard(spec):
            raise PlanError(
                f"tensor {placement.tensor!r}: target {plan.target} has no form of {spec}; insert "
                "fake-quant nodes instead"
            )
        if not holds(encodings[placement.tensor].scale, placement.float_type):
            raise PlanError(
                f"tensor {placement.tensor!r}: a scale is not a {placement.float_type} number, the type "
                "of the tensor; calibrate again with this plan"
            )


def _insert_pairs(graph: gs.Graph, opset: int, plan: Plan, encodings: Encodings, form: QdqForm) -> bool:
    editor = Editor(graph)
    factors = factors_of_weights(plan, encodings)
    for placement in plan.placements:
        tensor, encoding = editor.tensor(placement), encodings[placement.tensor]
        write = form.writer(placement)
        for part in editor.split_by_scope(placement):
            if write is not None:
                write(editor, part, tensor, encoding)
            elif part.spec.dynamic:
                _insert_dynamic(editor, part, tensor)
            elif isinstance(tensor, gs.Constant):
                factor = factors.get(placement.tensor)
                _insert_on_weight(editor, part, tensor, _Written(encoding, opset, form.zero_points, factor))
            else:
                _insert_on_activation(editor, part, tensor, _Written(encoding, opset, form.zero_points))
                if part.stored:
                    store_cache(editor, part, tensor)
    if form.edit is not None:
        form.edit(editor)
    if form.sets_apart:
        _set_apart(editor, [one.name for one in plan.skipped if one.rule == KEPT_OPERATOR])
    return bool(plan.placements)


def _set_apart(editor: Editor, names: Iterable[str]) -> None:
    """Put a Max of one operand, which changes no value, between these nodes and the pairs in front."""
    for node in map(editor.node, names):
        if not any(reader.op == "QuantizeLinear" for made in node.outputs for reader in made.outputs):
            continue
        for slot, tensor in enumerate(node.inputs):
            if producer_op(tensor) == "DequantizeLinear" and not isinstance(
                tensor.i().inputs[0], gs.Constant
            ):
                apart = editor.variable(f"{tensor.name}/{node.name}", tensor)
                node.inputs[slot] = apart
                editor.insert_after(tensor, [gs.Node("Max", apart.name, {}, [tensor], [apart])])


def _standard(spec: QuantSpec) -> bool:
    """Tell whether ONNX's own operators can express `spec`."""
    if spec.zero_point == "fractional":
        return False
    return not spec.dynamic or (
        spec.qtype.name == "uint8" and not spec.symmetric and spec.granularity == PER_TENSOR
    )


def check_encodings(plan: Plan, encodings: Encodings, model: Model) -> None:
    """Raise PlanError when plan or encodings belong to another model, or disagree on a tensor's spec."""
    plan.check_model(model.sha256)
    if encodings.model_sha256 != model.sha256:
        raise PlanError("the encodings were made for another model; calibrate with this model's plan")
    for placement in plan.placements:
        encoded = encodings[placement.tensor].spec
        if encoded != placement.spec:
            raise PlanError(
                f"tensor {placement.tensor!r} is planned as {placement.spec} and encoded as {encoded}; "
                "calibrate again with this plan"
            )


@dataclass(frozen=True)
class _Written:
    """Written form of a tensor: its encoding, at an opset.

    Attributes:
        encoding: of the tensor.
        opset: of the model.
        zero_points: as `QdqForm` has it.
        factor: multiplies the scales of a weight, [C], to compensate equalized channels; None for no change.
    """

    encoding: Encoding
    opset: int
    zero_points: bool
    factor: NDArray[np.float32] | None = None


def _insert_on_activation(editor: Editor, placement: Placement, tensor: gs.Tensor, written: _Written) -> None:
    real, encoding = tensor, written.encoding
    nodes: list[gs.Node] = []
    if encoding.spec.equalized:
        nodes += to_common_scale(editor, find_channels(editor, placement), encoding)
        encoding = common_encoding(encoding)
        real = nodes[-1].outputs[0] if nodes else tensor
    # A tensor behind a Mul differs from the placed tensor and has another name.
    pair = real.name
    params, carrier = expand_to_one_axis(encoding, tensor.shape), _carrier(encoding)
    if carrier is not encoding.spec.qtype:
        nodes += _clip(editor, placement, real, encoding)
        real = nodes[-1].outputs[0]
    constants = _parameters(editor, placement, params, carrier, written)
    quantized = editor.variable(f"{pair}/q")
    quantized.dtype, quantized.shape = carrier.onnx_type, tensor.shape
    dequantized = editor.variable(f"{pair}/dq", tensor)
    output_dtype = {} if len(constants) > 1 else {"output_dtype": carrier.onnx_type}
    attrs: dict[str, Any] = params.granularity.attributes
    nodes += [
        gs.Node("QuantizeLinear", f"{pair}/q", attrs | output_dtype, [real, *constants], [quantized]),
        gs.Node("DequantizeLinear", f"{pair}/dq", attrs, [quantized, *constants], [dequantized]),
    ]
    editor.rewire(placement, dequantized)
    editor.insert_before(placement, tensor, nodes)


def _insert_dynamic(editor: Editor, placement: Placement, tensor: gs.Tensor) -> None:
    name = tensor.name
    found = [editor.variable(f"{name}/{what}") for what in ("q", "scale", "zero_point")]
    kinds: list[tuple[Any, Any]] = [(np.uint8, tensor.shape), (np.float32, []), (np.uint8, [])]
    for variable, kind in zip(found, kinds, strict=True):
        variable.dtype, variable.shape = kind
    dequantized = editor.variable(f"{name}/dq", tensor)
    editor.rewire(placement, dequantized)
    quantize = gs.Node("DynamicQuantizeLinear", f"{name}/q", {}, [tensor], found)
    dequantize = gs.Node("DequantizeLinear", f"{name}/dq", {}, found, [dequantized])
    editor.insert_before(placement, tensor, [quantize, dequantize])


def _insert_on_weight(editor: Editor, placement: Placement, tensor: gs.Constant, written: _Written) -> None:
    name, encoding = tensor.name, written.encoding
    params, carrier = expand_to_one_axis(encoding, tensor.shape), _carrier(encoding)

    def round_values(free: str) -> gs.Constant:
        values = quantize_in_chunks(constant_array(tensor), params, encoding.spec.grid, carrier.dtype)
        return make_constant(free, values)

    # The integers of the weight stay; the factor multiplies only the scale.
    meant = params if written.factor is None else replace(params, scale=params.scale * written.factor)
    constants = _parameters(editor, placement, meant, carrier, written)
    quantized = editor.constant(f"{name}/q", round_values)
    dequantized = editor.variable(f"{name}/dq")
    dequantized.dtype, dequantized.shape = tensor.dtype, list(tensor.shape)
    attrs = params.granularity.attributes
    node = gs.Node("DequantizeLinear", f"{name}/dq", attrs, [quantized, *constants], [dequantized])
    editor.rewire(placement, dequantized)
    editor.insert_before(placement, tensor, [node])


def _carrier(encoding: Encoding) -> QType:
    carrier = find_storage_qtype(encoding.spec.qtype)
    assert carrier is not None, "_check_formats has refused it"
    return carrier


def _clip(editor: Editor, placement: Placement, tensor: gs.Tensor, encoding: Encoding) -> list[gs.Node]:
    """Make the nodes that clip `tensor` to the real numbers of the limits of its type."""
    qtype, name = encoding.spec.qtype, tensor.name
    offset, scale = encoding.zero_point, encoding.scale
    dtype = FLOATS[placement.float_type].dtype
    with np.errstate(over="ignore"):
        low, high = (np.asarray((q - offset) * scale, dtype) for q in (qtype.qmin, qtype.qmax))
        steps = [np.rint(real.astype(np.float32) / scale) + offset for real in (low, high)]
    if placement.float_type != "float32" and any(
        (s != q).any() for s, q in zip(steps, (qtype.qmin, qtype.qmax), strict=True)
    ):
        raise PlanError(
            f"tensor {name!r}: {placement.float_type} has no number that stands for the limits of {qtype}; "
            f"use {qtype.base} without limits, or a qtype of fewer bits"
        )
    if encoding.param_shape:
        low, high = (_along_axis(end, tensor, encoding) for end in (low, high))
    limits = [editor.constant(f"{name}/clip_{end}", at) for end, at in (("min", low), ("max", high))]
    clipped = editor.variable(f"{name}/clip", tensor)
    if not encoding.param_shape:
        return [gs.Node("Clip", f"{name}/clip", {}, [tensor, *limits], [clipped])]
    raised = editor.variable(f"{name}/clip_raised", tensor)  # Clip takes one value for each limit
    return [
        gs.Node("Max", f"{name}/clip_low", {}, [tensor, limits[0]], [raised]),
        gs.Node("Min", f"{name}/clip", {}, [raised, limits[1]], [clipped]),
    ]


def _along_axis(ends: np.ndarray[Any, Any], tensor: gs.Tensor, encoding: Encoding) -> np.ndarray[Any, Any]:
    """Return the limits of each index of the axis, shaped to broadcast against `tensor`."""
    axis = encoding.spec.granularity.axis
    if tensor.shape is None or axis is None or encoding.spec.granularity.is_blocked:
        raise PlanError(
            f"tensor {tensor.name!r}: limits of {encoding.spec.qtype} need one scale, or an axis of "
            f"a tensor of known rank, got {encoding.spec}; use {encoding.spec.qtype.base} without limits"
        )
    rank = len(tensor.shape)
    return ends.reshape([-1 if d == axis % rank else 1 for d in range(rank)])


def _parameters(
    editor: Editor, placement: Placement, params: OnnxParams, carrier: QType, written: _Written
) -> list[gs.Constant]:
    """Return [scale] or [scale, zero point] of the placed tensor; the scale has the tensor's type.

    Up to opset 20 the zero point sets the type and is always written. From 21 on it is written only if it is
    not 0, or if the form asks for it; otherwise output_dtype sets the type. One of the two is always written,
    never both.
    """
    name = placement.tensor
    scale = params.scale.astype(FLOATS[placement.float_type].dtype)
    constants = [editor.constant(f"{name}/scale", scale)]
    needed = written.zero_points and not written.encoding.spec.granularity.is_blocked
    if written.opset < _OUTPUT_DTYPE_OPSET or needed or np.any(params.zero_point):
        constants.append(editor.constant(f"{name}/zero_point", params.zero_point.astype(carrier.dtype)))
    return constants
