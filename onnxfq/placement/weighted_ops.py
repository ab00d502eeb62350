"""Placement on both inputs of weighted operators: Conv, ConvTranspose, Gemm, MatMul."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

import onnx_graphsurgeon as gs

from onnxfq.calibration.calibrators import MINMAX, Calibrator
from onnxfq.documents.plan import Placement
from onnxfq.documents.recipe import Recipe
from onnxfq.documents.rounding import AUTO, NEAREST
from onnxfq.documents.schemes import ActivationScheme, WeightScheme
from onnxfq.errors import RecipeError
from onnxfq.graph.bounds import KNOWN_RANGES
from onnxfq.graph.names import Use
from onnxfq.graph.ops import (
    CONVOLUTIONS,
    WEIGHTED_INPUTS,
    channel_axis,
    find_summed_axis,
    find_summed_channels,
)
from onnxfq.graph.queries import dtype_name, float_type, is_dequantized, producer_op, weight_source
from onnxfq.numerics.granularity import PER_TENSOR, Granularity
from onnxfq.numerics.layout import open_axis
from onnxfq.numerics.spec import NumberFormat, QuantSpec
from onnxfq.placement.target_policy import NodeDecision, Operands, TargetPolicy
from onnxfq.support.reasons import Reason


def decide_weighted(
    node: gs.Node, recipe: Recipe, policy: TargetPolicy, read_in_float: Collection[str] = ()
) -> NodeDecision:
    """Quantize all multiplied inputs of `node`, or none: one float side makes a float kernel.

    Args:
        node: a weighted operator.
        recipe: formats, and overrides by node, operator and tensor.
        policy: limits of the target.
        read_in_float: names of tensors with a reader that wants them unrounded.
    """
    kept = next((node.inputs[s] for s in WEIGHTED_INPUTS[node.op] if is_dequantized(node.inputs[s])), None)
    if kept is not None:
        why = Reason("existing", f"the model quantizes its input {kept.name!r} already, and that is kept")
        return NodeDecision(node.name, node.op, (), (), why, by_rule=True)
    placements, needs, why_float = [], [], Reason("", "")
    shapes: dict[str, tuple[int, ...]] = {}
    for slot in WEIGHTED_INPUTS[node.op]:
        placement = place_input(node, slot, recipe, policy, read_in_float)
        if placement is None:
            continue
        source = weight_source(node, slot, read_in_float)
        if source is not None:
            shapes[placement.tensor] = tuple(source.tensor.shape)
        needs.append(placement.uses[0])
        # A transposed weight may be named before or after the Transpose.
        names = (placement.tensor, node.inputs[slot].name)
        kept_by = next(filter(None, (recipe.explain_float(node.name, node.op, name) for name in names)), None)
        if kept_by is not None:
            why_float = kept_by
        elif float_type(node.inputs[slot]) is None:
            found = dtype_name(node.inputs[slot])
            why_float = Reason(
                "float-type",
                f"input {placement.tensor!r} is {found}, "
                "and only float32, float16 and bfloat16 are quantized",
            )
        elif source is not None and 0 in source.tensor.shape:
            why_float = Reason("no-values", f"weight {placement.tensor!r} has no values")
        elif source is None and _needs_rank(node, slot, recipe):
            why_float = Reason(
                "open-rank",
                f"input {placement.tensor!r} has no known rank, and its rows and blocks go by axis; plan "
                "with data to infer it",
            )
        elif source is None:
            why_float = why_float or Reason("open-groups", _open_groups(placement, node.inputs[slot].shape))
        placements.append(placement)
    if not placements:
        why_float = Reason(
            "weights-only", f"recipe {recipe.name} quantizes weights only, and both inputs are computed"
        )
    if not why_float:
        operands = Operands(node, placements, shapes)
        refuse(operands, policy)
        why_float = Reason("target", policy.keeps_float(operands))
        why_float = why_float or explain_transposed(node.op, recipe, policy)
    if why_float:
        return NodeDecision(node.name, node.op, tuple(needs), (), why_float)
    return NodeDecision(node.name, node.op, tuple(needs), tuple(placements))


def explain_transposed(op_type: str, recipe: Recipe, policy: TargetPolicy) -> Reason:
    """Return why a ConvTranspose stays in float; empty if it is quantized, and for other operators."""
    left_out = op_type == "ConvTranspose" and recipe.conv_transpose == "float"
    return Reason("conv-transpose", policy.conv_transpose if left_out else "")


def refuse(operands: Operands, policy: TargetPolicy) -> None:
    """Raise RecipeError when the target cannot take one of a node's placements."""
    for placement in operands.placements:
        refusal = policy.refuses(placement, operands)
        if refusal:
            raise RecipeError(f"node {operands.node.name!r}, tensor {placement.tensor!r}: {refusal}")


