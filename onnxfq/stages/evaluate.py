"""`evaluate`: a reference and candidates on the same feeds."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path

import onnx

from onnxfq.choices import Kernels
from onnxfq.data import Data, Feed
from onnxfq.data.labels import Labels, read_truth
from onnxfq.data.replay import KeptFeeds
from onnxfq.data.stream import count_runs
from onnxfq.documents.scores import CandidateScore, Evaluation
from onnxfq.errors import DataError, ModelError, OnnxfqError, nearest
from onnxfq.execution.channel_order import explain_channel_order, find_channels
from onnxfq.execution.column_parts import find_columns, list_open, with_columns
from onnxfq.execution.metric_runs import run_metric
from onnxfq.execution.reference_runs import keep_outputs
from onnxfq.execution.sides import LEAST_FEEDS, Side
from onnxfq.graph.external.sizes import is_large
from onnxfq.graph.io.load import read_model
from onnxfq.graph.patterns.logits import judge_given
from onnxfq.graph.signature import computed_tensors, output_names, with_inputs_of
from onnxfq.interchange.genai_folder import find_decoder, is_folder, open_folder
from onnxfq.metrics import Mean, Metric, check_labels, find_metric, name_metric
from onnxfq.passes.equalize import is_equalized
from onnxfq.passes.float_caches import with_float_caches
from onnxfq.passes.insert_fake_quantize import switch_activations
from onnxfq.passes.integer_matmul import integer_products
from onnxfq.quantized.forms import is_quantized
from onnxfq.quantized.input_ranges import InputRanges
from onnxfq.quantized.qonnx import pairs_of_qonnx
from onnxfq.runtime.unsupported_ops import explain_unsupported
from onnxfq.stages.inputs import QuantizeSession, with_unique_names
from onnxfq.stages.insert import find_target
from onnxfq.stages.options import RunOptions, choose_padding, open_feeds, shows_progress
from onnxfq.stages.score import score_models
from onnxfq.support.progress import counting
from onnxfq.targets.target import TARGETS, Opener, collect_parts

SCALED_TENSORS = (
    "its channels were equalized or centered, so scores of inner tensors compare other values; quantize "
    "with --repair off to compare inner tensors"
)
"""Note on the scores of inner tensors after equalization."""


@shows_progress
def evaluate(
    reference: str | Path | onnx.ModelProto,
    candidate: str | Path | onnx.ModelProto | Mapping[str, str | Path | onnx.ModelProto],
    data: Data,
    *,
    labels: Labels | None = None,
    per_tensor: bool = False,
    kernels: Kernels = "float",
    runtime: str = "onnxruntime",
    metric: str | Metric | None = None,
    options: RunOptions | None = None,
) -> Evaluation:
    """Compare one candidate, or several by name, with the reference in one pass over the feeds.

    Args:
        reference: the float model: a path or a ModelProto, or a folder of ONNX Runtime GenAI.
        candidate: a Q/DQ or fake-quant model, or several by name. If all are folders, the graphs of each run
            as one; otherwise the decoder of a folder does, on what the float graphs in front of it give.
        data: as `quantize` takes it.
        labels: the class of each row of the first output in the order of the feeds, numbers or texts, or a
            .npy, .npz or text file of them. With a limit of samples in `options` the first ones count.
        per_tensor: score each quantized inner tensor too, in the order of computation.
        kernels: "integer" sums int8 products of Q/DQ candidates in integers, as fused kernels do.
        runtime: runs the candidates on the CPU: onnxruntime, or a target that opens models, such as openvino.
            The reference always runs in ONNX Runtime. There a candidate runs without fused kernels, as its
            pairs are defined, and once more in the session of its users, if its target has one here.
        metric: of the task: a name of `onnxfq.metrics.METRICS`, package.module:function, or a function. It
            is called once for each model with the outputs of each sample, and the labels or else the samples.
        options: batch, threads, device and progress.

    Raises an OnnxfqError in one line.
    """
    options = choose_padding(options or RunOptions(), metric is not None or labels is not None)
    check_labels(metric, labels is not None)
    measure = None if metric is None else find_metric(metric)
    opener = _find_opener(runtime)
    given = candidate if isinstance(candidate, Mapping) else {_label(candidate, "candidate"): candidate}
    whole = all(map(is_folder, given.values()))
    with open_folder(reference, data, None, options.data.limit, whole) as (float_model, feeds_given, _):
        base = _read_runnable(float_model)
        data = data if feeds_given is None else feeds_given
        candidates = {
            name: with_inputs_of(with_float_caches(_read_runnable(find_decoder(one, whole))), base, name)
            for name, one in given.items()
        }
        notes = [] if opener is None else [f"the candidates ran in {runtime}, the reference in onnxruntime"]
        if is_quantized(base) and not any(map(is_quantized, candidates.values())):
            notes.append("the reference is quantized and no candidate is: the float model comes first")
        if kernels == "integer":
            for name, proto in candidates.items():
                candidates[name] = _with_integers(name, proto, notes)
        quantized = {name for proto in candidates.values() for name in _find_quantized_tensors(proto, base)}
        # In the order of computation: the first low score shows where the noise arises.
        tensors = [name for node in base.graph.node for name in node.output if name in quantized]
        common = computed_tensors(base).intersection(*map(computed_tensors, candidates.values()))
        judged = judge_given(base, common)
        if absent := [name for name in judged.sources if name not in common]:
            notes.append(
                f"not every candidate has {absent[0]!r}: no SQNR judges the outputs that come from it"
            )
    # State passes from one sample to the next; with batch 0 feeds stay as they are given.
    batch = min(options.batch, 1) if judged.states else options.batch
    feeds = open_feeds(base, data, batch, options.data.unsurveyed, candidates.values())
    given_feeds: Iterable[Feed] = feeds
    # With a metric labels belong to samples, whatever the first output is.
    truth = None if labels is None else read_truth(labels, metric)
    classes = truth if metric is None else None
    kept, device = KeptFeeds(feeds), options.device if opener is None else "cpu"
    openers = dict.fromkeys(candidates, opener) if opener is not None else {}
    forms = dict(candidates)
    if opener is None and kernels == "float" and not per_tensor:
        first, given_feeds = kept.read_samples(1), kept
        for name, proto in candidates.items():
            own = _find_users_sessions(name, proto, first, notes)
            forms |= dict.fromkeys(own, proto)
            openers |= own
    if classes is not None and not judged.states and find_channels(feeds.inputs) is not None:
        notes += explain_channel_order(base, kept, classes, options.threads, device)
        given_feeds = kept
    if list_open(judged) and not judged.states:
        outputs = keep_outputs(base, judged, kept.read_samples(LEAST_FEEDS), options.threads, options.device)
        judged, given_feeds = with_columns(judged, find_columns(judged, output_names(base), outputs)), kept
    ranges = InputRanges()
    found = score_models(
        base,
        forms,
        ranges.watch(given_feeds),
        reference_name=_label(reference, "float"),
        labels=classes,
        more_labels=options.data.limit is not None,
        tensors=tensors if per_tensor else (),
        threads=options.threads,
        progress=counting("evaluate", feeds.runs),
        device=device,
        exact=options.exact,
        judged=judged.within(common, ("logits", "sources")),
        openers=openers,
    )
    disagreeing = [f"{name}: {line}" for name, proto in candidates.items() for line in ranges.explain(proto)]
    scaled = [name for name, proto in candidates.items() if per_tensor and is_equalized(proto)]
    notes += [f"{name}: {SCALED_TENSORS}" for name in scaled if not is_equalized(base)]
    found = found.model_copy(update={"notes": (*found.notes, *notes, *disagreeing)})
    if metric is None or measure is None:
        return found
    run = partial(run_metric, measure, feeds=feeds, labels=truth, threads=options.threads)
    values = {
        name: run(Side(proto, output_names(proto), options.exact, opener=openers.get(name)), device)
        for name, proto in {"": base, **forms}.items()
    }
    scores = tuple(_with_metric(one, values[one.candidate], values[""]) for one in found.candidates)
    update = {"metric": name_metric(metric), "metric_value": float(values[""]), "candidates": scores}
    return found.model_copy(update=update)


def _with_metric(score: CandidateScore, value: float, reference: float) -> CandidateScore:
    """Return a score with the metric of its candidate, and its interval where metrics have one."""
    ends = value.interval(reference) if isinstance(value, Mean) and isinstance(reference, Mean) else None
    return score.model_copy(update={"metric": float(value), "metric_interval": ends})


def compare_forms(
    inputs: QuantizeSession,
    simulation: onnx.ModelProto,
    qdq: onnx.ModelProto | None,
    options: RunOptions,
    *,
    feeds: Sequence[Feed],
    least: int,
) -> Evaluation:
    """Compare a quantized model with the float model.

    With options.exact they are compared on all feeds, without graph optimisation. Otherwise feeds are taken
    until the interval of the SQNR is narrow. With state that is fed back all of them are run.

    Args:
        inputs: the float model, and the samples that were kept for this.
        simulation: the model with FakeQuantize nodes.
        qdq: the model with Q/DQ pairs; left out if ONNX Runtime lacks kernels for it. None compares the
            simulation alone.
        options: threads, device and progress.
        feeds: the samples.
        least: how many of them are compared in any case.
    """
    switched = None if is_large(simulation) else switch_activations(simulation)
    candidates = {"simulated": switched or simulation}
    if qdq is not None and qdq is not simulation and not explain_unsupported(qdq):
        candidates["Q/DQ"] = with_float_caches(qdq)
    # Without a feed nothing is known about a candidate, least of all that it is equal.
    found = inputs.score(
        candidates if feeds else {},
        feeds,
        options,
        progress=counting("evaluate", count_runs(feeds)),
        narrow_from=0 if options.exact or inputs.judged.states else least,
        weights_alone=switched is not None,
    )
    notes = ["no data to compare with was given"] if inputs.feeds is None else []
    scores = tuple(number_samples(score, inputs.feeds, feeds) for score in found.candidates)
    return found.model_copy(update={"notes": (*found.notes, *notes), "candidates": scores})


def number_samples(score: CandidateScore, kept: KeptFeeds | None, feeds: Sequence[Feed]) -> CandidateScore:
    """Return `score` with the worst samples numbered as in the data, of which `feeds` were kept."""
    numbers = [(None if kept is None else kept.number(feeds[one.sample]), one) for one in score.worst_samples]
    worst = (one.model_copy(update={"sample": at}) for at, one in numbers if at is not None)
    return score.model_copy(update={"worst_samples": tuple(worst)})


def _read_runnable(model: str | Path | onnx.ModelProto) -> onnx.ModelProto:
    """Return a model as ONNX Runtime runs it, with pairs for quantizers of QONNX."""
    proto, _, source = read_model(model)
    return with_unique_names(pairs_of_qonnx(proto, source))


def _find_opener(runtime: str) -> Opener | None:
    """Return what opens models in `runtime`; None for ONNX Runtime. Raises DataError for an unknown name."""
    openers = collect_parts(lambda target: target.values)
    if runtime == "onnxruntime":
        return None
    if runtime in openers:
        return openers[runtime]
    raise DataError(f"unknown runtime {runtime!r}{nearest(runtime, openers) or f'; known: {[*openers]}'}")


def _find_users_sessions(
    name: str, proto: onnx.ModelProto, samples: Sequence[Feed], notes: list[str]
) -> dict[str, Opener]:
    """Return what opens a candidate in the runtime of its target, by a name for its line; note why not.

    A processor's own type of the float part has another line.
    """
    target = TARGETS.get(find_target(proto))
    if target is None or target.values is None or not samples:
        return {}
    found: dict[str, Opener] = {}
    where = name
    try:
        where = f"{name} in {target.release()}"
        openers = {where: target.values}
        if (differs := target.differs()) and target.open is not None:
            openers[f"{where}, {differs}"] = target.open
        for where, opener in openers.items():
            opener(proto, 1)(samples[0])
            found[where] = opener
    except OnnxfqError as error:
        notes.append(f"{where} does not run as its users run it: {error}")
    return found


def _with_integers(name: str, proto: onnx.ModelProto, notes: list[str]) -> onnx.ModelProto:
    """Return the candidate with integer products. Raises ModelError if it has none."""
    made = integer_products(proto)
    if not made.products:
        why = next(iter(made.left.values()), "nothing in it multiplies two Q/DQ tensors")
        raise ModelError(f"{name} has no product of int8 numbers: {why}; evaluate it with float kernels")
    left = "".join(f"; {node!r} in float: {why}" for node, why in made.left.items())
    notes.append(f"{name}: {len(made.products)} products summed in whole numbers{left}")
    return made.proto


def _label(model: object, otherwise: str) -> str:
    return Path(model).name if isinstance(model, (str, Path)) else otherwise


def _find_quantized_tensors(candidate: onnx.ModelProto, reference: onnx.ModelProto) -> Iterator[str]:
    """Yield the tensors computed in `reference` whose quantized form is computed in `candidate`."""
    computed = computed_tensors(reference)
    for node in candidate.graph.node:
        for name in node.output:
            tensor, _, kind = name.rpartition("/")
            if kind in ("dq", "fq"):
                yield from {tensor, tensor.removesuffix("/equalized")} & computed
