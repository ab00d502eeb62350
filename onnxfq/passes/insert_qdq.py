"""Put standard QuantizeLinear/DequantizeLinear on every placed tensor, in any format that ONNX can carry."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import onnx_graphsurgeon as gs
from numpy.typing import NDArray

from onnxfq.documents.encodings import Encoding, Encodings
from onnxfq.documents.plan import Placement, Plan
from onnxfq.errors import PlanError
from onnxfq.graph.constants import constant_array, make_constant
from onnxfq.graph.edit import Editor
from onnxfq.graph.model import Model
from onnxfq.numerics.affine import quantize
from onnxfq.numerics.float_types import FLOATS, holds
from onnxfq.numerics.granularity import PER_TENSOR
from onnxfq.numerics.qtypes import QType
from onnxfq.numerics.spec import QuantSpec
from onnxfq.numerics.storage_types import TENSORRT_BLOCKS, deployed_qtype, tensorrt_blocks
from onnxfq.passes.base import Pass, PassResult
from onnxfq.passes.chunked_rounding import by_rows
from onnxfq.passes.equalize import common_encoding, factors_of_weights, to_common_scale
from onnxfq.passes.onnx_blocks import OnnxParams, needs_blocks, one_axis
from onnxfq.targets.tensorrt.rewrites.block_formats import insert_tensorrt_blocks
from onnxfq.targets.tensorrt.rewrites.mxfp8_functions import with_mxfp8_functions
from onnxfq.targets.tensorrt.rewrites.split_projections import divide_products

# From this opset on QuantizeLinear has output_dtype; onnxruntime 1.31 mishandles zero-point inputs there.
_OUTPUT_DTYPE_OPSET = 21
# From this opset on x and scale may be float16 and bfloat16.
_HALF_OPSET = 19


@dataclass(frozen=True)
class InsertQdq(Pass):
    """Quantize placed activations at run time and placed weights now.

    An activation gets Q and DQ, shared by all its placed readers. A weight is stored as integers with
    a DQ only: a quarter of the size, and the form that TensorRT keeps for weight-only layers.

    Odd widths and limits of one's own are carried by the next wider type: a weight holds no number outside
    its limits, an activation gets a Clip to the real numbers that the limits stand for in front of Q. That is
    exact: such a number divided by the scale is its integer to 2^-23 of its size. (Clip on the integers after
    Q says the same, but ONNX Runtime 1.31 has none for 16 bits.)

    Scales have the type of their tensor, float16 or bfloat16 too: what TensorRT wants, and what makes the
    result of DequantizeLinear fit its readers.

    Of dynamic activations ONNX has one form, DynamicQuantizeLinear; MXFP8 and NVFP4 for TensorRT are written
    as `tensorrt_blocks` says, MXFP8 with functions that ONNX Runtime can run. Other small scales of weights
    are written as the float32 numbers that they are.

    For TensorRT a product that is split into heads is written as one for each part, see `divided_products`.
    """

    plan: Plan
    encodings: Encodings
    lowest_opset: int = 13

    @property
    def min_opset(self) -> int:
        """Lowest opset, from `lowest_opset` on, that has all number formats and block sizes of the plan."""
        needs = [self.lowest_opset]
        for placement in self.plan.placements:
            carrier = deployed_qtype(placement.spec.qtype)
            needs += [carrier.min_opset or 0] if carrier else []
            standard = not self._for_tensorrt(placement)
            blocks = standard and needs_blocks(self.encodings[placement.tensor])
            needs += [_OUTPUT_DTYPE_OPSET] if blocks else []
            needs += [_HALF_OPSET] if placement.float_type != "float32" else []
        return max(needs)

    def requires(self, model: Model) -> None:
        """Raise PlanError when plan or encodings are another model's, or onnx has no type for a tensor."""
        check_encodings(self.plan, self.encodings, model)
        for placement in self.plan.placements:
            spec = placement.spec
            if deployed_qtype(spec.qtype) is None:
                raise PlanError(
                    f"tensor {placement.tensor!r}: the installed onnx has no {spec.qtype}; upgrade "
                    "onnx, or insert fake-quant nodes instead"
                )
            if not (self._for_tensorrt(placement) or _standard(spec)):
                raise PlanError(
                    f"tensor {placement.tensor!r}: target {self.plan.target} has no form of {spec}; insert "
                    "fake-quant nodes instead"
                )
            scales = self.encodings[placement.tensor].scale_array
            if not (self._for_tensorrt(placement) or holds(scales, placement.float_type)):
                raise PlanError(
                    f"tensor {placement.tensor!r}: a scale is no {placement.float_type} number, the type of "
                    "the tensor; calibrate again with this plan"
                )

    def run(self, model: Model) -> PassResult:
        """Apply the pass to a copy, as every pass; what only TensorRT knows gets a body where it can."""
        made = super().run(model)
        if not made.modified:
            return made
        return replace(made, model=replace(made.model, proto=with_mxfp8_functions(made.model.proto)))

    def call(self, graph: gs.Graph, opset: int) -> bool:
        """Insert the pairs; unused float weights are removed."""
        editor = Editor(graph)
        factors = factors_of_weights(self.plan, self.encodings)
        for placement in self.plan.placements:
            tensor = editor.tensor(placement)
            encoding = self.encodings[placement.tensor]
            for part in editor.by_scope(placement):
                if self._for_tensorrt(part):
                    insert_tensorrt_blocks(editor, part, tensor, encoding)
                elif part.spec.dynamic:
                    _insert_dynamic(editor, part, tensor)
                elif isinstance(tensor, gs.Constant):
                    factor = factors.get(placement.tensor)
                    _insert_on_weight(editor, part, tensor, _Written(encoding, opset, factor))
                else:
                    _insert_on_activation(editor, part, tensor, _Written(encoding, opset))
        if self.plan.target == "tensorrt":
            divide_products(editor)
        return bool(self.plan.placements)

    def _for_tensorrt(self, placement: Placement) -> bool:
        """Tell whether TensorRT has a form of its own for the placed tensor."""
        spec = placement.spec
        name = tensorrt_blocks(spec.qtype, spec.scale_type)
        if self.plan.target != "tensorrt" or not name or spec.granularity.axis is None:
            return False
        if spec.granularity.block_size != TENSORRT_BLOCKS[name].block_size:
            return False
        return spec.dynamic == (placement.role == "activation")


