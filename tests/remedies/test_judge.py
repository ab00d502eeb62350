"""The judge: one division of the samples, one least gain, and remedies from outside."""

from __future__ import annotations

import gc
from dataclasses import replace

import numpy as np
import onnx
import pytest
from builders import build, weights

from onnxfq.remedies.candidate import Candidate, Sources, build_candidate
from onnxfq.remedies.judge import LEAST_GAIN_DB, Judge, Proposal, Refusal, Remedy
from onnxfq.remedies.registry import REMEDIES
from onnxfq.remedies.samples import CHOOSING, FOLDED, PROVING, split_samples
from onnxfq.runtime.session import Session
from onnxfq.stages.inputs import open_inputs
from onnxfq.stages.options import QuantizeOptions
from onnxfq.targets.recipes import load_recipe

RECIPE = load_recipe("tensorrt-int8").override(weights={"rounding": "nearest"})
COARSE = RECIPE.override(activations={"calibrator": "range:-0.5,0.5"})
"""Ranges that cut most values off."""


def network() -> onnx.ModelProto:
    """Return one layer."""
    return build("g (float[N,16] x) => (float[N,4] y) { [m] y = MatMul (x, w) }", {"w": weights(16, 4)})


def judge_of(count: int, **changes: object) -> tuple[Candidate, Judge]:
    """Return a coarse candidate of `count` samples, and its judge."""
    x = np.random.default_rng(count).normal(size=(count, 16)).astype(np.float32)
    options = QuantizeOptions(batch=1)
    session = open_inputs(network(), {"x": x}, COARSE, options)
    candidate = build_candidate(session, COARSE, Sources(), options)
    return candidate, replace(Judge(candidate, options, Sources()), **changes)


def always(propose) -> Remedy:
    """Return a remedy from outside that is always tried."""
    return Remedy("toy", lambda candidate, judge: "", propose)


def finer(candidate: Candidate, judge: Judge) -> Proposal:
    """Propose ranges that hold every value."""
    return Proposal(
        candidate.with_recipe(RECIPE.override(activations={"calibrator": "minmax"})), ["finer ranges"]
    )


@pytest.mark.parametrize("count", [*range(40), 128])
def test_no_sample_has_two_parts(count: int) -> None:
    """Those that choose, those that prove and the rest are all samples, each once; few are folded."""
    splits, unused = split_samples([{"x": np.asarray(n)} for n in range(count)])
    sizes = [(len(split.choosing), len(split.proving)) for split in splits]
    if count < 2:
        assert sizes == [] and len(unused) == count
    elif count < FOLDED:
        assert sizes == [(count // 2, count - count // 2), (count - count // 2, count // 2)]
        assert len(unused) == count
    else:
        assert sizes == [(min(CHOOSING, count // 3), min(PROVING, count // 3))]
        parts = [*splits[0].choosing, *splits[0].proving, *unused]
        assert sorted(int(feed["x"]) for feed in parts) == list(range(count))
        assert len(unused) >= count // 3


@pytest.mark.parametrize("count", [2, 5, 12, 40])
def test_a_remedy_from_outside_is_kept_for_its_gain(count: int) -> None:
    """Both figures are those of samples that did not choose, computed by ONNX Runtime."""
    candidate, judge = judge_of(count)
    seen: list[set[bytes]] = []

    def propose(start: Candidate, bench: Judge) -> Proposal:
        seen.append({feed["x"].tobytes() for feed in bench.choosing})
        return finer(start, bench)

    kept, trial = judge.better(candidate, always(propose))
    assert trial.is_kept and trial.details == ("finer ranges",) and kept is not candidate
    splits, _ = split_samples(judge.kept)
    figures = np.mean([[_sqnr(one, split.proving) for one in (candidate, kept)] for split in splits], axis=0)
    # The sums of a feed are rounded to float32 by either session.
    assert (trial.before, trial.after) == pytest.approx(figures.tolist(), abs=1e-3)
    for split, choosing in zip(splits, seen, strict=False):
        assert not choosing & {feed["x"].tobytes() for feed in split.proving}
    assert len(seen) == (1 if count >= FOLDED else 3)  # the halves, then all


def _sqnr(candidate: Candidate, feeds) -> float:
    want, got = (
        np.concatenate([Session(proto, 1).run(feed)[0] for feed in feeds]).astype(np.float64)
        for proto in (network(), candidate.simulate())
    )
    return float(10 * np.log10(np.square(want).sum() / np.square(want - got).sum()))


def test_what_gains_too_little_is_left() -> None:
    """The same candidate gains nothing, and a worse one loses."""
    candidate, judge = judge_of(24)
    same = candidate.with_recipe(COARSE)
    worse = candidate.with_recipe(RECIPE.override(activations={"calibrator": "range:-0.1,0.1"}))
    for other in (same, worse):
        kept, trial = judge.better(candidate, always(lambda start, bench, other=other: Proposal(other)))
        assert kept is candidate and not trial.is_kept
        assert trial.after - trial.before < LEAST_GAIN_DB and trial.why == "it must gain 0.5 dB"
        assert trial.lines()[0].startswith("toy        left, ")


def test_one_sample_tries_nothing() -> None:
    """It cannot both choose and prove, and without data there is nothing to try; the trial says why."""

    def fail(candidate: Candidate, judge: Judge) -> Proposal:
        raise AssertionError("tried")

    candidate, judge = judge_of(1)
    kept, trial = judge.better(candidate, always(fail))
    assert kept is candidate and trial.why == "one sample cannot both choose and prove it"


def test_reasons_are_told() -> None:
    """A remedy that is not needed has no line; one that finds nothing has its reason."""
    candidate, judge = judge_of(12)
    kept, quiet = judge.better(candidate, Remedy("toy", lambda *_: "nothing is low", finer))
    assert kept is candidate and not quiet.is_needed and quiet.lines() == [] and quiet.why == "nothing is low"
    kept, left = judge.better(candidate, always(lambda *_: Refusal("it finds nothing", ["of two"])))
    assert kept is candidate and left.lines() == ["toy        left: it finds nothing", "           of two"]


def test_remedies_follow_each_other() -> None:
    """The next remedy begins with what is left of the one before, and each has one trial."""
    candidate, judge = judge_of(24)
    starts: list[Candidate] = []

    def propose(start: Candidate, bench: Judge) -> Proposal:
        starts.append(start)
        return finer(start, bench)

    final, trials = judge.improve(candidate, [always(propose), always(propose)])
    assert [trial.is_kept for trial in trials] == [True, False]
    assert starts[0] is candidate and starts[1] is final


def test_names_are_unique() -> None:
    """A result is asked for a trial by the name of its remedy."""
    assert len({remedy.name for remedy in REMEDIES}) == len(REMEDIES) >= 7


def test_scores_are_of_their_samples() -> None:
    """A score is kept for its samples alone, though others begin with the same one; candidates are freed."""
    candidate, judge = judge_of(8)
    half, whole = judge.kept[:4], judge.kept
    wanted = [_sqnr(candidate, feeds) for feeds in (half, whole)]
    found = [judge.score([candidate], feeds)[0] for feeds in (half, whole, half)]
    assert found == pytest.approx([*wanted, wanted[0]], abs=1e-3)  # the sums are rounded to float32
    judge.score([finer(candidate, judge).candidate], whole)
    gc.collect()
    assert set(judge.known) == {candidate}
