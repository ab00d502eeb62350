"""`quantize`: all stages in a row."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cached_property
from html import escape
from pathlib import Path
from typing import NamedTuple

import onnx

from onnxfq.calibration.statistics import Statistics
from onnxfq.calibration.weights import Moments
from onnxfq.choices import DEFAULT_RECIPE, PROTECT_AUTO, RANKING_FEEDS, ProtectAuto
from onnxfq.data import Data, Feed
from onnxfq.documents.cast_plan import ALL_FLOAT32, FloatOptions, FloatPlan
from onnxfq.documents.encodings import Encodings
from onnxfq.documents.equalization import Equalization
from onnxfq.documents.plan import Plan
from onnxfq.documents.recipe import Recipe
from onnxfq.documents.rounding import explain_mode
from onnxfq.documents.scores import Evaluation
from onnxfq.documents.sensitivity import Sensitivity
from onnxfq.errors import DataError, RecipeError
from onnxfq.execution.reference_runs import ReferenceRuns
from onnxfq.graph.external.scratch_file import Scratch
from onnxfq.graph.external.sizes import limit_in_memory, weight_bytes
from onnxfq.graph.io.data_paths import check_model_output
from onnxfq.graph.model import Model
from onnxfq.graph.node_notes import NodeNotes, note_nodes
from onnxfq.interchange import ExternalEncodingsFile
from onnxfq.interchange.apply import MatchedEncodings
from onnxfq.remedies.accuracy_target import AccuracyTarget
from onnxfq.remedies.calibrator_search import Recalibration, recalibrate
from onnxfq.remedies.correct_biases import BiasCorrection, correct_biases
from onnxfq.remedies.equalize_search import equalize_inputs
from onnxfq.remedies.mixed_precision import (
    PROTECT_DB,
    Protected,
    is_low,
    keep_promise,
    lowest_sqnr,
    protect_outputs,
)
from onnxfq.remedies.round_weights import Rounding, is_shared, round_given
from onnxfq.remedies.rounding_search import (
    NONE_ROUNDED,
    AutoRounding,
    confirm_rounding,
    find_noisy_outputs,
    find_obstacle,
    round_auto,
)
from onnxfq.stages.calibrate import encode_weights
from onnxfq.stages.cast import cast_rest
from onnxfq.stages.evaluate import compare_forms
from onnxfq.stages.fp16_scales import with_half_scales
from onnxfq.stages.inputs import QuantizeSession, embed_weights, open_inputs
from onnxfq.stages.insert import insert_forms
from onnxfq.stages.limits import describe_unreached
from onnxfq.stages.options import RunOptions
from onnxfq.stages.planned_encodings import Missing, plan_encodings
from onnxfq.stages.statistics_source import gather_statistics
from onnxfq.stages.stored_weights import compare_stored
from onnxfq.stages.write import write_model
from onnxfq.stages.zeroed_values import find_zeroed_values, warn_zeroed_values
from onnxfq.targets.onnxruntime.releases import Release, release_of
from onnxfq.targets.recipes import load_recipe
from onnxfq.targets.target import target_by_name


@dataclass(frozen=True, repr=False)
class QuantizeResult:
    """Result of `quantize`.

    Weights of models of over 512 MB, and of a given proto of over 128 MB, are in a temporary file that exists
    as long as this object; `save` writes them.

    Attributes:
        staged: the normalised float model as the stages had it: weights of over 16 MB are in files.
        qdq: the model with Q/DQ pairs in the form of its target.
        staged_simulation: the model with FakeQuantize nodes, likewise.
        evaluation: against the float model, on samples of the calibration data until the SQNR is
            stable. Of forms with the same bits only the simulation runs; `RunOptions.exact` runs both.
        floats: the float32 exceptions of the Q/DQ model; None if the whole non-quantized part is float32.
        fitted: the encodings of a file that match the plan; None without a file.
        seconds: by stage.
        sensitivity: the measurement that left layers in float, or found none worth it; None if the outputs
            were good enough.
        rounding: what rounding by moments gained; None if the recipe rounds all weights to nearest.
        bias_correction: what corrected biases gain; None if the recipe does not ask for it.
        samples: a few feeds of the data, for reports that run the models again.
        recalibration: what another calibrator than `best_error` gains; None if none was tried.
        auto_rounding: what rounding by moments gains; None if it was not tried.
    """

    staged: Model
    recipe: Recipe
    plan: Plan
    statistics: Statistics
    encodings: Encodings
    qdq: onnx.ModelProto
    staged_simulation: onnx.ModelProto
    evaluation: Evaluation
    floats: FloatPlan | None = None
    fitted: MatchedEncodings | None = None
    seconds: dict[str, float] = field(default_factory=dict)
    scratch: Scratch | None = field(default=None, repr=False, compare=False)
    sensitivity: Sensitivity | None = None
    rounding: Rounding | None = field(default=None, repr=False, compare=False)
    bias_correction: BiasCorrection | None = field(default=None, repr=False, compare=False)
    samples: tuple[Feed, ...] = field(default=(), repr=False, compare=False)
    recalibration: Recalibration | None = None
    auto_rounding: AutoRounding | None = None

    @cached_property
    def model(self) -> Model:
        """The normalised float model, as `load` returns it. Raises ModelError if its file has changed."""
        stays = weight_bytes(self.staged.proto) > limit_in_memory(None)
        return (
            self.staged
            if stays
            else replace(self.staged, proto=embed_weights(self.staged, self.staged.proto))
        )

    @cached_property
    def simulation(self) -> onnx.ModelProto:
        """The model with FakeQuantize nodes. Raises ModelError if the file of the float model has changed."""
        return embed_weights(self.staged, self.staged_simulation)

    def _facts(self) -> dict[str, str]:
        """Return the verdict in a few words by name."""
        worst = next((one.worst for one in self.evaluation.candidates[-1:]), None)
        placed = len(self.plan.placements), len(self.plan.weights)
        return {
            "model": Path(self.staged.source).name,
            "recipe": self.recipe.name,
            "SQNR": "not compared" if worst is None else str(worst),
            "quantized": ", ".join(map(str, self.plan.coverage())),
            "tensors": f"{placed[0]}, of these {placed[1]} weights",
        }

    def __repr__(self) -> str:
        """Return the verdict in one line; models and statistics have no readable form."""
        return f"QuantizeResult({', '.join(f'{name}: {text}' for name, text in self._facts().items())})"

    def _repr_html_(self) -> str:
        """Return the verdict as a small table, for notebooks."""
        rows = (f"<tr><th>{name}</th><td>{escape(text)}</td></tr>" for name, text in self._facts().items())
        return f"<table>{''.join(rows)}</table>"


def quantize(
    model: str | Path | onnx.ModelProto,
    data: Data | None,
    output: str | Path | None = None,
    *,
    recipe: str | Path | Recipe = DEFAULT_RECIPE,
    calibrator: str | None = None,
    rounding: str | None = None,
    statistics: str | Path | Statistics | None = None,
    moments: str | Path | Moments | None = None,
    encodings: ExternalEncodingsFile | None = None,
    missing: Missing = "stop",
    floats: FloatOptions = ALL_FLOAT32,
    promise: AccuracyTarget | None = None,
    protect: float | ProtectAuto | None = PROTECT_AUTO,
    runtime: str | None = None,
    ray: str | None = None,
    options: RunOptions | None = None,
    notes: Callable[[QuantizeResult], NodeNotes] | None = None,
) -> QuantizeResult:
    """Quantize `model` with `data` and write the Q/DQ model to `output`.

    The file is read back, checked and run on one feed before it takes its name. A form without kernels in
    ONNX Runtime is checked by ONNX's rules alone, with a note in the evaluation.

    Args:
        model: a path or a ModelProto, which is not changed.
        data: a file or a folder of arrays or images, arrays, an iterable of feeds such as a torch DataLoader,
            or a function that creates one; read once. None is allowed with `statistics`, or if no activation
            needs statistics; the result is then not compared.
        output: where to write the Q/DQ model; None writes nothing.
        recipe: a name, a YAML file or a Recipe.
        calibrator: for activations; overrides the recipe's.
        rounding: of weights: auto, nearest, gptq or qronos; overrides the recipe's.
        statistics: recorded earlier, so that nothing is observed; they must be of `data`, if both are given.
        moments: of the inputs of layers, from `gather_moments`: weights are rounded by them, not by `data`.
        encodings: scales of another tool, a file or a dictionary of onnxruntime's overrides. They are kept
            exactly, and their formats override the recipe; entries with only a range get the recipe's format.
            Only tensors without an entry are observed.
        missing: treatment of activations without an entry if there are neither data nor statistics.
        floats: the type of the non-quantized part; tensors that do not fit in it stay in float32.
        promise: accuracy to keep; the cheapest groups of layers that do are not quantized.
        protect: without a promise, dB of the outputs below which another calibrator than `best_error` is
            tried, activations are smoothed if the data can be read again, and a few layers stay in float, up
            to one percent of the multiply-adds for each missing dB, see `protect_outputs`; None for none,
            "auto" for 20 dB if activations are quantized. Encodings of another tool are used as they are.
        runtime: such as `onnxruntime==1.18`; the written model is kept to this release, or rejected.
        ray: address of a Ray cluster, or "local", that observes, gathers moments and rounds weights by them;
            the written model is the same to the bit.
        options: batch, threads, device and how data is read.
        notes: called with the result; what it returns becomes metadata of nodes of the Q/DQ model. The bits
            of the model then depend on all that the notes depend on.

    Raises an OnnxfqError in one line, and writes nothing, if a stage fails.
    """
    options = options or RunOptions()
    check_model_output(output, model, data, statistics, moments, encodings, recipe)
    if isinstance(protect, str) and protect != PROTECT_AUTO:
        raise RecipeError(f"protect is {protect!r}; give dB, None or {PROTECT_AUTO!r}")
    chosen, release = _choose_recipe(recipe, calibrator, rounding), release_of(runtime)
    clock = _Clock()
    inputs = open_inputs(model, data, chosen, options, output=output, observed=statistics is not None)
    release.check_opset(inputs.model.opset, f"{inputs.model.source} is at")
    known = moments if moments is None or isinstance(moments, Moments) else Moments.load(moments)
    with ReferenceRuns(inputs.reference, inputs.judged, options.threads, options.device) as runs:
        job = _Job(encodings, missing, statistics, known, floats, release, promise, ray, options, clock, runs)
        made = job.keep(job.prepare(job.equalize(inputs, chosen), chosen))
        built = job.build(made)
        least = protect
        if isinstance(least, str):
            least = PROTECT_DB if made.kept.plan.activations else None
        if promise is None and encodings is None:
            if least is not None and is_low(built.evaluation, least):
                made, built = job.repair(inputs, made, built, least)
            made, built = job.round_auto(made, built)
    kept = made.kept
    warn_zeroed_values(find_zeroed_values(kept.plan, kept.statistics, built.encodings))
    if notes is not None:
        note_nodes(built.qdq, notes(job.result(made, built)))
    write_model(built.qdq, output, made.inputs.kept, options.threads)
    return job.result(made, built)


class _Built(NamedTuple):
    """The forms of a plan, compared."""

    encodings: Encodings
    simulation: onnx.ModelProto
    qdq: onnx.ModelProto
    floats: FloatPlan | None
    evaluation: Evaluation
    corrected: BiasCorrection | None


class _Made(NamedTuple):
    """A plan with encodings, for a model whose channels may be equalized."""

    inputs: QuantizeSession
    equalized: Equalization | None
    kept: Protected
    recalibration: Recalibration | None = None
    auto_rounding: AutoRounding | None = None


@dataclass(frozen=True)
class _Job:
    """Arguments of a call of `quantize` that all its attempts share."""

    encodings: ExternalEncodingsFile | None
    missing: Missing
    statistics: str | Path | Statistics | None
    moments: Moments | None
    floats: FloatOptions
    release: Release
    promise: AccuracyTarget | None
    ray: str | None
    options: RunOptions
    clock: _Clock
    runs: ReferenceRuns

    def equalize(
        self, inputs: QuantizeSession, recipe: Recipe
    ) -> tuple[QuantizeSession, Equalization | None]:
        """Return `inputs` with the model that the recipe wants equalized, and what was done."""
        found = equalize_inputs(inputs, recipe, self.options, self.encodings, self.statistics is not None)
        if found[1] is not None:
            self.clock.lap("equalize")
        return found

    def prepare(self, equalized: tuple[QuantizeSession, Equalization | None], recipe: Recipe) -> _Made:
        """Return the plan, its statistics and encodings, and rounded weights."""
        inputs, clock = equalized[0], self.clock
        planned = plan_encodings(inputs.ranked, recipe, self.encodings)
        if inputs.feeds is None and self.statistics is None:
            planned = planned.without_missing(self.missing)
        clock.lap("plan")
        observed = inputs.feeds is not None and self.statistics is None and planned.unknown.activations
        if self.ray is not None and not observed and not is_shared(planned.plan):
            raise DataError(
                f"Ray cluster {self.ray!r} has nothing to share: no activation is observed, and recipe "
                f"{recipe.name} rounds no weight by gptq; leave it out"
            )
        found = gather_statistics(inputs, planned.unknown, self.statistics, self.options, self.ray)
        clock.lap("observe")
        self.runs.start(inputs.kept)
        weights = None
        if planned.matched is None:
            progress = self.options.stage("calibrate", len(planned.plan.weights))
            weights = encode_weights(inputs.model, planned.plan, progress)
        kept = Protected.of(inputs.model, recipe, planned, found, weights)
        clock.lap("calibrate")
        kept = kept.rounded(
            round_given(inputs, kept.plan, kept.encodings, self.options, self.moments, self.ray)
        )
        clock.lap("round")
        return _Made(*equalized, kept)

    def result(self, made: _Made, built: _Built) -> QuantizeResult:
        """Return the result."""
        inputs, equalized, kept, recalibration, auto_rounding = made
        written = inputs.model if kept.rounding is None else kept.rounding.model
        lines = [
            compare_stored(written, kept.plan, built.encodings).line,
            describe_unreached(built.encodings),
        ]
        notes = (*inputs.model.notes, *filter(None, lines))
        return QuantizeResult(
            staged=replace(inputs.model, notes=notes) if any(lines) else inputs.model,
            recipe=kept.recipe,
            plan=kept.plan.model_copy(update={"equalization": equalized}),
            statistics=kept.statistics,
            encodings=built.encodings,
            qdq=embed_weights(inputs.model, built.qdq),
            staged_simulation=built.simulation,
            evaluation=built.evaluation,
            floats=built.floats,
            fitted=kept.planned.matched,
            seconds=self.clock.seconds,
            scratch=inputs.scratch,
            sensitivity=kept.sensitivity,
            rounding=kept.rounding,
            bias_correction=built.corrected,
            samples=tuple(inputs.kept[:RANKING_FEEDS]),
            recalibration=recalibration,
            auto_rounding=auto_rounding,
        )

    def keep(self, made: _Made) -> _Made:
        """Return `made` itself if nothing is promised, else the plan that keeps the promise."""
        promise = self.promise
        if promise is None:
            return made
        if promise.min_sqnr is not None and self.encodings is None:
            made = self.recalibrate(made, promise.min_sqnr)
        kept = keep_promise(made.inputs, made.kept, self.encodings, promise, self.options)
        self.clock.lap("protect")
        return made._replace(kept=kept)

    def build(self, made: _Made) -> _Built:
        """Return both forms of the plan, compared with the float model."""
        inputs, kept = made.inputs, made.kept
        encoded = with_half_scales(kept.encodings, self.floats.name)
        model = inputs.model if kept.rounding is None else kept.rounding.model
        corrected = self._correct(inputs, model, kept, encoded)
        if corrected is not None:
            model = corrected.model
            self.clock.lap("correct")
        simulation, qdq = insert_forms(replace(inputs, model=model), kept.plan, encoded, self.floats)
        if corrected is not None:
            for proto in (simulation, qdq):
                corrected.mark(proto)
        self.clock.lap("insert")
        cast = cast_rest(inputs, qdq, self.floats, self.options)
        qdq = self.release.limit_model(cast.qdq, kept.recipe.name)
        self.clock.lap("cast")
        twins = cast.floats is None
        evaluation = compare_forms(
            inputs, simulation, cast.comparable, self.options, twins=twins, floats=self.runs
        )
        self.clock.lap("evaluate")
        return _Built(encoded, simulation, qdq, cast.floats, evaluation, corrected)

    def _correct(
        self, inputs: QuantizeSession, model: Model, kept: Protected, encodings: Encodings
    ) -> BiasCorrection | None:
        """Return what corrected biases gain; None if the recipe does not ask for it."""
        if kept.recipe.bias_correction == "none":
            return None
        if self.promise is not None and self.promise.max_drop is not None:
            return BiasCorrection(model, why="the promised metric was measured without it")
        return correct_biases(inputs, model, kept.plan, encodings, self.options)

    def round_auto(self, made: _Made, built: _Built) -> tuple[_Made, _Built]:
        """Return `made` and `built` with weights rounded by moments, if these make most of the noise."""
        shares = find_noisy_outputs(made.kept.recipe, built.evaluation)
        # Moments have no sums over what is not a number.
        if not shares or len(made.inputs.kept) < 2 or self.options.data.nonfinite != "stop":
            return made, built
        why = find_obstacle(made.inputs.model, made.kept.plan)
        if why:
            return made._replace(auto_rounding=AutoRounding(shares, why=why)), built
        kept = round_auto(made.inputs, made.kept, self.options, self.ray)
        self.clock.lap("round")
        if kept.rounding is None or not kept.rounding.layers:
            return made._replace(auto_rounding=AutoRounding(shares, why=NONE_ROUNDED)), built
        other = self.build(made._replace(kept=kept))
        found = confirm_rounding(made.inputs, shares, built.simulation, other.simulation, self.options)
        self.clock.lap("evaluate")
        made = made._replace(auto_rounding=found)
        return (made._replace(kept=kept), other) if found.is_kept else (made, built)

    def repair(
        self, inputs: QuantizeSession, made: _Made, built: _Built, least: float
    ) -> tuple[_Made, _Built]:
        """Return what helps most of the remedies for outputs below `least` dB.

        Another calibrator is tried first, which costs nothing at run time; then activations are smoothed,
        which costs no layer; then a few layers may stay in float.
        """
        recalibrated = self.recalibrate(made, least)
        if recalibrated.kept is not made.kept:
            built = self.build(recalibrated)
        made = recalibrated
        if not is_low(built.evaluation, least):
            return made, built
        smoothed = self._smooth(inputs, made)
        if smoothed.kept is not made.kept:
            other = self.build(smoothed)
            if lowest_sqnr(other.evaluation) > lowest_sqnr(built.evaluation):
                made, built = smoothed, other
        else:
            made = smoothed
        if is_low(built.evaluation, least):
            kept = protect_outputs(made.inputs, made.kept, least, self.options)
            self.clock.lap("protect")
            changed, made = kept.recipe != made.kept.recipe, made._replace(kept=kept)
            built = self.build(made) if changed else built
        return made, built

    def recalibrate(self, made: _Made, least: float) -> _Made:
        """Return `made` with the calibrator of the best outputs, if one restores `least` dB or gains much."""
        kept, found = recalibrate(made.inputs, made.kept, least, self.options)
        self.clock.lap("recalibrate")
        return made._replace(kept=kept, recalibration=found)

    def _smooth(self, inputs: QuantizeSession, made: _Made) -> _Made:
        """Return the plan of the smoothed model, or `made` with the record that smoothing changes nothing."""
        recipe, feeds = made.kept.recipe, inputs.feeds
        asked = recipe.smooth != "none" or recipe.activations is None
        recorded = self.statistics is not None or self.moments is not None  # of the model as it is
        if asked or recorded or feeds is None or not feeds.source.repeats:
            return made
        recipe = recipe.override(smooth="auto")
        equalized = self.equalize(inputs, recipe)
        done = equalized[1]
        if done is None or not done.changed:
            return made._replace(equalized=done)
        return self.prepare(equalized, recipe)._replace(recalibration=made.recalibration)


def _choose_recipe(recipe: str | Path | Recipe, calibrator: str | None, rounding: str | None) -> Recipe:
    """Return the loaded recipe. Raises RecipeError if its target or its rounding has no written form."""
    chosen = load_recipe(recipe)
    if not target_by_name(chosen.target).is_written:
        raise RecipeError(
            f"recipe {chosen.name}: quantize writes a Q/DQ model, and target {chosen.target} has no form for "
            "it; choose another target, or insert fake-quant nodes with the stages"
        )
    for name, value in chosen.simulation.changes.items():
        raise RecipeError(f"recipe {chosen.name}: {explain_mode(name, value)}")
    chosen = chosen if calibrator is None else chosen.override(activations={"calibrator": calibrator})
    return chosen if rounding is None else chosen.override(weights={"rounding": rounding})


class _Clock:
    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self._last = time.perf_counter()

    def lap(self, stage: str) -> None:
        now = time.perf_counter()
        self.seconds[stage] = self.seconds.get(stage, 0.0) + now - self._last
        self._last = now
