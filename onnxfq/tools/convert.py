"""`convert`: a model quantized for ONNX Runtime converted for another target, with its loss."""

from __future__ import annotations

from copy import deepcopy
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import onnx

from onnxfq.calibration.calibrators import MINMAX
from onnxfq.calibration.statistics import HISTOGRAM, Statistics, TensorStatistics
from onnxfq.data import Data
from onnxfq.data.replay import KeptFeeds
from onnxfq.documents.encodings import Encodings
from onnxfq.documents.override import Override
from onnxfq.documents.plan import Plan
from onnxfq.documents.recipe import Recipe
from onnxfq.documents.scores import Evaluation
from onnxfq.errors import DataError, ModelError, RecipeError, nearest
from onnxfq.graph.external.scratch_file import Scratch, scratch_for, weights_stored_in
from onnxfq.graph.index import GraphIndex
from onnxfq.graph.io.data_paths import check_model_output
from onnxfq.graph.io.load import load, read_model, standard_form
from onnxfq.graph.model import Model, list_nodes
from onnxfq.graph.normalize.experts import split_experts
from onnxfq.graph.ops import CONVOLUTIONS, MOVES, SPLITS
from onnxfq.graph.patterns.logits import judge_given
from onnxfq.graph.stored_grid import StoredWeight
from onnxfq.judging.written_proof import MOST, Written, prove
from onnxfq.quantized.float_form import FloatForm, Unfolding
from onnxfq.quantized.forms import is_quantized
from onnxfq.quantized.operators import HANDLERS
from onnxfq.quantized.qonnx import pairs_of_qonnx
from onnxfq.quantized.stored_casts import pairs_of_casts
from onnxfq.stages.calibrate import calibrate_plan
from onnxfq.stages.evaluate import evaluate
from onnxfq.stages.insert import insert_qdq
from onnxfq.stages.observe import collect_statistics
from onnxfq.stages.observers import ObserveOptions
from onnxfq.stages.options import RunOptions, open_feeds
from onnxfq.stages.plan import make_plan
from onnxfq.stages.stored_weights import compare_stored
from onnxfq.stages.write import write_model
from onnxfq.stages.zeroed_values import warn_zeroed_values
from onnxfq.support.reasons import rule_of
from onnxfq.targets.findings import CheckResult
from onnxfq.targets.lower_fake_quantize import lower_export
from onnxfq.targets.recipes import load_recipe
from onnxfq.targets.target import DEFAULT_TARGET, collect_parts, prepare_model, target_by_name
from onnxfq.tools.check import check
from onnxfq.tools.converted_clips import (
    drop_clips,
    drop_repeated_clips,
    drop_unreached_clips,
    find_covered_clips,
)


@dataclass(frozen=True)
class Conversion:
    """Result of `convert`.

    Attributes:
        plan: of the float form of the source.
        changes: counts by description.
        check: findings in the result by the rules of its target; None if it has none.
        evaluation: against the source; None without data.
        scratch: the file of large weights of `qdq`, which exists as long as this object; None if they are in
            memory.
    """

    source: str
    qdq: onnx.ModelProto
    plan: Plan
    changes: dict[str, int]
    check: CheckResult | None = None
    evaluation: Evaluation | None = None
    notes: tuple[str, ...] = field(default=())
    scratch: Scratch | None = field(default=None, repr=False, compare=False)


