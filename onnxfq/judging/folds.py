"""`Folds`: figures on samples that gave no ranges, where there are too few to leave some out."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any
from weakref import WeakKeyDictionary

import onnx

from onnxfq.calibration.statistics import Statistics
from onnxfq.data import Feed
from onnxfq.data.digest import sample_digest
from onnxfq.data.model_inputs import input_specs
from onnxfq.data.replay import KeptFeeds
from onnxfq.documents.scores import Evaluation
from onnxfq.errors import OnnxfqError
from onnxfq.execution.sides import Side
from onnxfq.graph.external.sizes import is_large
from onnxfq.graph.patterns.choices import ChoiceType
from onnxfq.graph.signature import output_names
from onnxfq.judging.candidate import Candidate, Sources
from onnxfq.judging.samples import REPORTED
from onnxfq.passes.give_choices import with_given_choices
from onnxfq.stages.evaluate import number_samples
from onnxfq.stages.limits import with_limits
from onnxfq.stages.observe import Observation
from onnxfq.stages.options import QuantizeOptions
from onnxfq.targets.target import Opener

FOLDS = 2
"""Parts of the samples, each compared with ranges of the others; three samples are three parts.

ultraface and espcn of 3 and 4 samples come as near the truth with 2 folds as with 4, and up to 3.3 dB nearer
than on samples that gave the ranges. Ranges of a single sample are 10 dB too low on the former. Weights
rounded again in each fold change 0.5 dB at most.
"""

MANY_FOLDS = 4
"""The same next to unseen samples, where each has the ranges of another part alone.

New samples are more than those known, and a few of them larger than all. Ranges of a half kept 10 promises on
samples of lognormal size; 5 had 10 to 23 dB less on 200 others. Ranges of a quarter kept 5 true ones.
"""


@dataclass
class Folds:
    """Parts of the samples, each compared with ranges of others.

    Factors of channels and rounded weights stay, which saw all samples.

    Attributes:
        feeds: the data.
        samples: those of its kept samples that are compared.
        count: number of parts.
        options: of observing.
    """

    feeds: KeptFeeds
    samples: Sequence[Feed]
    count: int
    options: QuantizeOptions
    _observed: tuple[Any, set[Any], list[Statistics]] | None = None
    _models: WeakKeyDictionary[Candidate, list[onnx.ModelProto]] = field(default_factory=WeakKeyDictionary)

    @staticmethod
    def of(start: Candidate, sources: Sources, options: QuantizeOptions) -> Folds | None:
        """Return the folds of all kept samples.

        None where REPORTED samples or more are unseen, and where none can be left out: one sample, a stream,
        ranges or moments that were given, a calibrator that needs all samples in order, a model too large to
        be open twice.
        """
        session, plan, feeds = start.session, start.plan, start.session.feeds
        given = (sources.statistics, sources.moments, sources.encodings)
        if (
            feeds is None
            or feeds.is_stream
            or len(session.kept) < FOLDS
            or len(feeds.unseen) >= REPORTED
            or any(one is not None for one in given)
            or not plan.activations
            or any(p.calibrator.is_ordered for p in plan.activations)
            or is_large(session.compared)
        ):
            return None
        samples = feeds.without_apart().feeds
        count = 3 if len(samples) == 3 else MANY_FOLDS if feeds.unseen else FOLDS
        return Folds(feeds, samples, count, options)

    @property
    def is_few(self) -> bool:
        """Whether no sample is left out otherwise."""
        return not self.feeds.unseen

    @property
    def _parts(self) -> list[Sequence[Feed]]:
        return [self.samples[fold :: self.count] for fold in range(self.count)]

    def score(self, candidate: Candidate, among: Sequence[Feed]) -> Evaluation | None:
        """Return the scores of `candidate` on some of the samples.

        None if a part of the samples gives a tensor no value at all.
        """
        session = candidate.session
        try:
            with _without_warnings():
                self._models[candidate] = self._models.get(candidate) or self._simulate(candidate)
        except OnnxfqError:
            return None
        models = self._models[candidate]
        openers = {"simulated": _open_each(models, self._parts, session.judged.choices)}
        how: dict[str, Any] = {"device": "cpu", "exact": True, "openers": openers}
        return session.score({"simulated": models[0]}, among, self.options, **how)

    def rescore(self, candidate: Candidate, first: Evaluation, among: Sequence[Feed]) -> Evaluation:
        """Return `first`, the scores of the only form of `candidate`, with what the folds have."""
        found = self.score(candidate, among) if len(first.candidates) == 1 else None
        if found is None:
            return first
        (seen,) = first.candidates
        own = {"candidate": seen.candidate, "weight_shares": seen.weight_shares}
        score = number_samples(found.candidates[0], self.feeds, among).model_copy(update=own)
        return first.model_copy(update={"candidates": (score,), "feeds": found.feeds, "folds": self.count})

    def _simulate(self, candidate: Candidate) -> list[onnx.ModelProto]:
        """Return the simulations of `candidate` for each part, with ranges of the next, or of all others."""
        model, feeds = candidate.session.ranked, candidate.session.feeds
        assert feeds is not None
        unknown, known = candidate.planned.unknown, self._observed
        wanted = {(one.tensor, one.spec.granularity) for one in unknown.activations}
        if known is None or known[0] != (id(model), id(feeds)) or not wanted <= known[1]:
            plan = with_limits(unknown, model)
            parts = self._parts
            few = (feeds.again(part, with_unseen=True) for part in parts)
            others = few if self.is_few else [*parts[1:], parts[0]]
            with Observation(model, plan, self.options.observing) as observation:
                found = [observation.collect(rest) for rest in others]
            known = self._observed = (id(model), id(feeds)), wanted, found
        return [candidate.with_statistics(statistics).simulate() for statistics in known[2]]


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

    def identify(feed: Feed) -> int:
        return sample_digest({spec.name: feed[spec.name] for spec in specs})  # without choices

    places = {identify(feed): place for place, part in enumerate(parts) for feed in part}

    def open_models(model: Any, threads: int) -> Callable[[Feed], Mapping[str, Any]]:
        names = output_names(model)
        sessions = [Side(one, names, exact=True).session(threads, "cpu") for one in models]

        def run(feed: Feed) -> Mapping[str, Any]:
            outputs = sessions[places[identify(feed)]].run(feed, names)
            return dict(zip(names, outputs, strict=True))

        return run

    return open_models
