"""OpenVINO on a CPU: number formats that it multiplies in 8 bits, and where its pairs stand.

Sources: OpenVINO's documentation of low precision transformations, and the kernels that release 2026.4.1
chooses, tried one operator at a time (`tests/targets/test_openvino.py`).
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

import onnx_graphsurgeon as gs

from onnxfq.documents.plan import Placement
from onnxfq.documents.recipe import Recipe
from onnxfq.graph.ops import CONVOLUTIONS, STANDARD_DOMAINS, is_weighted
from onnxfq.graph.queries import is_never_negative
from onnxfq.numerics.float_types import find_storage_qtype
from onnxfq.numerics.granularity import CHANNELS
from onnxfq.numerics.qtypes import QType, qtype_by_name
from onnxfq.placement.pass_through_ops import ONE_SCALE
from onnxfq.placement.target_policy import NodeDecision, Operands, TargetPolicy
from onnxfq.targets.openvino.operators import (
    OPERATORS,
    choose_operators,
    find_product,
    is_volume,
    takes_channel_scales,
)
from onnxfq.targets.reading.static_scales import refuse_scales, refuse_several

_BRIDGES = ONE_SCALE | {"AveragePool"}
_FOLDED = ("Relu", "Identity", "Reshape", "Add", "Sub", "Mul", "Div", "Max", "Min", "BatchNormalization")
_WEIGHTS_ALONE = ("int4", "int8", "uint4", "uint8")


def _refuses(placement: Placement, operands: Operands) -> str:
    spec = placement.spec
    base = (find_storage_qtype(spec.qtype) or spec.qtype).name
    if refusal := refuse_scales(spec, "OpenVINO"):
        return refusal
    if placement.role == "weight":
        return _refuses_weight(placement, base, operands)
    if base not in ("int8", "uint8"):
        return f"OpenVINO multiplies activations of 8 bits only, not {base}; use uint8 or int8"
    if operands.node.op == "Conv" and base == "int8" and not spec.symmetric:
        return "OpenVINO multiplies int8 with a zero point in float; use uint8, or symmetric: true"
    by_channel = spec.granularity == CHANNELS and takes_channel_scales(operands.node)
    return "" if by_channel else refuse_several(spec, "OpenVINO")


def _refuses_weight(placement: Placement, base: str, operands: Operands) -> str:
    if operands.node.op in OPERATORS:  # a constant operand, in the format of activations
        return ""
    if operands.weight_only:
        return "" if base in _WEIGHTS_ALONE else f"OpenVINO has no {base} weights; use int8 or int4"
    if base != "int8" or not placement.spec.symmetric:
        found = f"{base}{'' if placement.spec.symmetric else ' with zero points'}"
        return f"OpenVINO multiplies in 8 bits with symmetric int8 weights only, not {found}; use int8"
    if placement.spec.granularity.is_blocked:
        return "OpenVINO multiplies in float where weights have scales of blocks; use per_axis"
    return ""


def _keeps_float(operands: Operands) -> str:
    if operands.weight_only and operands.node.op in CONVOLUTIONS:
        return f"OpenVINO multiplies in float where only the weight of a {operands.node.op} is quantized"
    return ""


def _revise(decisions: list[NodeDecision], nodes: Collection[gs.Node], recipe: Recipe) -> list[NodeDecision]:
    """Return `decisions` for the operators that gain, with a signed grid where a zero point costs the kernel.

    OpenVINO multiplies two activations, and the inputs of a ConvTranspose and of a depthwise convolution over
    three dimensions, in float if one has a zero point.
    A convolution with a zero point in front and scales of channels behind has a slow kernel only (`jit`
    instead of `brgconv` in release 2026.4.1).
    """
    decisions = choose_operators(decisions, nodes)
    products = {node.name: node for node in nodes if is_weighted(node)}
    plain = {
        d.node
        for d in decisions
        if d.node in products and not _may_have_zero_point(products[d.node], d.placements)
    }
    plain |= _find_before_channel_scales(decisions, nodes)
    signed = {
        placement.tensor
        for decision in decisions
        if decision.node in plain
        for placement in decision.placements
        if placement.role == "activation"
    }
    joined = {t.name for node in nodes for t in node.outputs if _is_joined(t)}
    signed -= joined | {t.name for node in nodes for t in node.outputs if is_never_negative(t)}
    return [
        replace(
            decision,
            placements=tuple(_make_unsigned(_make_signed(p, signed), joined) for p in decision.placements),
        )
        for decision in decisions
    ]


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


def _may_have_zero_point(node: gs.Node, placements: Collection[Placement]) -> bool:
    """Tell whether OpenVINO multiplies for `node` in 8 bits if its activation has a zero point."""
    if node.op == "ConvTranspose" or is_volume(node):
        return False
    return any(placement.role == "weight" for placement in placements)


def _is_joined(tensor: gs.Tensor) -> bool:
    """Tell whether a Concat makes `tensor`, or operators behind one that OpenVINO folds into a pair.

    It moves the pair in front of the Concat, and computes another model if the grid is signed (release
    2026.4.1; an unsigned grid is right).
    """
    while len(tensor.inputs) == 1:
        node = tensor.inputs[0]
        read = [source for source in node.inputs if not isinstance(source, gs.Constant)]
        if node.op == "Concat" or node.op not in _FOLDED or len(read) != 1:
            return bool(node.op == "Concat")
        (tensor,) = read
    return False


def _make_unsigned(placement: Placement, tensors: Collection[str]) -> Placement:
    spec = placement.spec
    if placement.tensor not in tensors or placement.role != "activation" or spec.qtype.name != "int8":
        return placement
    unsigned = spec.model_copy(update={"qtype": qtype_by_name("uint8"), "symmetric": False})
    why = f"{placement.why}; unsigned, for OpenVINO computes a signed grid behind a Concat otherwise"
    return placement.model_copy(update={"spec": unsigned, "why": why})


def _make_signed(placement: Placement, tensors: Collection[str]) -> Placement:
    spec = placement.spec
    if placement.tensor not in tensors or spec.symmetric or spec.qtype.bits != 8:
        return placement
    signed = spec.model_copy(update={"qtype": qtype_by_name("int8"), "symmetric": True})
    why = f"{placement.why}; signed, for OpenVINO multiplies it in 8 bits without a zero point only"
    return placement.model_copy(update={"spec": signed, "why": why})


def _is_bridge(node: gs.Node, qtype: QType) -> bool:
    """Tell whether `node` reads and writes 8 bits between pairs."""
    return node.domain in STANDARD_DOMAINS and qtype.bits == 8 and node.op in _BRIDGES


POLICY = TargetPolicy(
    bias="bias: added in float, to the sums in int32",
    refuses=_refuses,
    keeps_float=_keeps_float,
    revise=_revise,
    bridges=_is_bridge,
    counts_bridges=True,
    operators=OPERATORS,
    channel_scales=takes_channel_scales,
)