def _standard(spec: QuantSpec) -> bool:
    """Tell whether ONNX's own operators say `spec`."""
    if spec.zero_point == "fractional":
        return False
    return not spec.dynamic or (
        spec.qtype.name == "uint8" and not spec.symmetric and spec.granularity == PER_TENSOR
    )


def check_encodings(plan: Plan, encodings: Encodings, model: Model) -> None:
    """Raise PlanError when plan or encodings are another model's, or disagree on a tensor's spec."""
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
    """How a tensor is written: its encoding, at an opset.

    factor: what the scales of a weight are multiplied by, [C], to take up those of equalized channels.
    """

    encoding: Encoding
    opset: int
    factor: NDArray[np.float32] | None = None


def _insert_on_activation(editor: Editor, placement: Placement, tensor: gs.Tensor, written: _Written) -> None:
    real, encoding = tensor, written.encoding
    nodes: list[gs.Node] = []
    if encoding.spec.equalized:
        nodes += to_common_scale(editor, tensor, encoding)
        encoding = common_encoding(encoding)
        real = nodes[-1].outputs[0] if nodes else tensor
    # What lies behind a Mul is not the tensor itself, and has not its name.
    pair = real.name
    params, carrier = one_axis(encoding, tensor.shape), _carrier(encoding)
    if carrier is not encoding.spec.qtype:
        nodes.append(_clip(editor, placement, real, encoding))
        real = nodes[-1].outputs[0]
    constants = _parameters(editor, placement, params, carrier, written.opset)
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
    for variable, dtype, shape in zip(
        found, (np.uint8, np.float32, np.uint8), (tensor.shape, [], []), strict=True
    ):
        variable.dtype, variable.shape = dtype, shape
    dequantized = editor.variable(f"{name}/dq", tensor)
    editor.rewire(placement, dequantized)
    editor.insert_before(
        placement,
        tensor,
        [
            gs.Node("DynamicQuantizeLinear", f"{name}/q", {}, [tensor], found),
            gs.Node("DequantizeLinear", f"{name}/dq", {}, found, [dequantized]),
        ],
    )


