"""Plan and encodings of matrices whose numbers another tool has chosen."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from onnxfq.calibration.calibrators import EXTERNAL
from onnxfq.checkpoints.layer import InputFormat, QuantizedLayer
from onnxfq.checkpoints.places import LinearPlace
from onnxfq.documents.encodings import Encoding, Encodings
from onnxfq.documents.override import Override
from onnxfq.documents.plan import Placement, Plan
from onnxfq.documents.recipe import Recipe
from onnxfq.documents.schemes import WeightScheme
from onnxfq.errors import PlanError, RecipeError
from onnxfq.graph.model import Model, list_nodes
from onnxfq.graph.ops import WEIGHTED_INPUTS
from onnxfq.numerics.float_types import holds
from onnxfq.numerics.qtypes import qtype_by_name
from onnxfq.numerics.spec import QuantSpec
from onnxfq.stages.derived_scales import encode_biases
from onnxfq.stages.plan import make_plan
from onnxfq.support.groups import group_pairs


@dataclass(frozen=True, eq=False)
class PlacedLayer:
    """Format of a matrix as its graph has it, without its numbers.

    Attributes:
        spec: number format, and which elements of the constant share a scale.
        scale: of them.
        zero_point: of them.
        global_scale: the factor that scales of type e4m3 share.
        input: how the other operand is quantized; None for float.
        nodes: the products that read it.
    """

    spec: QuantSpec
    scale: NDArray[np.float32]
    zero_point: NDArray[np.int32]
    global_scale: float | None
    input: InputFormat | None
    nodes: tuple[str, ...]

    @staticmethod
    def of(layer: QuantizedLayer, place: LinearPlace) -> PlacedLayer:
        """Return the format of a layer, whose weight is [N, K], in the orientation of its constant."""
        granularity, scale, zero = layer.granularity, layer.scale, layer.zero_point
        if place.turned and scale.ndim:
            granularity = granularity.permute((1, 0))
            scale, zero = scale.T, zero.T
        spec = QuantSpec(
            qtype=layer.qtype,
            symmetric=layer.is_symmetric,
            scale_type=layer.scale_type,
            granularity=granularity,
        )
        return PlacedLayer(spec, scale, zero, layer.global_scale, layer.input, place.nodes)

    @property
    def weights(self) -> dict[str, Any]:
        """The scheme of the weight, as fields of an override."""
        block = self.spec.granularity.block_size
        kind = "blocked" if block else "per_axis" if self.scale.ndim else "per_tensor"
        return {
            "qtype": str(self.spec.qtype),
            "symmetric": self.spec.symmetric,
            "scale_type": self.spec.scale_type,
            "granularity": kind,
            "block_size": block,
            "rounding": "nearest",
        }


def encode_layers(
    model: Model, placed: Mapping[str, PlacedLayer], target: str, form: str
) -> tuple[Plan, Encodings, list[str]]:
    """Return plan and encodings of the matrices `placed`, by constant, and notes on inputs left in float.

    Everything else stays in float. Inputs are quantized as the form says if the target has that; otherwise
    all stay in float. Raises RecipeError for a format of weights that the target does not take, PlanError
    for scales that the graph's float type does not hold.
    """
    notes: list[str] = []
    try:
        plan = make_plan(model, _recipe(model, placed, target, form, with_inputs=True))
    except RecipeError as fault:
        try:
            plan = make_plan(model, _recipe(model, placed, target, form, with_inputs=False))
        except RecipeError as other:
            what = str(other).partition("; use ")[0]
            raise RecipeError(f"{what}; the {form} checkpoint has it so, choose another --target") from None
        notes.append(f"inputs stay in float: {str(fault).partition('; use ')[0]}")
    inputs = {node: layer.input for layer in placed.values() for node in layer.nodes}
    known: dict[str, Encoding] = {}
    for placement in plan.placements:
        if placement.role == "weight" and placement.tensor in placed:
            known[placement.tensor] = _encode_weight(placement, placed[placement.tensor], form)
        elif placement.role == "activation":
            given = next((inputs[use.node] for use in placement.uses if inputs.get(use.node)), None)
            if given is not None:
                known[placement.tensor] = _encode_input(placement, given)
    lost = {p.tensor for p in plan.placements if p.role != "bias"} - set(known)
    plan = plan.without(lost, f"{form} has no scale for it") if lost else plan
    known |= {one.tensor: one for one in encode_biases(model, plan, known.values())}
    ordered = tuple(known[p.tensor] for p in plan.placements if p.tensor in known)
    encodings = Encodings(model_sha256=model.sha256, encodings=ordered, source=f"{form} checkpoint")
    return plan, encodings, notes + _explain_lost(plan, placed)


_LEFT = "the plan leaves it in float"


def _explain_lost(plan: Plan, placed: Mapping[str, PlacedLayer]) -> list[str]:
    """Return a line for each reason why matrices of the checkpoint are not quantized by the plan."""
    kept = {p.tensor for p in plan.weights}
    skipped = {s.name: s.why for s in plan.skipped}
    lost = ((name, layer.nodes) for name, layer in placed.items() if name not in kept)
    whys = ((next(filter(None, map(skipped.get, nodes)), _LEFT), name) for name, nodes in lost)
    return [
        f"{len(names)} matrices stay in float, as {names[0]!r}: {why}"
        for why, names in group_pairs(whys).items()
    ]


def _recipe(
    model: Model, placed: Mapping[str, PlacedLayer], target: str, form: str, with_inputs: bool
) -> Recipe:
    """Return the recipe that asks for exactly these formats."""
    groups: dict[str, tuple[dict[str, Any], dict[str, Any] | None, list[str]]] = {}
    for layer in placed.values():
        given = layer.input if with_inputs else None
        fields = layer.weights, None if given is None else _activations(given)
        groups.setdefault(repr(fields), (*fields, []))[2].extend(layer.nodes)
    overrides = [
        Override.model_validate({"nodes": tuple(nodes), "weights": weights, "activations": activations})
        for weights, activations, nodes in groups.values()
    ]
    chosen = {node for layer in placed.values() for node in layer.nodes}
    weighted = (node.name for node in list_nodes(model.proto.graph) if node.op_type in WEIGHTED_INPUTS)
    others = tuple(name for name in weighted if name not in chosen)
    if others:
        why = f"the {form} checkpoint has it in float"
        overrides.append(Override(nodes=others, keep_float=True, why=why))
    usual = WeightScheme(qtype=qtype_by_name("int8"), rounding="nearest")
    return Recipe(name=form, target=target, activations=None, weights=usual, overrides=tuple(overrides))


def _activations(given: InputFormat) -> dict[str, Any]:
    """Return the scheme of an input, as fields of an override."""
    fields: dict[str, Any] = {
        "qtype": str(given.qtype),
        "symmetric": given.zero_point == 0,
        "dynamic": not given.is_static,
        "scale_type": given.scale_type,
        "calibrator": "minmax",
    }
    if given.is_static:
        return fields
    blocks = {"granularity": "blocked", "block_size": given.block_size}
    return fields | (blocks if given.block_size else {"granularity": "per_row"})


def _encode_weight(placement: Placement, layer: PlacedLayer, form: str) -> Encoding:
    if placement.spec != layer.spec:
        raise PlanError(
            f"weight {placement.tensor!r} is {layer.spec} in the {form} checkpoint, and its target has "
            f"{placement.spec}; choose another --target"
        )
    if not holds(layer.scale, placement.float_type):
        raise PlanError(
            f"weight {placement.tensor!r} is {placement.float_type} in the graph, and a scale of the "
            "checkpoint is not exact in that type; export the graph in float32"
        )
    encoding = placement.encode(layer.scale, layer.zero_point, layer.global_scale)
    return encoding.model_copy(update={"calibrator": EXTERNAL})


def _encode_input(placement: Placement, given: InputFormat) -> Encoding:
    if given.is_static:
        scale, zero = np.float32(given.scale or 0), np.int32(given.zero_point)
        return placement.encode(np.asarray(scale), np.asarray(zero)).model_copy(
            update={"calibrator": EXTERNAL}
        )
    return Encoding.of_running_model(placement.tensor, placement.spec, given.scale)
