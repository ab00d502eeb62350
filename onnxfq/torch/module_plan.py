"""Plan of a torch module: the plan of its float ONNX model, in the names of the module.

`make_plan` decides on the graph as the target prepares it. Each input of a node that gets a pair is found
again among the calls of the module (`recording`), and the tensor is quantized there. One tensor has one
quantizer, whoever reads it, and so has a layer that runs several times.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise

from torch import nn

from onnxfq.calibration.calibrators import Calibrator
from onnxfq.documents.plan import Bridge, Placement, Plan, QuantizableNode, Skipped
from onnxfq.documents.recipe import Recipe
from onnxfq.graph.bounds import Bounds
from onnxfq.graph.names import Use
from onnxfq.numerics.granularity import PER_TENSOR
from onnxfq.numerics.spec import QuantSpec
from onnxfq.placement.masked_scores import MaskedScores, find_masked_scores
from onnxfq.stages.plan import make_plan
from onnxfq.targets.target import prepare_model
from onnxfq.torch.calls import CallPlace
from onnxfq.torch.module_names import CallNames, QuantizerHolder
from onnxfq.torch.placement import Layer, check_overrides, name_rounding, refuse_features, rename_overrides
from onnxfq.torch.recording import CallRecord

_QUOTED = re.compile("'([^']+)'")


@dataclass(frozen=True)
class PlacedQuantizer:
    """One quantizer of a module.

    Attributes:
        placement: its tensor and format.
        holders: the modules that hold it, and its name there.
        places: calls that quantize a tensor by it, and where it is held.
        sites: the layer or call of each use in the ONNX model.
        tensors: its tensors in the ONNX model.
    """

    placement: Placement
    holders: tuple[QuantizerHolder, ...]
    places: Mapping[CallPlace, QuantizerHolder]
    sites: Mapping[Use, str]
    tensors: tuple[str, ...] = ()

    def joined(self, other: PlacedQuantizer) -> PlacedQuantizer:
        """Return one quantizer for the tensors of both."""
        return replace(
            self,
            holders=tuple(dict.fromkeys((*self.holders, *other.holders))),
            places={**self.places, **other.places},
            sites={**self.sites, **other.sites},
            tensors=(*self.tensors, *other.tensors),
        )


@dataclass(frozen=True)
class ModulePlan:
    """Plan in the names of a module, its quantizers, and the calls that it knows.

    Attributes:
        masked: tensors of the ONNX model that Softmax alone reads.
        bounds: of its tensors, where operators and constants give them.
    """

    plan: Plan
    quantizers: tuple[PlacedQuantizer, ...]
    record: CallRecord
    masked: MaskedScores = field(default_factory=MaskedScores)
    bounds: Mapping[str, Bounds] = field(default_factory=dict)


def plan_by_layers(plan: Plan, module: nn.Module) -> ModulePlan:
    """Return the plan of layers alone."""
    norms: list[tuple[str, str]] = []
    for path, child in module.named_modules():
        if type(child).forward is nn.Sequential.forward:
            norms += pairwise(f"{path}.{name}" if path else name for name, _ in child.named_children())
    return ModulePlan(plan, tuple(_quantizers_of_layers(plan.placements)), CallRecord(norms=norms))


def _quantizers_of_layers(placements: Iterable[Placement]) -> Iterator[PlacedQuantizer]:
    for placement in placements:
        path = placement.uses[0].node
        name = placement.tensor.removeprefix(f"{path}.") if path else placement.tensor
        yield PlacedQuantizer(placement, (QuantizerHolder(path, name),), {}, {placement.uses[0]: path})


def plan_module(
    module: nn.Module, recipe: Recipe, layers: Sequence[Layer], by_layers: Plan, record: CallRecord
) -> ModulePlan:
    """Return the plan of `recipe` for a module whose calls are known.

    Layers that did not run, and those whose input is not multiplied, have the plan `by_layers`.

    Raises RecipeError as `make_plan`, and for names of overrides that match nothing; ModelError if nothing
    can be quantized.
    """
    names = CallNames(module, record, prepare_model(record.exported, recipe.target))
    asked = _translate(recipe, names, layers)
    plan = make_plan(record.exported, asked, strict=False)
    for one in plan.placements:
        if one.role != "bias":
            refuse_features(asked, one.uses[0].node, one.tensor, is_weight=one.role == "weight")
    lost = {p.tensor: why for p in plan.activations if (why := names.why_lost(p.uses))}
    copies, left = list(_list_copies(names, lost)), set[str]()
    while lost and (gone := lost.keys() - _find_moved(plan, copies, names, lost) - left):
        for tensor in filter(gone.__contains__, lost):
            plan = plan.without({tensor}, lost[tensor])
        left |= gone
    ran = {place.path for place in record.seen}
    alone = {layer.name for layer in layers if layer.name not in ran or not layer.kind.has_input}
    usual = None if recipe.activations is None else recipe.activations.calibrator
    formats = {p.tensor: p.spec for p in by_layers.placements}
    made = (q for p in plan.placements for q in _make(p, names, formats, usual))
    # An export writes these as one node each, and they read a result of a layer that is quantized.
    own = {path for path in alone if not isinstance(module.get_submodule(path), (nn.LSTM, nn.GRU))}
    kept = [q for q in made if not any(holder.path in own for holder in q.holders)]
    groups = _join((*plan.bridges, *copies), kept)
    groups += _quantizers_of_layers(p for p in by_layers.placements if p.uses[0].node in alone)
    quantizers, uses = _with_uses(groups)
    nodes, skipped = _list_sites(plan, names, uses, alone)
    told = {one.why for one in skipped}
    tensors = (one for one in plan.skipped if one.kind == "tensor" and one.why == lost.get(one.name))
    skipped += [one for one in tensors if one.why not in told]
    changed = {
        "placements": tuple(quantizer.placement for quantizer in quantizers),
        "nodes": (*nodes, *(node for node in by_layers.nodes if node.node in alone)),
        "skipped": (*skipped, *(one for one in by_layers.skipped if one.name in alone)),
    }
    index = names.prepared.index
    masked = find_masked_scores(index)
    return ModulePlan(by_layers.model_copy(update=changed), tuple(quantizers), record, masked, index.bounds)


def _list_copies(names: CallNames, lost: Mapping[str, str]) -> Iterator[Bridge]:
    """Yield each Expand at a lost tensor as a bridge: both its tensors have the same numbers."""
    for node in names.prepared.proto.graph.node:
        ends = node.input[0] if node.input else "", *node.output[:1]
        if node.op_type == "Expand" and not lost.keys().isdisjoint(ends):
            yield Bridge(node=node.name, op_type="Expand", tensors=ends, one_scale=True, required=True)


def _find_moved(plan: Plan, copies: Iterable[Bridge], names: CallNames, lost: Mapping[str, str]) -> set[str]:
    """Return the tensors that have a quantizer in a run, or share one with such a tensor in an export.

    A forward may repeat heads where it is exported, and let attention do so otherwise.
    """
    read = {p.tensor: p.spec for p in plan.activations if all(map(names.find, p.uses))}
    joined = (bridge.tensors for bridge in (*plan.bridges, *copies) if bridge.one_scale and bridge.required)
    groups = [read.keys() & tensors for tensors in joined]
    alike = [group for group in groups if len({read[name] for name in group}) == 1]
    reached: set[str] = read.keys() - lost.keys()
    while more := {name for group in alike if group & reached for name in group} - reached:
        reached |= more
    return reached


def _make(
    placement: Placement, names: CallNames, formats: Mapping[str, QuantSpec], usual: Calibrator | None
) -> Iterator[PlacedQuantizer]:
    """Yield the quantizer of a placement, if it has a place in the module; one for each parameter.

    Parameters with equal numbers are one constant of an export, and go apart in training.
    """
    if placement.role == "bias":
        return
    uses: dict[int | None, list[Use]] = {}
    for use in placement.uses:
        uses.setdefault(names.parameter(use) if placement.role == "weight" else None, []).append(use)
    if len(uses) > 1:
        for number, readers in enumerate(uses.values()):
            update = {"uses": tuple(readers), "tensor": f"{placement.tensor}/{number}"}
            yield from _make(placement.model_copy(update=update), names, formats, usual)
        return
    places: dict[CallPlace, QuantizerHolder] = {}
    holders: list[QuantizerHolder] = []
    sites: dict[Use, str] = {}
    for use in placement.uses:
        read, held = names.places(use, placement.role == "activation"), names.weight_holder(use)
        if placement.role == "weight" and held is not None:
            holders.append(held)
            sites[use] = held.path
            if str(held) in formats and placement.spec.granularity.axis is not None:
                # A weight may be stored the other way round than the layer holds it.
                placement = placement.model_copy(update={"spec": formats[str(held)]})
        elif read:
            holders += map(names.holder, read)
            sites[use] = names.site(read[0])
            places |= {place: names.holder(place) for place in read if names.is_table(place)}
    if placement.role == "activation" and placement.spec.granularity != PER_TENSOR:
        spec = placement.spec.model_copy(update={"granularity": PER_TENSOR})
        why = f"{placement.why}; one scale for all channels: equalize depthwise is for ONNX models"
        usual = placement.calibrator if usual is None else usual
        placement = placement.model_copy(update={"spec": spec, "why": why, "calibrator": usual})
    if holders:
        placement = name_rounding(placement)
        yield PlacedQuantizer(placement, tuple(dict.fromkeys(holders)), places, sites, (placement.tensor,))


def _join(bridges: Iterable[Bridge], quantizers: list[PlacedQuantizer]) -> list[PlacedQuantizer]:
    """Return the quantizers with one for each holder, and one for tensors that need one scale."""
    groups: dict[str, PlacedQuantizer] = {}
    owner: dict[QuantizerHolder, str] = {}
    first: dict[str, str] = {}
    for quantizer in quantizers:
        tensor = quantizer.placement.tensor
        same = next((owner[holder] for holder in quantizer.holders if holder in owner), tensor)
        groups[same] = groups[same].joined(quantizer) if same in groups else quantizer
        owner |= dict.fromkeys(quantizer.holders, same)
        first[tensor] = same
    for bridge in bridges:
        joined = list(dict.fromkeys(first[name] for name in bridge.tensors if first.get(name) in groups))
        formats = {groups[name].placement.spec for name in joined}
        if bridge.one_scale and bridge.required and len(formats) == 1:
            for other in joined[1:]:
                groups[joined[0]] = groups[joined[0]].joined(groups.pop(other))
                first |= {name: joined[0] for name, group in first.items() if group == other}
    return list(groups.values())


def _with_uses(quantizers: Iterable[PlacedQuantizer]) -> tuple[list[PlacedQuantizer], dict[Use, Use]]:
    """Return the quantizers with placements in the names of the module, and the use for each ONNX use."""
    slots, made, uses = Counter[str](), [], dict[Use, Use]()
    for quantizer in quantizers:
        at = {}
        for site in dict.fromkeys(quantizer.sites.values()):
            at[site] = Use(site, slots[site])
            slots[site] += 1
        changed = {"tensor": str(quantizer.holders[0]), "uses": tuple(at.values())}
        made.append(replace(quantizer, placement=quantizer.placement.model_copy(update=changed)))
        uses |= {use: at[site] for use, site in quantizer.sites.items()}
    return made, uses


def _list_sites(
    plan: Plan, names: CallNames, uses: Mapping[Use, Use], alone: Collection[str]
) -> tuple[list[QuantizableNode], list[Skipped]]:
    """Return the layers and calls that may be quantized, and what stays in float."""
    quantized = plan.quantized_nodes
    needs: dict[str, list[Use]] = {}
    kinds: dict[str, str] = {}
    low: dict[str, bool] = {}
    site_of = {}
    for node in plan.nodes:
        place = names.calls.get(node.node)
        site_of[node.node] = site = node.node if place is None else names.site(place)
        kinds[site] = node.op_type if place is None else names.type_name(place, node.op_type)
        low[site] = low.get(site, True) and node.node in quantized
        needs.setdefault(site, []).extend(uses[use] for use in node.needs if use in uses)
    nodes = [
        QuantizableNode(
            node=site, op_type=kinds[site], needs=tuple(dict.fromkeys(needs[site])) if low[site] else ()
        )
        for site in kinds
        if site not in alone
    ]
    skipped = {}
    for one in plan.skipped:
        if one.kind == "node" and one.name in site_of and site_of[one.name] not in alone:
            site = site_of[one.name]
            why = _QUOTED.sub(lambda found: f"'{site_of.get(found[1], found[1])}'", one.why)
            skipped[site] = one.model_copy(update={"name": site, "op_type": kinds[site], "why": why})
    return nodes, list(skipped.values())


def _translate(recipe: Recipe, names: CallNames, layers: Sequence[Layer]) -> Recipe:
    """Return the recipe with overrides in the names of the ONNX model.

    Raises RecipeError for names that match nothing in the module.
    """
    nodes = {}
    kinds = {layer.name: layer.kind.op_types for layer in layers}
    for node in names.prepared.proto.graph.node:
        place = names.calls.get(node.name)
        if place is not None:
            site, kind = names.site(place), names.type_name(place, node.op_type)
            nodes[node.name] = (site, {kind, node.op_type, *kinds.get(site, ())})
    tensors = [(name, str(holder)) for name, holder in _name_tensors(names)]
    recipe = recipe.for_modules({name: name for name in (*(s for s, _ in nodes.values()), *kinds)})
    check_overrides(recipe, layers, nodes, (own for _, own in tensors))
    return rename_overrides(recipe, nodes, tensors)


def _name_tensors(names: CallNames) -> Iterator[tuple[str, QuantizerHolder]]:
    """Yield each tensor that a node reads, and the module that would hold its quantizer."""
    constants = names.prepared.constants
    for node in names.prepared.proto.graph.node:
        for slot, name in enumerate(node.input):
            use = Use(node.name, slot)
            place, held = names.place(use), names.weight_holder(use) if name in constants else None
            if held is not None and slot == 1:
                yield name, held
            elif place is not None:
                yield name, names.holder(place)