def _insert_on_weight(editor: Editor, placement: Placement, tensor: gs.Constant, written: _Written) -> None:
    name, encoding = tensor.name, written.encoding
    params, carrier = one_axis(encoding, tensor.shape), _carrier(encoding)

    def rounded(free: str) -> gs.Constant:
        values = by_rows(quantize, constant_array(tensor), params, encoding.spec.grid, carrier.dtype)
        return make_constant(free, values)

    # The integers are those of the weight as it is; only what they stand for is multiplied.
    meant = params if written.factor is None else replace(params, scale=params.scale * written.factor)
    constants = _parameters(editor, placement, meant, carrier, written.opset)
    quantized = editor.constant(f"{name}/q", rounded)
    dequantized = editor.variable(f"{name}/dq")
    dequantized.dtype, dequantized.shape = tensor.dtype, list(tensor.shape)
    node = gs.Node(
        "DequantizeLinear",
        f"{name}/dq",
        params.granularity.attributes,
        [quantized, *constants],
        [dequantized],
    )
    editor.rewire(placement, dequantized)
    editor.insert_before(placement, tensor, [node])


def _carrier(encoding: Encoding) -> QType:
    carrier = deployed_qtype(encoding.spec.qtype)
    assert carrier is not None, "requires() has refused it"
    return carrier


def _clip(editor: Editor, placement: Placement, tensor: gs.Tensor, encoding: Encoding) -> gs.Node:
    """Make the node that keeps `tensor` within the real numbers of the limits of its type."""
    qtype, name = encoding.spec.qtype, tensor.name
    if encoding.param_shape:
        raise PlanError(
            f"tensor {name!r}: {qtype} activations are clipped per tensor, got {encoding.spec}; remove its "
            "axis from the plan"
        )
    offset, scale = encoding.zero_point_array, encoding.scale_array
    dtype = FLOATS[placement.float_type].dtype
    with np.errstate(over="ignore"):
        low, high = (np.asarray((q - offset) * scale, dtype) for q in (qtype.qmin, qtype.qmax))
        steps = [np.rint(real.astype(np.float32) / scale) + offset for real in (low, high)]
    if placement.float_type != "float32" and steps != [qtype.qmin, qtype.qmax]:
        raise PlanError(
            f"tensor {name!r}: {placement.float_type} has no number that stands for the limits of {qtype}; "
            f"use {qtype.base} without limits, or a qtype of fewer bits"
        )
    limits = [
        editor.constant(f"{name}/clip_min", lambda n: make_constant(n, low)),
        editor.constant(f"{name}/clip_max", lambda n: make_constant(n, high)),
    ]
    clipped = editor.variable(f"{name}/clip", tensor)
    return gs.Node("Clip", f"{name}/clip", {}, [tensor, *limits], [clipped])


def _parameters(
    editor: Editor, placement: Placement, params: OnnxParams, carrier: QType, opset: int
) -> list[gs.Constant]:
    """Return [scale] or [scale, zero point] of the placed tensor, the scale of its type.

    Up to opset 20 the zero point tells the type and is always written; from 21 on it is written only if it
    is not 0 and output_dtype tells the type: never both, never neither.
    """
    name = placement.tensor
    scale = params.scale.astype(FLOATS[placement.float_type].dtype)
    constants = [editor.constant(f"{name}/scale", lambda n: make_constant(n, scale))]
    if opset < _OUTPUT_DTYPE_OPSET or np.any(params.zero_point):
        values = params.zero_point.astype(carrier.dtype)
        constants.append(editor.constant(f"{name}/zero_point", lambda n: make_constant(n, values)))
    return constants