def convert(
    model: str | Path | onnx.ModelProto,
    output: str | Path | None = None,
    *,
    target: str = DEFAULT_TARGET,
    data: Data | None = None,
    options: RunOptions | None = None,
) -> Conversion:
    """Convert a quantized model for `target`, and write it to `output`.

    Every node that multiplies quantized numbers in the source also does in the result: in symmetric int8 over
    the range that the source covers, with the stored weights of the source if int8 can hold their grid. The
    file is written once ONNX Runtime has loaded it, and run it on the first feed of `data`. Findings of
    the rules of the target do not keep it from being written.

    FakeQuantize nodes, as torch's plain exporter writes them for modules of `onnxfq.torch`, become Q/DQ pairs
    first, with the same scales.

    Args:
        model: a quantized model: a path or a ModelProto.
        output: where to write the result; None writes nothing.
        target: a target with a conversion.
        data: real inputs to compare the result with the source on, to turn dynamic scales into constants, and
            to leave out limits of ranges that no value reaches; without data nodes with dynamic scales stay
            in float. Of a file with weights of convolutions alone in integers, data give the ranges.
        options: batch, threads and device.

    Raises ModelError for a model that is not quantized or has an operator without a float form, RecipeError
    for an unknown target.
    """
    options = options or RunOptions()
    recipes = collect_parts(lambda one: one.conversion)
    if target not in recipes:
        raise RecipeError(f"there is no conversion for target {target!r}{nearest(target, recipes)}")
    if output is not None:
        check_model_output(output, model, data)
    read, sha256, source = read_model(model)
    proto = pairs_of_qonnx(read, source)
    if not is_quantized(proto):
        proto = pairs_of_casts(proto, source)
    if not is_quantized(proto):
        raise ModelError(f"{source} is not quantized; quantize it with `onnxfq quantize`")
    given = deepcopy(proto)
    proto, lowered = lower_export(proto)
    notes = standard_form(proto)
    form = Unfolding(split_experts(proto, "QMoE", source), source, HANDLERS).run()
    if data is not None:
        drop_unreached_clips(
            form, open_feeds(given, data, options.batch, options.data.unsurveyed), options.threads
        )
    recipe, folder = _recipe(form, recipes[target], data), None if output is None else Path(output).parent
    if form.clips:
        # A Clip hides what a target fuses: where a pair of the same range takes its place, none is needed.
        bare = deepcopy(form)
        drop_clips(bare, list(bare.clips))
        with weights_stored_in(scratch_for(bare.proto, folder)):
            unclipped = prepare_model(replace(load(bare.proto), sha256=sha256, source=source), target)
            decided, _ = _with_known_parts(unclipped, bare, recipe, data)
        drop_clips(form, find_covered_clips(bare, form.clips, decided))
    # As floats the weights may be more than one message can hold.
    scratch = scratch_for(form.proto, folder)
    with weights_stored_in(scratch):
        floats = replace(load(form.proto), sha256=sha256, source=source)
        stored = {
            name: StoredWeight(floats.constants[name], grid.stored_scale)
            for name, grid in form.grids.items()
            if name in floats.constants
        }
        loaded = prepare_model(replace(floats, stored=stored), target)
    form.changes.update({"FakeQuantize node made a Q/DQ pair": lowered} if lowered else {})
    form.changes.update({note: 1 for note in notes if rule_of(note) == "unnamed"})
    plan, statistics = _make_plan(loaded, form, recipe, data, options)
    encodings = _encode_plan(loaded, plan, statistics, form)
    qdq = insert_qdq(loaded, plan, encodings)
    clips = drop_repeated_clips(qdq, form.clips)
    known = GraphIndex.of_model(given).names | GraphIndex.of_model(qdq).names
    plan = plan.model_copy(update={"skipped": tuple(one for one in plan.skipped if one.name in known)})
    if clips:
        form.changes[_CLIPPED if data is None else _CLIPPED_BY_DATA] += clips
    found = check(qdq, target) if target in collect_parts(lambda one: one.check) else None
    evaluation, feeds = None, []
    if data is not None:
        evaluation = evaluate(given, {"converted": qdq}, data, options=options)
        kept = KeptFeeds(open_feeds(given, data, options.batch, options.data.unsurveyed))
        feeds = kept.select(MOST)
        written = Written(qdq, qdq, given, feeds, judge_given(given), options.threads)
        proof = prove(target_by_name(target), written)
        evaluation = evaluation.model_copy(update={"proof": proof})
    write_model(qdq, output, feeds[:1], options.threads)
    return Conversion(source, qdq, plan, dict(form.changes), found, evaluation, loaded.notes, scratch)


_CLIPPED = "Clip put where the range of a pair may limit values; data shows where it does"
_CLIPPED_BY_DATA = "Clip put where the range of a pair limits the values of the data"


def _recipe(form: FloatForm, name: str, data: Data | None) -> Recipe:
    """Return recipe `name` for the source; weight-only and blocked nodes become overrides.

    No target multiplies a convolution of weights alone: of a file with no others, data give the ranges.
    """
    base = load_recipe(name)
    overrides = []
    readers = {node.name: node for node in list_nodes(form.proto.graph)}
    stored = {name: slots for name, slots in form.inputs.items() if slots}
    is_lone = all(slots == {1} and readers[n].op_type in CONVOLUTIONS for n, slots in stored.items())
    for name, slots in form.inputs.items():
        node = readers[name]
        if not slots:
            overrides.append(Override(nodes=(name,), keep_float=True, why="in float in the source"))
        elif slots != {0, 1} and (data is None or not is_lone):
            grid = next((form.grids[node.input[s]] for s in slots if node.input[s] in form.grids), None)
            size = None if grid is None else grid.granularity.block_size
            blocks = {"qtype": "int4", "granularity": "blocked", "block_size": size, "calibrator": "mse"}
            changes = {"nodes": (name,), "activations": None, "weights": blocks if size is not None else {}}
            overrides.append(Override.model_validate(changes))
    if base.activations is not None:
        # The source has one grid for all channels.
        activations = base.activations.model_copy(update={"equalize": "none"})
        base = base.model_copy(update={"activations": activations})
    return base.model_copy(update={"name": "converted", "overrides": tuple(overrides)})