def place_activation(
    node: gs.Node, slot: int, recipe: Recipe, policy: TargetPolicy, what: str, source: gs.Tensor | None = None
) -> Placement | None:
    """Place input `slot` of `node` as an activation; return None if the recipe is weight-only.

    Args:
        node: the reader.
        slot: position of the input.
        recipe: formats, and overrides by node, operator and tensor.
        policy: limits of the target.
        what: description of the input for the plan.
        source: tensor that the input is made from, placed instead of it.
    """
    tensor = node.inputs[slot] if source is None else source
    scheme = recipe.activation_for(node.name, node.op, tensor.name)
    if scheme is None:
        return None
    granularity, why = _activation_granularity(node, slot, scheme, policy)
    return activation_placement(tensor, scheme, granularity, (Use(node.name, slot),), f"{what}{why}")


def activation_placement(
    tensor: gs.Tensor, scheme: ActivationScheme, granularity: Granularity, uses: tuple[Use, ...], why: str
) -> Placement:
    """Return the placement of `tensor` by `scheme`; its range is fixed if mathematics gives one."""
    spec = QuantSpec(**list_numbers(scheme), granularity=granularity, dynamic=scheme.dynamic)
    # Dynamic scales cover the whole range.
    calibrator, known = (MINMAX, "") if scheme.dynamic else choose_calibrator(scheme, producer_op(tensor))
    return Placement(
        tensor=tensor.name,
        role="activation",
        spec=spec,
        uses=uses,
        why=why + known,
        float_type=float_type(tensor) or "float32",
        calibrator=calibrator,
    )


def choose_calibrator(scheme: ActivationScheme, producer: str) -> tuple[Calibrator, str]:
    """Return (calibrator of outputs of operator `producer`, why if mathematics gives their range)."""
    if producer not in scheme.known_ranges:
        return scheme.calibrator, ""
    low, high = KNOWN_RANGES[producer]
    known = Calibrator(name="known", parameters=(producer,))
    return known, f"; every output of {producer} lies in [{low:g}, {high:g}]"


def list_numbers(scheme: ActivationScheme | WeightScheme) -> dict[str, Any]:
    """Return the number format of `scheme` as the fields of a spec."""
    return {name: getattr(scheme, name) for name in NumberFormat.model_fields}


def _needs_rank(node: gs.Node, slot: int, recipe: Recipe) -> bool:
    tensor = node.inputs[slot]
    scheme = recipe.activation_for(node.name, node.op, tensor.name)
    return scheme is not None and scheme.granularity != "per_tensor" and tensor.shape is None


def _open_groups(placement: Placement, shape: Sequence[int | str] | None) -> str:
    """Return why the groups of an activation have no statistics, if their number is open; else nothing."""
    axis = None if shape is None else open_axis(placement.spec.observed_granularity, shape)
    if axis is None:
        return ""
    return (
        f"input {placement.tensor!r} is {placement.spec.granularity}, and its axis {axis} is open: every "
        "group needs its own statistics"
    )


def _activation_granularity(
    node: gs.Node, slot: int, scheme: ActivationScheme, policy: TargetPolicy
) -> tuple[Granularity, str]:
    """Return (granularity, why): per tensor without rows or blocks."""
    shape = node.inputs[slot].shape
    if scheme.granularity == "per_tensor" or shape is None:
        return PER_TENSOR, ""
    rank = len(shape)
    if scheme.block_shape is not None:
        if len(scheme.block_shape) != rank:
            return PER_TENSOR, f", per tensor: {_OTHER_RANK.format(list(scheme.block_shape), rank)}"
        return Granularity(block_shape=scheme.block_shape), f", blocks of {list(scheme.block_shape)}"
    if scheme.granularity == "per_axis":
        axis = find_summed_axis(node, slot, rank)
        axis = 1 if axis is None and node.op in CONVOLUTIONS else axis
        return (PER_TENSOR, "") if axis is None else (Granularity(axis), ", a scale for each channel of it")
    axis = _block_axis(node, slot, rank, policy)
    if axis is None and not scheme.dynamic:
        axis = find_summed_channels(node, slot)
    if axis is None:
        return PER_TENSOR, f", per tensor: {_NO_SUM.format(node.op)}"
    if scheme.block_size is not None:
        why = f", blocks of {scheme.block_size} along its summed axis"
        if scheme.dynamic:
            return Granularity(axis, scheme.block_size), why
        blocks = tuple(scheme.block_size if d == axis else -1 for d in range(rank))
        return Granularity(block_shape=blocks), why
    rows = tuple(-1 if d == axis else 1 for d in range(rank))
    return Granularity(block_shape=rows), ", a scale for each row"


