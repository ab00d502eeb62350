"""OpenVINO on a CPU: number formats that it multiplies in 8 bits, and where its pairs stand.

Sources: OpenVINO's documentation of low precision transformations, and the kernels that release 2026.4.1
chooses, tried one operator at a time (`tests/targets/test_openvino.py`).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

import onnx_graphsurgeon as gs

from onnxfq.documents.plan import Placement
from onnxfq.documents.recipe import Recipe
from onnxfq.graph.follow import is_constant, readers_behind
from onnxfq.graph.ops import CONVOLUTIONS, STANDARD_DOMAINS, is_weighted
from onnxfq.graph.queries import is_never_negative, producer_op
from onnxfq.numerics.granularity import PER_TENSOR
from onnxfq.numerics.qtypes import qtype_by_name
from onnxfq.placement.pass_through_ops import ONE_SCALE
from onnxfq.placement.target_policy import NodeDecision, Operands, TargetPolicy
from onnxfq.targets.openvino.operators import OPERATORS, choose_operators, find_product, takes_channel_scales
from onnxfq.targets.openvino.other_values import ROWS, ends_in_pair, find_joined
from onnxfq.targets.reading.limits import Product, TargetLimit, explain, needs_both, refuse

STACKS = "OpenVINO multiplies stacked matrices of several scales wrongly beside a zero point of 0"
_BRIDGES = ONE_SCALE | {"AveragePool"}
_SCORES = frozenset({"Add", "Div", "Mul", "Softmax", "Where"})
"""Operators between the products of an attention."""
_JOINED = (
    "OpenVINO multiplies it in float with a zero point other than 0, and computes a signed grid behind a "
    "Concat otherwise"
)


def _explain_activation(product: Product) -> str:
    """Report activations of other than 8 bits: OpenVINO multiplies them in float."""
    if product.is_weight or product.numbers in ("int8", "uint8"):
        return ""
    return f"OpenVINO multiplies activations of 8 bits only, not {product.numbers}; use uint8 or int8"


def _explain_signed(product: Product) -> str:
    """Report int8 activations of a Conv with a zero point, which OpenVINO multiplies in float."""
    if product.is_weight or product.op != "Conv" or product.numbers != "int8" or product.zeros == "none":
        return ""
    return "OpenVINO multiplies int8 with a zero point in float; use uint8, or symmetric: true"


def _explain_zero_point(product: Product) -> str:
    """Speak of two activations, a constant on the left, ConvTranspose and depthwise kernels of three axes.

    The right side of a MatMul takes no unsigned numbers at all.
    """
    volume, right = len(product.depthwise) > 4, product.op == "MatMul" and product.slot == 1
    takes = product.kernel is not None and product.op != "ConvTranspose" and not volume and not right
    is_plain = product.zeros == "none" and not (right and product.numbers == "uint8")
    if product.is_weight or not product.multiplies or takes or is_plain:
        return ""
    return "OpenVINO multiplies it in float with a zero point other than 0; use int8 and symmetric: true"


def _explain_scales(product: Product) -> str:
    """Report activations with several scales: OpenVINO takes one, or one by channel of a depthwise kernel."""
    by_channel = bool(product.depthwise) and product.axis == 1
    if product.is_weight or product.scales == "one" or (by_channel and product.scales == "several"):
        return ""
    return "OpenVINO takes one scale of an activation; use granularity: per_tensor"


def _explain_channels(product: Product) -> str:
    """Report zero points by channel of a depthwise kernel with more outputs, which OpenVINO mixes up."""
    if product.zeros != "several" or not product.depthwise or product.depthwise[0] == product.groups:
        return ""
    return (
        f"OpenVINO takes the zero points of other channels for {product.depthwise[0]} outputs of "
        f"{product.groups} channels; use granularity: per_tensor"
    )


def _explain_weight(product: Product) -> str:
    """Report weights of other than symmetric int8, or of weight-only products of other than 4 and 8 bits."""
    if not product.is_weight or not product.multiplies:  # a constant operand has the format of activations
        return ""
    if product.weight_only:
        known = product.numbers in ("int4", "int8", "uint4", "uint8")
        return "" if known else f"OpenVINO has no {product.numbers} weights; use int8 or int4"
    if product.numbers != "int8" or product.zeros != "none":
        found = f"{product.numbers}{'' if product.zeros == 'none' else ' with zero points'}"
        return f"OpenVINO multiplies in 8 bits with symmetric int8 weights only, not {found}; use int8"
    if product.scales == "blocks":
        return "OpenVINO multiplies in float where weights have scales of blocks; use per_axis"
    return ""


LIMITS = (
    TargetLimit("wide-pair", "float", _explain_activation),
    TargetLimit("zero-point", "float", _explain_signed),
    TargetLimit("activation-scales", "float", _explain_scales),
    TargetLimit("channel-zero-points", "wrong", _explain_channels),
    TargetLimit("weight-type", "float", _explain_weight),
)
"""Formats that are refused."""

ZERO_POINT = TargetLimit("zero-point", "float", _explain_zero_point)
"""Activations that get a signed grid without a zero point."""

ALONE = needs_both("OpenVINO", "weight-only")


def _explain_float(product: Product) -> str:
    """Report grouped ConvTranspose and weights that are computed: OpenVINO has no kernels of 8 bits for them.

    A network with such pairs may not even compile where OpenVINO computes in bfloat16.
    """
    if product.op == "ConvTranspose" and product.groups > 1:
        return "OpenVINO multiplies a ConvTranspose of groups in float"
    computed = product.op in CONVOLUTIONS and product.kernel is None and product.others
    return f"OpenVINO multiplies a {product.op} of two activations in float" if computed else ""


FLOAT = TargetLimit("float-kernel", "float", _explain_float, "; leave it in float")
"""Nodes that stay in float, as those that are `ALONE`."""


def _revise(decisions: list[NodeDecision], nodes: Collection[gs.Node], recipe: Recipe) -> list[NodeDecision]:
    """Return `decisions` for the operators that gain, with a signed grid where a zero point costs the kernel.

    A convolution with a zero point in front and scales of channels behind has a slow kernel only (`jit`
    instead of `brgconv` in release 2026.4.1).
    """
    decisions = choose_operators(decisions, nodes)
    products = {node.name: node for node in nodes if is_weighted(node)}
    right = {node.inputs[1].name for node in products.values() if node.op == "MatMul"}
    positive = {t.name for node in nodes for t in node.outputs if is_never_negative(t)} - right
    joined = find_joined(nodes, lambda source: isinstance(source, gs.Constant))
    plain = {
        d.node
        for d in decisions
        for p in d.placements
        if d.node in products and explain((ZERO_POINT,), p, _operands(products[d.node], d.placements))
    }
    decisions = _leave_out_joined(decisions, {name: products[name] for name in plain}, joined - positive)
    plain |= _find_before_channel_scales(decisions, nodes)
    activations = (p for d in decisions if d.node in plain for p in d.placements if p.role == "activation")
    signed = {placement.tensor for placement in activations} - joined - positive
    paired = {p.tensor for d in decisions for p in d.placements if p.role == "activation"}
    rows = {
        node.inputs[0].name
        for node in products.values()
        if node.op == "MatMul" and ends_in_pair(node, lambda tensor: tensor.name in paired, is_constant)
    }
    return [
        replace(
            d, placements=tuple(_in_one_scale(_choose_signs(p, signed, joined), rows) for p in d.placements)
        )
        for d in decisions
    ]


def _in_one_scale(placement: Placement, rows: Collection[str]) -> Placement:
    """Return the placement of a weight in `rows` with one scale."""
    if placement.role != "weight" or placement.tensor not in rows or placement.spec.granularity == PER_TENSOR:
        return placement
    spec = placement.spec.model_copy(update={"granularity": PER_TENSOR})
    return placement.model_copy(update={"spec": spec, "why": f"{placement.why}; one scale: {ROWS}"})


def _leave_out_joined(
    decisions: list[NodeDecision], plain: Mapping[str, gs.Node], joined: Collection[str]
) -> list[NodeDecision]:
    """Return `decisions`, in float for `plain` products with an operand in `joined`.

    One kernel multiplies for both products of an attention, so that the second is in float with the first.
    """
    left = {
        d.node
        for d in decisions
        if d.node in plain and any(p.tensor in joined and p.role == "activation" for p in d.placements)
    }
    behind = (one for name in left for one in readers_behind(plain[name].outputs[0], _SCORES))
    left |= {one.name for one in behind if producer_op(one.inputs[0]) == "Softmax"}
    return [d.leave_out("zero-point", _JOINED) if d.node in left and d.placements else d for d in decisions]


def _operands(node: gs.Node, placements: Sequence[Placement]) -> Operands:
    shapes = {one.name: tuple(one.shape) for one in node.inputs if isinstance(one, gs.Constant)}
    return Operands(node, placements, shapes)


def _find_before_channel_scales(decisions: Collection[NodeDecision], nodes: Collection[gs.Node]) -> set[str]:
    """Return the names of the convolutions whose results have a scale for each channel.

    The input of the network has unknown signs, so a convolution that reads it is none of them.
    """
    placing = {decision.node for decision in decisions if decision.placements}
    scaled = {node.name for node in nodes if node.name in placing and takes_channel_scales(node)}
    before = set()
    for node in nodes:
        data = node.inputs[0] if node.name in scaled else None
        if data is None or any(reader.name in placing - scaled for reader in data.outputs):
            continue
        product = find_product(data, placing)
        if product is not None and product.op == "Conv" and product.inputs[0].inputs:
            before.add(product.name)
    return before


def _choose_signs(placement: Placement, signed: Collection[str], joined: Collection[str]) -> Placement:
    """Return the placement with 8 signed bits for the tensors of one set, and unsigned ones for another."""
    spec, activation = placement.spec, placement.role == "activation"
    if placement.tensor in joined and activation and spec.qtype.name == "int8":
        qtype, why = "uint8", "unsigned, for OpenVINO computes a signed grid behind a Concat otherwise"
    elif placement.tensor in signed and not spec.symmetric and spec.qtype.bits == 8:
        qtype, why = "int8", "signed, for OpenVINO multiplies it in 8 bits without a zero point only"
    else:
        return placement
    changed = spec.model_copy(update={"qtype": qtype_by_name(qtype), "symmetric": qtype == "int8"})
    return placement.model_copy(update={"spec": changed, "why": f"{placement.why}; {why}"})


POLICY = TargetPolicy(
    bias="bias: added in float, to the sums in int32",
    refuses=refuse("OpenVINO", *LIMITS),
    keeps_float=lambda operands: explain((ALONE, FLOAT), operands.placements[0], operands),
    revise=_revise,
    bridges=lambda node, qtype: node.domain in STANDARD_DOMAINS and qtype.bits == 8 and node.op in _BRIDGES,
    counts_bridges=True,
    operators=OPERATORS,
    channel_scales=takes_channel_scales,
    one_scale_stacks=f"per tensor: {STACKS}",
)
