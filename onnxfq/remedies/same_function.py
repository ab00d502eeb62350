"""Another float model of the same function in the place of the given one, observed again."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from onnxfq.data import Feed
from onnxfq.graph.model import Model
from onnxfq.judging.candidate import Candidate, Sources
from onnxfq.judging.judge import Judge
from onnxfq.runtime.type_inference import lacks_ranks, with_run_ranks
from onnxfq.stages.inputs import QuantizeSession

SAMPLES = 64
"""Most samples that give the ranges and means of channels; RANGED where the budget has no time for more."""


def explain_fixed_model(candidate: Candidate, judge: Judge) -> str:
    """Return why the float model cannot be replaced and observed again; empty if it can."""
    if explain_lack(judge.sources) or judge.sources.moments is not None:
        return "statistics, moments or encodings of the model as it is are given"
    feeds = candidate.session.feeds
    return "" if feeds is not None and feeds.source.repeats else "the data cannot be read again"


def explain_lack(sources: Sources) -> str:
    """Return which inputs were recorded of the model as it is, so that it cannot change; empty for none."""
    recorded = sources.statistics is not None or sources.encodings is not None
    return "statistics or encodings of the model as it is" if recorded else ""


def select_apart(candidate: Candidate, judge: Judge, count: int = SAMPLES) -> Sequence[Feed]:
    """Return `count` samples or fewer that neither choose nor prove; those that choose if none is left."""
    feeds, judging = candidate.session.feeds, {id(feed) for feed in (*judge.choosing, *judge.proving)}
    known = () if feeds is None else feeds.select(count)
    return [feed for feed in known if id(feed) not in judging] or judge.choosing


def with_model(session: QuantizeSession, model: Model, feeds: Sequence[Feed]) -> QuantizeSession:
    """Return `session` with another model of the same function, whose ranks `feeds` tell."""
    ranked = with_run_ranks(model, feeds[0]) if feeds and lacks_ranks(model) else model
    return replace(session, model=model, ranked=ranked)
