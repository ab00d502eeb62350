"""`diagnose`: what is wrong with a quantized file that somebody else made, and what repairs it."""

from __future__ import annotations

from collections.abc import Container
from itertools import islice
from pathlib import Path

import onnx

from onnxfq.data import Data
from onnxfq.data.labels import Labels
from onnxfq.diagnosis.diagnosis import Diagnosis
from onnxfq.diagnosis.measure import Measure
from onnxfq.diagnosis.ranking import find_suspicions
from onnxfq.diagnosis.reading.candidate import FileCandidate
from onnxfq.diagnosis.reading.float_model import FloatModel
from onnxfq.diagnosis.reading.real_outputs import give_real_outputs, take_back_outputs
from onnxfq.diagnosis.reading.switched_form import switch_form
from onnxfq.diagnosis.reading.toggles import FileToggles, without_quantizers
from onnxfq.diagnosis.recipe import recipe_text
from onnxfq.diagnosis.registry import LAYER_DETECTORS, RANGE_DETECTORS
from onnxfq.diagnosis.repairs import Repairs
from onnxfq.documents.proof import Proof
from onnxfq.errors import DataError, ModelError
from onnxfq.execution.given_choices import feeds_with_choices
from onnxfq.graph.io.data_paths import check_model_output
from onnxfq.graph.io.load import read_model, standard_form
from onnxfq.graph.normalize.experts import split_experts
from onnxfq.graph.normalize.shapes import correct_shapes
from onnxfq.graph.ops import BLOCK_PRODUCTS
from onnxfq.graph.patterns.logits import JudgedTensors, judge_given
from onnxfq.graph.signature import computed_tensors, output_names
from onnxfq.interchange.genai_folder import find_decoder, open_folder
from onnxfq.judging.written_proof import Written, prove
from onnxfq.metrics import Metric
from onnxfq.numerics.float_types import FLOAT_CODES
from onnxfq.quantized.forms import as_pairs
from onnxfq.stages.insert import find_target
from onnxfq.stages.options import RunOptions, choose_padding, open_feeds, shows_progress
from onnxfq.stages.write import write_model
from onnxfq.support.files import write_text
from onnxfq.targets.genai.experts import join_file
from onnxfq.targets.lower_fake_quantize import lower_export
from onnxfq.targets.target import target_by_name

FEEDS = 64
"""Samples of the data that are read: more of them move the ends of ranges by about a step."""

TASK_FEEDS = 1024
"""Samples that are read for a metric of the task, which single ones move."""


@shows_progress
def diagnose(
    model: str | Path | onnx.ModelProto,
    *,
    reference: str | Path | onnx.ModelProto | None = None,
    data: Data | None = None,
    labels: Labels | None = None,
    metric: str | Metric | None = None,
    target: str | None = None,
    output: str | Path | None = None,
    recipe_output: str | Path | None = None,
    options: RunOptions | None = None,
) -> Diagnosis:
    """Return what is wrong with a quantized model, ranked by what it costs, and write the repaired one.

    Args:
        model: a quantized model of any tool, with Q/DQ pairs, integer operators, FakeQuantize nodes, or
            weights in MatMulNBits and QMoE: a path, a ModelProto, or a folder of GenAI. It is not changed.
        reference: the float model that it was made of. Tensors are matched by name and by values, weights by
            values; without it the float form is derived from the file.
        data: as `quantize` takes it; at most FEEDS samples are read. Without data only the file is read.
        labels: of the data, as in `AccuracyTarget`; figures are top-1 of at most TASK_FEEDS samples.
        metric: of the task, as in `AccuracyTarget`; figures are its values.
        target: a target whose rules count too.
        output: where to write the model with all repairs; every scale that no repair names is kept exactly.
            Without a repair nothing is written.
        recipe_output: where to write the recipe that makes such a file from the float model.
        options: batch, threads and how data is read.

    Raises ModelError for a model that cannot be read, has no quantizers or an operator without a float form,
    DataError for data that does not fit it, RecipeError for an unknown target.
    """
    is_labelled = labels is not None or metric is not None
    options = choose_padding(options or RunOptions(), is_labelled)
    if output is not None:
        check_model_output(output, model, data)
        if data is None:
            raise DataError("a repair is measured; give data")
    count = TASK_FEEDS if is_labelled else FEEDS
    floats = None if reference is None else find_decoder(reference)
    with open_folder(model, data, None, count) as (decoder, feeds, _):
        candidate = _open(decoder, floats, feeds, target or "", options, count)
    if recipe_output is not None:
        recipe_text(candidate, ())  # refused before the work
    repairs = Repairs(Measure.of(candidate, options.threads, metric, labels))
    causes = repairs.confirm(find_suspicions(candidate))
    diagnosis = repairs.report(causes, (*LAYER_DETECTORS, *RANGE_DETECTORS))
    if output is not None and repairs.is_changed:
        repaired = join_file(take_back_outputs(repairs.together))
        write_model(repaired, output, candidate.feeds[:1], options.threads)
        proof = _prove(candidate, repairs.together, options.threads)
        diagnosis = diagnosis.model_copy(update={"written": str(output), "proof": proof})
    if recipe_output is not None:
        write_text(recipe_output, recipe_text(candidate, causes))
    return diagnosis


