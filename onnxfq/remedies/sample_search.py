"""`SAMPLES`: ranges without the samples of other magnitude than all others, where the outputs gain by it."""

from __future__ import annotations

from dataclasses import replace

from onnxfq.judging.candidate import Candidate, build_candidate
from onnxfq.judging.judge import Judge, Proposal, Refusal, Remedy

NAMED = 5
"""Samples that are named one by one."""


def explain_unneeded(candidate: Candidate, judge: Judge) -> str:
    """Return why no sample is left out; empty if one stands apart."""
    feeds, sources = candidate.session.feeds, judge.sources
    if feeds is None or not feeds.apart:
        return "no sample stands apart"
    if any(given is not None for given in (sources.statistics, sources.moments, sources.encodings)):
        return "statistics, moments or encodings are given"
    if not candidate.plan.activations:
        return "no activation is quantized"
    return "" if feeds.source.repeats else "the data cannot be read again"


def leave_out_apart(candidate: Candidate, judge: Judge) -> Proposal | Refusal:
    """Return the candidate whose ranges and moments come from the other samples.

    A sample that stands apart may be sound. The gain of all others, in dB times samples, must exceed the loss
    of what is left out.
    """
    session = candidate.session
    assert session.feeds is not None
    apart = session.feeds.apart
    details = [f"left out: {sample}" for sample in apart[:NAMED]]
    details += [f"left out: {len(apart) - NAMED} more"] if len(apart) > NAMED else []
    others = replace(session, feeds=session.feeds.without_apart())
    judge.budget.spend(judge.work.observe() + judge.work.calibrate)
    without = build_candidate(others, candidate.recipe, judge.sources, judge.options, candidate.equalization)
    pair = [candidate, without]
    before, after = judge.choose(pair)
    own_before, own_after = judge.score(pair, session.feeds.read_apart())
    if (after - before) * (judge.work.samples - len(apart)) <= (own_before - own_after) * len(apart):
        why = f"the others gain {after - before:.1f} dB, what is left out loses {own_before - own_after:.1f}"
        return Refusal(why, details)
    return Proposal(without, details)


def estimate(candidate: Candidate, judge: Judge) -> float:
    """Return the runs of observing the other samples, and of comparing."""
    feeds = candidate.session.feeds
    apart = 0 if feeds is None else len(feeds.apart)
    observed = judge.work.observe() + judge.work.calibrate
    return observed + judge.compare_choosing(2) + judge.work.compare(apart, 2)


SAMPLES = Remedy("samples", explain_unneeded, leave_out_apart, is_free=True, is_cure=True, estimate=estimate)