_OTHER_RANK = "block_shape {} is not for its {} axes"
_NO_SUM = "blocks go along one summed axis, and {} has none"


def _block_axis(node: gs.Node, slot: int, rank: int, policy: TargetPolicy) -> int | None:
    """Return the axis that rows and blocks of an input go along; None if there is none."""
    if node.op == "Gather":
        return rank - 1  # the numbers of a word
    axis = find_summed_axis(node, slot, rank)
    return find_summed_channels(node, slot) if axis is None and policy.channel_blocks else axis


def place_input(
    node: gs.Node, slot: int, recipe: Recipe, policy: TargetPolicy, read_in_float: Collection[str] = ()
) -> Placement | None:
    """Place input `slot` of `node`: a constant as a weight, anything else as an activation.

    Args:
        node: the reader.
        slot: position of the input.
        recipe: formats, and overrides by node, operator and tensor.
        policy: limits of the target.
        read_in_float: names of tensors with a reader that wants them unrounded.

    Returns None for an activation if the recipe is weight-only.
    """
    source = weight_source(node, slot, read_in_float)
    if source is None:
        return place_activation(node, slot, recipe, policy, f"input of {node.op}")
    tensor = source.tensor.name
    scheme = recipe.weight_for(node.name, node.op, tensor)
    shape = [source.tensor.shape[axis] for axis in source.permutation]
    rank = len(shape)
    summed = _block_axis(node, slot, rank, policy)
    granularity, why = choose_granularity(
        node.op, shape, scheme, policy, summed, channel_axis(node, slot, rank)
    )
    if policy.one_scale_stacks and _is_fused_stack(node, slot, shape, scheme, recipe):
        granularity, why = PER_TENSOR, policy.one_scale_stacks
    spec = QuantSpec(**list_numbers(scheme), granularity=granularity.permute(source.permutation))
    return Placement(
        tensor=tensor,
        role="weight",
        spec=spec,
        uses=(source.use,),
        why=f"weight of {node.op}, {why}",
        float_type=float_type(source.tensor) or "float32",
        calibrator=scheme.calibrator,
        rounding=NEAREST if scheme.rounding == AUTO else scheme.rounding,
    )


def _is_fused_stack(
    node: gs.Node, slot: int, shape: Sequence[int], scheme: WeightScheme, recipe: Recipe
) -> bool:
    """Tell whether a weight of 8 bits with more than two axes is multiplied with an input of 8 bits."""
    given = recipe.activation_for(node.name, node.op, node.inputs[0].name)
    both = (scheme, given) if given is not None else ()
    return node.op == "MatMul" and slot == 1 < len(shape) - 1 and [s.qtype.bits for s in both] == [8, 8]


def choose_granularity(
    op_type: str,
    shape: Sequence[int],
    scheme: WeightScheme,
    policy: TargetPolicy,
    summed: int | None,
    channels: int | None,
) -> tuple[Granularity, str]:
    """Return (granularity of a weight, why).

    Args:
        op_type: the ONNX operator that reads it.
        shape: of the weight.
        scheme: of the recipe.
        policy: of the target.
        summed: the axis that an output element sums over; None if there is not one.
        channels: the axis of output channels; None if there is none.
    """
    rank = len(shape)
    if scheme.granularity == "per_tensor":
        return PER_TENSOR, "per tensor as the recipe asks"
    instead = ""
    if scheme.block_size is not None:
        if summed is not None:
            sizes = (scheme.block_size, *scheme.other_block_sizes)
            size = next((n for n in sizes if shape[summed] % n == 0 and shape[summed] > n), sizes[0])
            return Granularity(summed, size), f"blocks of {size} along its summed axis"
        instead = f": {_NO_SUM.format(op_type)}"
    if scheme.block_shape is not None:
        if len(scheme.block_shape) == rank:
            return Granularity(block_shape=scheme.block_shape), f"blocks of {list(scheme.block_shape)}"
        instead = f": {_OTHER_RANK.format(list(scheme.block_shape), rank)}"
    if op_type in policy.per_tensor_weights:
        return PER_TENSOR, policy.per_tensor_weights[op_type]
    if channels is None:
        return PER_TENSOR, "per tensor: it has no channel axis"
    return Granularity(channels), f"per output channel{instead}"
