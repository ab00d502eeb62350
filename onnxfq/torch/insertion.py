"""Quantizers of a `ModulePlan`, put into a module."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from torch import nn

from onnxfq.calibration.calibrators import MINMAX
from onnxfq.documents.plan import Placement
from onnxfq.graph.bounds import UNKNOWN, hull
from onnxfq.numerics.granularity import PER_TENSOR
from onnxfq.torch.batchnorm import NORMS, fold, is_foldable
from onnxfq.torch.calls import OUTPUTS, TABLE, Call, CallPlace, Function, Planned
from onnxfq.torch.fused import switch_fused
from onnxfq.torch.layers import SUFFIX, Swapped, swap
from onnxfq.torch.module_names import QuantizerHolder
from onnxfq.torch.module_plan import ModulePlan
from onnxfq.torch.observers import Fixed
from onnxfq.torch.quantizer import FakeQuantize
from onnxfq.torch.recording import CallRecord

TRAINING_OBSERVER = "moving_average:0.01"
"""Observer of activations in training, as in torch.ao's and Horizon's QAT."""


@dataclass(frozen=True)
class Settings:
    """Settings that all quantizers of a module share.

    Attributes:
        observer: of activations, in place of the calibrators of the recipe; None for these.
        fold_batchnorm: whether a BatchNorm right after a convolution is folded into its weight.
        others: keyword arguments of `FakeQuantize`.
    """

    observer: str | Callable[..., nn.Module] | None = None
    fold_batchnorm: bool = True
    others: Mapping[str, Any] = field(default_factory=dict)


_PLACED = "placed"
"""Attribute of a quantizer with the format and the calibrator of its placement."""


def insert(
    model: nn.Module, planned: ModulePlan, settings: Settings, before: Mapping[QuantizerHolder, FakeQuantize]
) -> list[FakeQuantize]:
    """Put the quantizers of a plan into a float module, and return those that are new.

    Args:
        model: the module; it is changed in place.
        planned: its plan.
        settings: of all quantizers.
        before: quantizers that stay, by where they were held.
    """
    device = next((p.device for p in model.parameters()), None)
    given: dict[str, dict[str, FakeQuantize]] = {}
    tables: dict[str, dict[CallPlace, str]] = {}
    added, masks = [], planned.masked.tensors
    for one in planned.quantizers:
        asked = one.placement
        kept = (before[holder] for holder in one.holders if holder in before)
        same = (q for q in kept if vars(q)[_PLACED] == (asked.spec, asked.calibrator))
        quantizer = next(same, None)
        if quantizer is None:
            masked = asked.spec.granularity == PER_TENSOR and not masks.isdisjoint(one.tensors)
            quantizer = _quantizer(asked, masked, settings).to(device)
            quantizer.target = planned.plan.target
            if one.tensors and not asked.calibrator.is_fixed:
                quantizer.bounds = hull([planned.bounds.get(name, UNKNOWN) for name in one.tensors])
            quantizer.masked = (planned.masked, one.tensors) if masked else None
            vars(quantizer)[_PLACED] = asked.spec, asked.calibrator
            quantizer.train(model.get_submodule(one.holders[0].path).training)
            added.append(quantizer)
        for path, name in one.holders:
            given.setdefault(path, {})[name] = quantizer
        for place, holder in one.places.items():
            tables.setdefault(holder.path, {})[place] = holder.name + SUFFIX
    for path, held in given.items():
        module = model.get_submodule(path)
        swap(module, held)
        outputs = {
            int(name.removeprefix(OUTPUTS)): name + SUFFIX for name in held if name.startswith(OUTPUTS)
        }
        if outputs and not path:
            module.__dict__[OUTPUTS] = outputs
    for path, places in tables.items():
        model.get_submodule(path).__dict__[TABLE] = _make_table(places, planned.record, path)
    switch_fused(model, fused=False)
    for first, second in planned.record.norms if settings.fold_batchnorm else ():
        layer, norm = model.get_submodule(first), model.get_submodule(second)
        if isinstance(layer, Swapped) and is_foldable(layer, norm):
            fold(layer, norm)
    for module in list(_bystanders(model, tables, planned.record)):
        swap(module, {})
    return added


def _make_table(places: Mapping[CallPlace, str], record: CallRecord, path: str) -> dict[Any, Planned]:
    table: dict[tuple[Call | None, Function], dict[int, dict[int | str, str]]] = {}
    inside: dict[tuple[Call | None, Function], set[int]] = {}
    for place, name in places.items():
        call = place.call
        assert call is not None
        table.setdefault((call.outer, call.function), {}).setdefault(call.number, {})[place.leaf] = name
        while (call := call.outer) is not None:
            table.setdefault((call.outer, call.function), {})
            inside.setdefault((call.outer, call.function), set()).add(call.number)
    made = {}
    for key, calls in table.items():
        outer, function = key
        count, written = record.counts[path].get(key, 0), frozenset(inside.get(key, ()))
        branch = None if outer else record.branches.get((path, function))
        made[key] = Planned(count, calls, written, branch)
    return made


def _bystanders(model: nn.Module, tables: Mapping[str, Any], record: CallRecord) -> Iterator[nn.Module]:
    """Yield the modules that need a block, because a module around them counts calls."""
    for path, module in model.named_modules():
        around = [
            outer for outer in tables if path.startswith(f"{outer}." if outer else "") and path != outer
        ]
        if not around or isinstance(module, (Swapped, FakeQuantize, nn.ModuleList, nn.ModuleDict)):
            continue
        functions = {place.call.function for outer in around for place in tables[outer]}
        called = {function for _, function in record.counts.get(path, {})}
        own = not type(module).__module__.startswith("torch.")
        if own or called & functions or isinstance(module, NORMS):
            yield module


def _quantizer(placement: Placement, is_masked: bool, given: Settings) -> FakeQuantize:
    spec, calibrator, asked, settings = placement.spec, placement.calibrator, given.observer, given.others
    if is_masked:  # the range of a batch holds its masks; a floor for them takes all statistics
        quantizer = FakeQuantize(spec, "histogram", calibrator=calibrator, **settings)
        quantizer.is_observing = False
        return quantizer
    if placement.role == "weight" and calibrator.is_ordered:
        return FakeQuantize(spec, str(calibrator), calibrator=calibrator, training_only=True, **settings)
    if placement.role == "weight":
        return FakeQuantize(spec, "latest", calibrator=calibrator, **settings)
    if calibrator.is_fixed:
        return FakeQuantize(spec, Fixed(spec, calibrator), calibrator=calibrator, **settings)
    if asked is not None:
        return FakeQuantize(spec, asked, training_only=True, **settings)
    # A moving average depends on the order of the tensors, which a histogram does not hold.
    exact = "minmax" if calibrator == MINMAX else str(calibrator) if calibrator.is_ordered else "histogram"
    training = str(calibrator) if calibrator.is_ordered else TRAINING_OBSERVER
    quantizer = FakeQuantize(spec, training, calibrator=calibrator, training_only=True, **settings)
    quantizer.calibrating_observer = exact
    quantizer.is_observing = quantizer.in_flight == "never"
    return quantizer
