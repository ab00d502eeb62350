"""`score_folds`: SQNR on samples that gave no ranges, where there are too few to leave some out."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import onnx

from onnxfq.data import Feed
from onnxfq.data.digest import sample_digests
from onnxfq.data.model_inputs import input_specs
from onnxfq.data.replay import KeptFeeds
from onnxfq.documents.scores import Evaluation
from onnxfq.errors import OnnxfqError
from onnxfq.execution.sides import Side
from onnxfq.graph.external.scratch_file import weights_stored_in
from onnxfq.graph.external.sizes import is_large
from onnxfq.graph.patterns.choices import ChoiceType
from onnxfq.graph.signature import output_names
from onnxfq.passes.give_choices import with_given_choices
from onnxfq.remedies.candidate import Candidate
from onnxfq.remedies.judge import Judge
from onnxfq.stages.evaluate import number_samples
from onnxfq.stages.limits import with_limits
from onnxfq.stages.observe import collect_statistics
from onnxfq.stages.score import score_models
from onnxfq.targets.target import Opener

FOLDS = 2
"""Parts of the samples, each compared with ranges of the others; three samples are three parts.

ultraface and espcn of 3 and 4 samples come as near the truth with 2 folds as with 4, and up to 3.3 dB nearer
than on samples that gave the ranges. Ranges of a single sample are 10 dB too low on the former. Weights
rounded again in each fold change 0.5 dB at most.
"""


def score_folds(judge: Judge, candidate: Candidate, first: Evaluation) -> Evaluation:
    """Return `first` with the scores of all kept samples, each with the ranges of other folds alone.

    Factors of channels and rounded weights stay, which saw all samples.

    Args:
        judge: of the call.
        candidate: the result of all remedies.
        first: its scores on the samples that gave its ranges.

    Returns `first` itself where samples were left out, or cannot be: one sample, a stream, a promised SQNR,
    ranges or moments that were given, a calibrator that needs all samples in order, two forms that differ, a
    model too large to be open twice.
    """
    session, sources = candidate.session, judge.sources
    feeds, kept, plan = session.feeds, session.kept, candidate.plan
    given = (sources.statistics, sources.moments, sources.encodings)
    if (
        feeds is None
        or feeds.unseen
        or feeds.is_stream
        or len(kept) < FOLDS
        or len(first.candidates) != 1
        or judge.is_promised
        or any(one is not None for one in given)
        or not plan.activations
        or any(p.calibrator.is_ordered for p in plan.activations)
        or is_large(session.compared)
    ):
        return first
    folds = 3 if len(kept) == 3 else FOLDS  # so that two samples or more give ranges
    parts = [kept[fold::folds] for fold in range(folds)]
    try:
        with _without_warnings():
            models = [_leave_out(part, feeds, candidate, judge) for part in parts]
    except OnnxfqError:  # a part may give a tensor no value at all
        return first
    (seen,) = first.candidates
    with weights_stored_in(session.scratch):
        found = score_models(
            session.compared,
            {seen.candidate: models[0]},
            kept,
            threads=judge.options.threads,
            device="cpu",
            judged=session.judged,
            opener=_open_each(models, parts, session.judged.choices),
        )
    score = number_samples(found.candidates[0], feeds, kept)
    score = score.model_copy(update={"weight_shares": seen.weight_shares})
    return first.model_copy(update={"candidates": (score,), "feeds": found.feeds, "folds": folds})


def _leave_out(part: Sequence[Feed], feeds: KeptFeeds, candidate: Candidate, judge: Judge) -> onnx.ModelProto:
    """Return the simulation of `candidate` with ranges without `part`."""
    model = candidate.session.ranked
    plan = with_limits(candidate.planned.unknown, model)
    statistics = collect_statistics(model, plan, feeds.again(part), judge.options.observing)
    return candidate.with_statistics(statistics).simulate()


@contextmanager
def _without_warnings() -> Iterator[None]:
    """Say nothing about ranges of a part of the samples, which are in no file."""
    log = logging.getLogger("onnxfq")
    level = log.level
    log.setLevel(logging.ERROR)
    try:
        yield
    finally:
        log.setLevel(level)


def _open_each(
    models: Sequence[onnx.ModelProto], parts: Sequence[Sequence[Feed]], choices: Mapping[str, ChoiceType]
) -> Opener:
    """Return what opens all models as one, which runs the model of a sample's part with given choices."""
    specs = input_specs(models[0])
    models = [with_given_choices(one, choices) for one in models]
    places = {sample_digests(feed, specs): place for place, part in enumerate(parts) for feed in part}

    def open_models(model: Any, threads: int) -> Callable[[Feed], Mapping[str, Any]]:
        names = output_names(model)
        sessions = [Side(one, names, exact=True).session(threads, "cpu") for one in models]

        def run(feed: Feed) -> Mapping[str, Any]:
            outputs = sessions[places[sample_digests(feed, specs)]].run(feed, names)
            return dict(zip(names, outputs, strict=True))

        return run

    return open_models