def _prove(candidate: FileCandidate, repaired: onnx.ModelProto, threads: int) -> Proof | None:
    """Return the proof of a repaired file in the runtime of its target; None without a target.

    Products of blocks need none: the figures are of that runtime, and an exact session does not round inputs.
    """
    target = candidate.target or find_target(repaired)
    is_own = any(node.op_type in BLOCK_PRODUCTS for node in repaired.graph.node)
    if not target or candidate.opened is None or is_own:
        return None
    feeds, form = candidate.split.proving, candidate.form.proto
    written = Written(repaired, repaired, form, feeds, candidate.toggles.judged, threads)
    return prove(target_by_name(target), written, lambda: candidate.expected(feeds))


def _open(
    model: str | Path | onnx.ModelProto,
    reference: str | Path | onnx.ModelProto | None,
    data: Data | None,
    target: str,
    options: RunOptions,
    count: int = FEEDS,
) -> FileCandidate:
    """Return the file with its sessions and its data."""
    read, _, source = read_model(model)
    proto, _ = lower_export(as_pairs(read, source))
    standard_form(proto)
    correct_shapes(proto)
    proto = split_experts(proto, "QMoE", source)
    give_real_outputs(proto)
    form = switch_form(proto, source)
    floats = None if reference is None else FloatModel.open(reference, proto, options.threads)
    others, read_as = () if floats is None else (floats.proto,), options.data.unsurveyed
    opened = () if data is None else open_feeds(proto, data, options.batch, read_as, others)
    feeds = list(islice(opened, count))
    if data is not None and not feeds:
        raise DataError("there is no sample in the data; give at least 1")
    candidate = FileCandidate(source, proto, form, floats, feeds, target)
    if data is not None:
        candidate.open(_open_toggles(candidate, options.threads))
    return candidate


def _open_toggles(candidate: FileCandidate, threads: int) -> FileToggles:
    """Return the session, whose model takes the choices of the reference."""
    form, floats, feeds = candidate.form, candidate.floats, candidate.feeds
    reference = without_quantizers(form) if floats is None else floats.proto
    common = computed_tensors(candidate.proto) & computed_tensors(form.proto) & computed_tensors(reference)
    judged = _judge(candidate, judge_given(reference, common), common)
    given = feeds_with_choices(reference, judged.choices, feeds, threads)
    chosen = {id(feed): one for feed, one in zip(feeds, given, strict=True)}
    return FileToggles(candidate.proto, form, judged, threads, chosen)


def _judge(candidate: FileCandidate, judged: JudgedTensors, common: Container[str]) -> JudgedTensors:
    """Return the float outputs in place and what others come from. Raises ModelError without any."""
    types, names = candidate.form_index.types, output_names(candidate.form.proto)
    names = tuple(name for name in names if types.get(name, 0) in FLOAT_CODES)
    sources = {name: of for name, of in judged.sources.items() if name in common}
    placed = (*(name for name in names if name not in judged.moved), *sources)
    if not placed and not names:
        raise ModelError(
            f"{candidate.source} has no output of floats; cut it in front of its last choice of a class"
        )
    return JudgedTensors(placed or names, sources=sources, choices=judged.choices)
