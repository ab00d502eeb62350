"""`quantize`: all stages in a row and nothing else, with the files they leave."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import numpy as np
import onnx

from onnxfq.calibration.statistics import Statistics
from onnxfq.data import Data, Feed, Feeds, sample_digest
from onnxfq.data.replay import FirstSeen, KeptFeeds
from onnxfq.documents.cast_plan import ALL_FLOAT32, FloatOptions, FloatPlan
from onnxfq.documents.encodings import Encodings
from onnxfq.documents.plan import Plan
from onnxfq.documents.recipe import DEFAULT_RECIPE, Recipe, load_recipe
from onnxfq.documents.scores import Evaluation
from onnxfq.errors import DataError, RecipeError
from onnxfq.graph.io.data_files import check_model_output
from onnxfq.graph.io.external_tensors import held, is_large, scratch_for
from onnxfq.graph.io.load import MIN_OPSET, normalised, read_model
from onnxfq.graph.io.save import save
from onnxfq.graph.io.scratch_file import Scratch, weights_in
from onnxfq.graph.model import Model
from onnxfq.graph.signature import number_outputs, output_names
from onnxfq.interchange import GivenFile, read_given
from onnxfq.interchange.apply import Fitted
from onnxfq.numerics.half_types import HALF_TYPES
from onnxfq.passes.cast_floats import cast_floats
from onnxfq.runtime.device_choice import choose_device
from onnxfq.runtime.session import Session
from onnxfq.runtime.type_inference import lacks_ranks, with_run_ranks
from onnxfq.runtime.unsupported_ops import cannot_run
from onnxfq.stages.calibrate import calibrate, calibrated_part
from onnxfq.stages.cast import decide_floats
from onnxfq.stages.evaluate import _runnable
from onnxfq.stages.external_encodings import calibrate_rest, left_in_float, planned_with, rest_of
from onnxfq.stages.half_scales import with_half_scales
from onnxfq.stages.insert import insert_fake_quantize, insert_qdq, with_provenance
from onnxfq.stages.observe import collect_statistics
from onnxfq.stages.observers import ObserveOptions
from onnxfq.stages.options import RunOptions, open_feeds
from onnxfq.stages.score import score_models
from onnxfq.support.digests import DATA_MODULUS
from onnxfq.targets.onnxruntime.releases import release_of
from onnxfq.targets.registry import prepare_model, target_by_name

log = logging.getLogger(__name__)

Missing = Literal["stop", "float"]
"""What is done with activations that a file of encodings lacks, and no data is given for."""


@dataclass(frozen=True)
class QuantizeResult:
    """Everything that `quantize` found and made.

    qdq, simulation: the model with Q/DQ as its target wants it, and with FakeQuantize nodes. evaluation: both
    against the float model on some feeds of the calibration data, spread over all. floats: what of the Q/DQ
    model stays in float32, None where all that is not quantized does. fitted: what a file of encodings gave,
    None without one. seconds: by stage. Weights of models of over 512 MB, and of a given proto of over
    128 MB, are in a temporary file, which is there as long as this is: `save` writes them.
    """

    model: Model
    recipe: Recipe
    plan: Plan
    statistics: Statistics
    encodings: Encodings
    qdq: onnx.ModelProto
    simulation: onnx.ModelProto
    evaluation: Evaluation
    floats: FloatPlan | None = None
    fitted: Fitted | None = None
    seconds: dict[str, float] = field(default_factory=dict)
    scratch: Scratch | None = field(default=None, repr=False, compare=False)


def quantize(
    model: str | Path | onnx.ModelProto,
    data: Data | None,
    output: str | Path | None = None,
    *,
    recipe: str | Path | Recipe = DEFAULT_RECIPE,
    calibrator: str | None = None,
    statistics: str | Path | Statistics | None = None,
    encodings: GivenFile | None = None,
    missing: Missing = "stop",
    floats: FloatOptions = ALL_FLOAT32,
    runtime: str | None = None,
    options: RunOptions | None = None,
) -> QuantizeResult:
    """Quantize `model` with `data` and write the Q/DQ model to `output`.

    data: a file or a folder of arrays or images, arrays, an iterable of feeds such as a torch DataLoader,
    or a function that makes one; gone through once. options: how it is read, among others.
    recipe: a name, a YAML file or a Recipe. calibrator: for activations, in place of the recipe's.
    statistics: gathered before, so that nothing is observed; data may then be None, as it may be where no
    activation needs statistics, and the result is not compared; other data than theirs is refused.
    encodings: scales of another tool, a file or a dictionary of onnxruntime's overrides: they are taken
    exactly, and their formats go before the recipe's; what the file has of ranges alone has that of the
    recipe. Nothing is observed but what it lacks. missing: what becomes of activations that it lacks where
    there are neither data nor statistics.
    floats: the type of what is not quantized; tensors that do not fit in it stay in float32.
    runtime: as `onnxruntime==1.18`, which the written model is kept to, or refused for.
    The file is read back, checked and run on one feed before it takes its name; one in a form that ONNX
    Runtime has no kernels for is checked by ONNX's rules alone, and a note of the evaluation says so. Raises
    an OnnxfqError in one line, and writes nothing, when a stage refuses.
    """
    options = options or RunOptions()
    choose_device(options.device)  # one that is missing is missed now, not after the plan
    if output is not None:
        check_model_output(output, model, data, statistics, encodings)
    given = None if encodings is None else read_given(encodings)
    chosen = load_recipe(recipe)
    if calibrator is not None:
        chosen = chosen.with_calibrator(calibrator)
    if not target_by_name(chosen.target).is_written:
        raise RecipeError(
            f"recipe {chosen.name}: quantize writes a model to hand over, and target {chosen.target} has "
            "none; run the stages and insert fake-quant nodes, or name another target"
        )
    release = None if runtime is None else release_of(runtime)
    clock = _Clock()
    # A given model is held once by its owner, and not a second time.
    folder = None if output is None else Path(output).parent
    scratch = scratch_for(model, folder) if isinstance(model, onnx.ModelProto) else None
    with weights_in(scratch):
        proto, sha256, source = read_model(model)
    reference = _runnable(proto)
    loaded = prepare_model(normalised(proto, sha256, source, chosen.existing), chosen.target)
    if release is not None:
        release.check_opset(loaded.opset, f"{source} is at")
    feeds = None if data is None else open_feeds(loaded.proto, data, options.batch, options.data)
    source_feeds: Iterable[Feed] = feeds or ()
    planned = loaded
    if feeds is not None and statistics is None and lacks_ranks(loaded):
        source_feeds = first_seen = FirstSeen(feeds)
        planned = with_run_ranks(loaded, first_seen.first)
    plan, fitted = planned_with(given, planned, chosen)
    if fitted is not None and feeds is None and statistics is None:
        if missing == "stop":
            fitted.refuse_missing(
                "give data to calibrate them, or --missing float to leave what needs them in float"
            )
        plan = left_in_float(plan, fitted)
    clock.lap("plan")
    kept = KeptFeeds(source_feeds)
    wanted = plan if fitted is None else rest_of(plan, fitted)
    found = _statistics(loaded, wanted, feeds, kept, statistics, options)
    clock.lap("observe")
    encoded = (
        calibrate(loaded, plan, found) if fitted is None else calibrate_rest(loaded, plan, fitted, found)
    )
    plan = calibrated_part(plan, encoded.without_values)
    half = HALF_TYPES.get(floats.name)
    if half is not None:
        encoded = with_half_scales(encoded, floats.name)
    clock.lap("calibrate")
    scratch = scratch or scratch_for(loaded.proto, folder)
    with weights_in(scratch):
        simulation = insert_fake_quantize(loaded, plan, encoded)
        qdq = insert_qdq(loaded, plan, encoded, lowest_opset=half.min_opset if half else MIN_OPSET)
        clock.lap("insert")
        kept_floats, run = None, qdq
        if half is not None:
            observing = ObserveOptions(threads=options.threads, device=options.device)
            kept_floats = decide_floats(loaded, qdq, kept.feeds, floats, observing)
            # Compared with inputs and outputs as the float model has them.
            run = cast_floats(qdq, kept_floats.model_copy(update={"io": False}))
            qdq = with_provenance(cast_floats(qdq, kept_floats), plan, encoded, floats.name)
            clock.lap("cast")
    if release is not None:
        qdq = release.kept_to(qdq, chosen.name)
    no_kernels = cannot_run(run)
    # Without a feed there is nothing to tell of any candidate, least of all that it is equal.
    candidates = {"fake-quant": simulation} | ({} if no_kernels else {"Q/DQ": run})
    comparable = bool(number_outputs(reference))
    evaluation = score_models(
        reference,
        candidates if kept.feeds and comparable else {},
        kept.feeds if comparable else (),
        threads=options.threads,
        progress=options.stage("evaluate", len(kept.feeds)),
        device=options.device,
    )
    if data is None:
        notes = ["no data to compare with was given"]
    else:
        notes = [f"Q/DQ model not run: {no_kernels}"] if no_kernels else []
        notes += [] if comparable else ["not compared: no output of the model holds numbers"]
    evaluation = evaluation.model_copy(update={"notes": (*evaluation.notes, *notes)})
    clock.lap("evaluate")
    if output is not None:
        tried = None if no_kernels or not kept.feeds else kept.feeds[0]
        save(qdq, output, lambda path, weights: _try(path, weights, tried, options.threads))
    if scratch is not None and not is_large(loaded.proto):
        qdq, simulation = held(qdq), held(simulation)
    return QuantizeResult(
        model=loaded,
        recipe=chosen,
        plan=plan,
        statistics=found,
        encodings=encoded,
        qdq=qdq,
        simulation=simulation,
        evaluation=evaluation,
        floats=kept_floats,
        fitted=fitted,
        seconds=clock.seconds,
        scratch=scratch,
    )


def _statistics(
    model: Model,
    plan: Plan,
    feeds: Feeds | None,
    kept: KeptFeeds,
    given: str | Path | Statistics | None,
    options: RunOptions,
) -> Statistics:
    """Return the statistics given, after a look at whether they fit, or else observe."""
    if given is not None:
        found = given if isinstance(given, Statistics) else Statistics.load(given)
        found.check_model(model.sha256)
        if feeds is not None:
            digests = [sample_digest(feed) for feed in kept]
            found.check_data(sum(digests) % DATA_MODULUS, len(digests))
        return found
    if feeds is None and plan.activations:
        raise DataError(
            f"recipe {plan.recipe} needs data: {len(plan.activations)} activations are to be observed; give "
            "data, or statistics from `onnxfq observe`"
        )
    if not plan.activations:
        digests = [sample_digest(feed) for feed in kept]  # kept to compare with; no run tells anything here
        return Statistics(model.sha256, len(digests), {}, data=sum(digests) % DATA_MODULUS)
    ordered = any(p.spec.calibrator.partition(":")[0] == "moving_average" for p in plan.activations)
    observing = ObserveOptions(
        threads=options.threads,
        nonfinite=options.data.nonfinite,
        feed_ranges=ordered,
        progress=options.stage("observe", None if feeds is None else feeds.runs),
        device=options.device,
    )
    return collect_statistics(model, plan, kept, observing)


def _try(path: Path, weights: Path | None, feed: Feed | None, threads: int) -> None:
    """Read the model at `path` back, with its data file, and run it on `feed`. Raises ModelError."""
    proto, _, _ = read_model(path, weights)
    if feed is None:
        return
    for name, array in zip(output_names(proto), Session(proto, threads, exact=True).run(feed), strict=True):
        if isinstance(array, np.ndarray) and array.dtype.kind == "f" and np.isnan(array).any():
            log.warning("output %s of the quantized model is NaN on the first feed", name)


class _Clock:
    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self._last = time.perf_counter()

    def lap(self, stage: str) -> None:
        now = time.perf_counter()
        self.seconds[stage] = now - self._last
        self._last = now