def _make_plan(
    model: Model, form: FloatForm, recipe: Recipe, data: Data | None, options: RunOptions
) -> tuple[Plan, Statistics]:
    """Return the plan and the ranges of its activations, taken from the source or observed."""
    plan, recipe = _with_known_parts(model, form, recipe, data)
    unknown = [p for p in plan.activations if p.tensor not in form.ranges]
    residual = tuple(use.node for p in unknown for use in p.uses if use.node not in form.inputs)
    lost = [p for p in unknown if any(use.node in form.inputs for use in p.uses)]
    nodes = set(residual) | (set() if data is not None else {u.node for p in lost for u in p.uses})
    if data is None and lost and not any(p.tensor in form.ranges for p in plan.activations):
        raise DataError(
            f"{model.source}: all scales of activations are dynamic, and the target wants constant ones; "
            "give data to calibrate them"
        )
    if nodes:
        why = "the source has no constant range of its inputs"
        kept = tuple(Override(nodes=(name,), keep_float=True, why=why) for name in sorted(nodes))
        plan = make_plan(model, recipe.with_overrides(kept))
        if data is None and lost:
            form.changes["node left in float: its scales are dynamic; give data"] += len(
                nodes - set(residual)
            )
    ends = {name: np.asarray(limits, np.float32) for name, limits in form.ranges.items()}
    tensors = {name: TensorStatistics.from_array(values) for name, values in ends.items()}
    missing = [p for p in plan.activations if p.tensor not in tensors]
    if missing and data is not None:
        feeds = open_feeds(model.proto, data, options.batch, options.data)
        part = plan.model_copy(update={"placements": tuple(missing)})
        observing = ObserveOptions(threads=options.threads, device=options.device)
        tensors |= collect_statistics(model, part, feeds, observing).tensors
        form.changes["activation observed in the data, and made static"] += len(missing)
    minmax = {"calibrator": MINMAX}  # keeps the range of the source
    placements = tuple(p.model_copy(update=minmax) if p.tensor in form.ranges else p for p in plan.placements)
    statistics = Statistics(model.sha256, 0, HISTOGRAM.to_keys(tensors))
    return plan.model_copy(update={"placements": placements}), statistics


def _with_known_parts(
    model: Model, form: FloatForm, recipe: Recipe, data: Data | None
) -> tuple[Plan, Recipe]:
    """Return the plan and its recipe; parts with ranges from the source keep their pairs."""
    plan = make_plan(model, recipe)
    moving = {node.name for node in form.proto.graph.node if node.op_type in MOVES | SPLITS}
    wholes = [
        p.tensor
        for p in plan.activations
        if p.tensor not in form.ranges and all(use.node in moving for use in p.uses)
    ]
    if not wholes:
        return plan, recipe
    kept = Override(tensors=tuple(wholes), keep_float=True, why="the source has ranges of its parts")
    apart = recipe.with_overrides([kept])
    parts = make_plan(model, apart)
    unknown = [sum(p.tensor not in form.ranges for p in one.activations) for one in (plan, parts)]
    return (parts, apart) if data is None or unknown[1] < unknown[0] else (plan, recipe)


def _encode_plan(model: Model, plan: Plan, statistics: Statistics, form: FloatForm) -> Encodings:
    """Return the encodings; weights stay on the grid of the source if the target has it."""
    encodings = calibrate_plan(model, plan, statistics).encodings
    warn_zeroed_values(model, plan, statistics, encodings)
    found = compare_stored(model, plan, encodings)
    others = len(plan.weights) - found.kept - len(found.clipped)
    counts = {
        "weight kept on the grid of the source": found.kept,
        "weight kept on the grid of the source but for clipped numbers": len(found.clipped),
        "number of such a weight clipped": sum(count for count, _ in found.clipped.values()),
        "weight rounded again": others,
    }
    form.changes.update({text: count for text, count in counts.items() if count})
    return encodings
