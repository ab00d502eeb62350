"""ONNX Runtime's CPU provider: limits of Q/DQ kernels and fusions, tried on ONNX Runtime 1.31.1."""

from __future__ import annotations

from collections.abc import Sequence

import onnx

from onnxfq.documents.plan import Placement
from onnxfq.graph.model import Model
from onnxfq.graph.normalize.fold_batch_norm import fold_batch_norm
from onnxfq.graph.normalize.turned_weights import store_turned
from onnxfq.graph.ops import CONVOLUTIONS
from onnxfq.numerics.float_types import find_storage_qtype
from onnxfq.numerics.granularity import PER_TENSOR
from onnxfq.numerics.qtypes import qtype_by_name
from onnxfq.numerics.spec import QuantSpec
from onnxfq.passes.join_biases import join_biases
from onnxfq.passes.product_forms import write_products
from onnxfq.passes.qdq_form import QdqForm
from onnxfq.passes.widen_halves import widen_halves
from onnxfq.placement.target_policy import Operands, Slots, TargetPolicy
from onnxfq.runtime.type_inference import with_session_shapes
from onnxfq.runtime.unsupported_ops import NO_KERNEL
from onnxfq.targets.onnxruntime.body_pairs import CLIPPING, pair_bodies
from onnxfq.targets.onnxruntime.check import check_model
from onnxfq.targets.onnxruntime.float_kernels import note_float_kernels
from onnxfq.targets.onnxruntime.float_products import keep_floats
from onnxfq.targets.onnxruntime.limits import ACTIVATION, STACKS, copies
from onnxfq.targets.onnxruntime.product_biases import set_products_apart
from onnxfq.targets.onnxruntime.recipes import RECIPES
from onnxfq.targets.reading.limits import explain
from onnxfq.targets.target import Target

# The only form of DynamicQuantizeLinear.
_DYNAMIC = QuantSpec(qtype=qtype_by_name("uint8"), symmetric=False, dynamic=True)


def _refuses(placement: Placement, operands: Operands) -> str:
    spec, base = placement.spec, placement.spec.qtype.base
    if base in NO_KERNEL:
        return f"ONNX Runtime has no QuantizeLinear for {base}; use float8e4m3fn, or target simulation"
    if spec.zero_point == "fractional":
        return "ONNX Runtime takes integer zero points only; use zero_point: integer, or target simulation"
    if spec.dynamic and spec != _DYNAMIC:
        return (
            f"ONNX Runtime has dynamic scales for {_DYNAMIC} only, not {spec}; use recipe "
            "onnxruntime-uint8-dynamic, dynamic: false, or target simulation"
        )
    carrier = find_storage_qtype(spec.qtype)
    several = placement.role == "activation" and spec.observed_granularity != PER_TENSOR
    if several and carrier is not None and carrier is not spec.qtype:
        return f"{spec.qtype} activations are clipped per tensor; use {carrier}, or per_tensor"
    return explain((ACTIVATION,), placement, operands)


def _keeps_float(operands: Operands) -> str:
    if operands.node.op == "Einsum":  # one that is a MatMul was written so before
        return "ONNX Runtime multiplies an Einsum in float; write it as a MatMul"
    for placement in operands.placements:
        if placement.spec.dynamic and operands.node.op in CONVOLUTIONS:
            return (
                f"ONNX Runtime has no integer kernel of {operands.node.op} with dynamic scales, and the pair "
                "would only slow it down"
            )
    return ""


def _runs_in_integers(placements: Sequence[Placement]) -> bool:
    """Tell whether all operands have 8 bits, weights a scale by channel and activations one scale."""
    specs = [placement.spec for placement in placements]
    simple = all(spec.granularity.block_size is None and not spec.dynamic for spec in specs)
    eight = {spec.qtype.base for spec in specs} <= {"int8", "uint8"}
    activations = [placement.spec for placement in placements if placement.role == "activation"]
    # Other limits have a Clip in front of the pair.
    plain = all(spec.granularity == PER_TENSOR and spec.qtype.full_range for spec in activations)
    return simple and eight and plain and bool(activations)


# Measured on ONNX Runtime 1.31.1, each with its pairs and without: these have integer kernels that are faster
# than float between convolutions. Between products of a transformer QLinearAdd, QLinearMul and QLinearSoftmax
# cost more than they save, so they join convolutions only.
_BETWEEN = Slots(inputs="all", outputs=(0,), between_units=True)
_FIRST = Slots(inputs=(0,), outputs=(0,), between_units=True)
_UNITS = {
    "Conv": Slots(outputs=(0,)),
    **dict.fromkeys(("Add", "Mul", "Concat"), _BETWEEN),
    **dict.fromkeys(("AveragePool", "GlobalAveragePool", "LeakyRelu", "Sigmoid", "Resize"), _FIRST),
}


def _prepare(model: Model) -> Model:
    # A turned weight of several products is turned in each, in float.
    model = store_turned(write_products(fold_batch_norm(widen_halves(model))), readers=2)
    return join_biases(with_session_shapes(model))


def _finish(proto: onnx.ModelProto) -> onnx.ModelProto:
    return keep_floats(pair_bodies(proto))


ONNXRUNTIME = Target(
    "onnxruntime",
    TargetPolicy(
        refuses=_refuses,
        conv_transpose="ONNX Runtime's CPU provider has no integer kernel of ConvTranspose",
        one_scale_stacks=f"per tensor: {STACKS}",
        keeps_float=_keeps_float,
        revise=note_float_kernels,
        operators=_UNITS,
        runs_in_integers=_runs_in_integers,
        absorbed=CLIPPING,
        equalizes=False,
        bridges=lambda node, qtype: node.op == "MaxPool" and qtype.bits == 8,
        one_scale=lambda node: node.op == "Resize" and copies(node),
        bias_qtype="int32",
    ),
    recipes=RECIPES,
    check=check_model,
    form=QdqForm(edit=set_products_apart, finish=_finish, zero_points=True, sets_apart=True),
    prepare=_prepare,
)
