"""The judge: one division of the samples, one least gain, and remedies from outside."""

from __future__ import annotations

import gc
import weakref
from dataclasses import replace

import numpy as np
import onnx
import pytest
from builders import build, weights
from loops import loop_over
from onnx import numpy_helper

from onnxfq.documents.recipe import Recipe
from onnxfq.documents.scores import CandidateScore, Evaluation, OutputScore
from onnxfq.documents.trial import Trial, trial_lines
from onnxfq.errors import StatisticsError
from onnxfq.judging import combinations
from onnxfq.judging.accuracy_target import AccuracyTarget
from onnxfq.judging.candidate import Candidate, Sources, build_candidate
from onnxfq.judging.combinations import improve
from onnxfq.judging.folds import Folds
from onnxfq.judging.judge import LEAST_GAIN_DB, NO_PROMISE, Bounded, Gain, Judge, Proposal, Refusal, Remedy
from onnxfq.judging.samples import CHOOSING, PROVING, SHARED, split_samples
from onnxfq.judging.work import Budget
from onnxfq.layers.round_weights import Rounding, round_weights
from onnxfq.numerics.intervals import interval_db
from onnxfq.remedies import rounding_search
from onnxfq.remedies.fit_size import fit_size
from onnxfq.remedies.registry import REMEDIES
from onnxfq.remedies.rounding_search import can_round_again, round_again, unround
from onnxfq.runtime.session import Session
from onnxfq.stages.inputs import open_inputs
from onnxfq.stages.observe import collect_statistics
from onnxfq.stages.options import QuantizeOptions, open_feeds
from onnxfq.targets.recipes import load_recipe

RECIPE = load_recipe("tensorrt-int8").override(weights={"rounding": "nearest"})
OPTIONS = QuantizeOptions(batch=1)
COARSE = RECIPE.override(activations={"calibrator": "range:-0.5,0.5"})
"""Ranges that cut most values off."""


def network() -> onnx.ModelProto:
    """Return one layer."""
    return build("g (float[N,16] x) => (float[N,4] y) { [m] y = MatMul (x, w) }", {"w": weights(16, 4)})


def draw(count: int, width: int = 16) -> np.ndarray:
    """Return normal samples."""
    return np.random.default_rng(count).normal(size=(count, width)).astype(np.float32)


def candidate_of(x: np.ndarray, recipe: Recipe, proto: onnx.ModelProto | None = None) -> Candidate:
    """Return the candidate of the layer, or of `proto`, by these samples."""
    session = open_inputs(proto or network(), {"x": x}, recipe, OPTIONS)
    return build_candidate(session, recipe, Sources(), OPTIONS)


def judge_of(count: int, **changes: object) -> tuple[Candidate, Judge]:
    """Return a coarse candidate of `count` samples, and its judge."""
    candidate = candidate_of(draw(count), COARSE)
    return candidate, replace(Judge(candidate, OPTIONS, Sources()), **changes)


def always(propose) -> Remedy:
    """Return a remedy from outside that is always tried."""
    return Remedy("toy", lambda candidate, judge: "", propose)


def finer(candidate: Candidate, judge: Judge) -> Proposal:
    """Propose ranges that hold every value."""
    return Proposal(
        candidate.with_recipe(RECIPE.override(activations={"calibrator": "minmax"})), ["finer ranges"]
    )


@pytest.mark.sample
@loop_over("count", [*range(40), 128])
def test_no_sample_has_two_parts(count: int) -> None:
    """Those that choose, those that prove and the rest are all samples, each once; few are all reported."""
    split = split_samples([{"x": np.asarray(n)} for n in range(count)])
    sizes = len(split.choosing), len(split.proving)
    if count < 2:
        assert sizes == (count, count) and len(split.unused) == count
        return
    parts = [*split.choosing, *split.proving]
    if count < SHARED:
        assert sizes == (count // 2, count - count // 2) and len(split.unused) == count
    else:
        assert sizes == (min(CHOOSING, count // 3), min(PROVING, count // 3))
        assert len(split.unused) >= count // 3
        parts += split.unused
    assert sorted(int(feed["x"]) for feed in parts) == list(range(count))


@pytest.mark.parametrize("count", [2, 5, 20, 40])
def test_a_remedy_from_outside_is_kept_for_its_gain(count: int) -> None:
    """Both figures are those of samples that did not choose, computed by ONNX Runtime."""
    candidate, judge = judge_of(count)
    seen: list[set[bytes]] = []

    def propose(start: Candidate, bench: Judge) -> Proposal:
        seen.append({feed["x"].tobytes() for feed in bench.choosing})
        return finer(start, bench)

    kept, trial = judge.better(candidate, always(propose))
    assert trial.is_kept and trial.details == ("finer ranges",) and kept is not candidate
    split = split_samples(judge.kept)
    figures = [_sqnr(one, split.proving) for one in (candidate, kept)]
    # The sums of a feed are rounded to float32 by either session.
    assert (trial.before, trial.after) == pytest.approx(figures, abs=1e-3)
    (choosing,) = seen
    assert not choosing & {feed["x"].tobytes() for feed in split.proving}


def _sqnr(candidate: Candidate, feeds) -> float:
    want, got = (
        np.concatenate([Session(proto, 1).run(feed)[0] for feed in feeds]).astype(np.float64)
        for proto in (network(), candidate.simulate())
    )
    return float(10 * np.log10(np.square(want).sum() / np.square(want - got).sum()))


def test_what_gains_too_little_is_left() -> None:
    """The same candidate gains nothing, and a worse one loses."""
    candidate, judge = judge_of(96)
    same = candidate.with_recipe(COARSE)
    worse = candidate.with_recipe(RECIPE.override(activations={"calibrator": "range:-0.1,0.1"}))
    for other in (same, worse):
        kept, trial = judge.better(candidate, always(lambda start, bench, other=other: Proposal(other)))
        assert kept is candidate and not trial.is_kept
        assert trial.after - trial.before < LEAST_GAIN_DB and trial.why == "it must gain 0.5 dB"
        assert trial.gain is None or trial.gain[0] <= 0
        assert trial.result == "left" and trial.figures


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
    assert kept is candidate and not quiet.is_needed
    assert trial_lines([quiet]) == [] and quiet.why == "nothing is low"
    kept, left = judge.better(candidate, always(lambda *_: Refusal("it finds nothing", ["of two"])))
    assert kept is candidate and left.texts == ["it finds nothing", "of two"] and left.result == "left"


@pytest.mark.sample
def test_remedies_follow_each_other() -> None:
    """The next remedy begins with what is left of the one before, and each has one trial."""
    candidate, judge = judge_of(24)
    starts: list[Candidate] = []

    def propose(start: Candidate, bench: Judge) -> Proposal:
        starts.append(start)
        return finer(start, bench)

    final, trials = improve(judge, candidate, [always(propose), always(propose)])
    assert [trial.is_kept for trial in trials] == [True, False]
    assert starts[0] is candidate and starts[1] is final


@pytest.mark.parametrize(
    "gain, interval, free_is_kept, other_is_kept",
    [
        (0.2, (0.1, 0.3), True, False),
        (0.2, (-0.1, 0.5), False, False),
        (0.6, (0.1, 1.1), True, True),
        (2.8, (-0.1, 5.7), False, False),
        (2.8, None, True, True),
        (0.2, None, True, False),
        (-0.1, (-0.2, 0.0), False, False),
    ],
)
def test_a_gain_needs_an_interval_above_zero(
    monkeypatch: pytest.MonkeyPatch,
    gain: float,
    interval: tuple[float, float] | None,
    free_is_kept: bool,
    other_is_kept: bool,
) -> None:
    """A remedy that costs at run time gains half a dB too. The figure of a single sample decides."""
    candidate, judge = judge_of(24)
    other = candidate.with_recipe(COARSE)
    monkeypatch.setattr(Judge, "measure_gain", lambda *_: Gain(30.0, 30.0 + gain, interval))
    costly = always(lambda start, bench: Proposal(other))
    sure = always(lambda start, bench: Proposal(other, is_sure=True))
    for remedy, is_kept in (
        (costly, other_is_kept),
        (replace(costly, is_free=True), free_is_kept),
        (sure, other_is_kept),
    ):
        kept, trial = judge.better(candidate, remedy)
        assert (kept is other) is trial.is_kept is is_kept and trial.gain == interval
        assert is_kept or "gain" in trial.why


@pytest.mark.parametrize("is_sure, counts", [(False, [16, 21]), (True, [16, 21, 43])])
def test_more_samples_prove_what_few_leave_open(
    monkeypatch: pytest.MonkeyPatch, is_sure: bool, counts: list[int]
) -> None:
    """A third of the unseen samples; what learns from no others is proven on all that do not choose."""
    candidate, judge = judge_of(256)
    work = replace(judge.work, samples=10**6, products={"m": 64})
    judge = replace(judge, work=work, folds=Folds(None, judge.kept, 4, None))
    asked: list[int] = []

    def measure(self: Judge, pair, feeds, folds=None) -> Gain:
        asked.append(len(feeds))
        return Gain(30.0, 31.0, (-1.0, 3.0))

    monkeypatch.setattr(Judge, "measure_gain", measure)
    judge.prove_gain(candidate, candidate.with_recipe(COARSE), is_sure)
    assert asked == counts


def test_the_ranges_of_all_samples_must_not_lose_what_those_of_few_gain() -> None:
    """One unseen value of 1000 makes a range by extremes coarse; a range that is given stays."""
    candidate, judge = judge_of(96)
    session, options = candidate.session, judge.options
    feeds = [*judge.kept, {"x": np.full((1, 16), 1000, np.float32)}]
    whole = collect_statistics(session.ranked, candidate.planned.unknown, feeds, options.observing)
    candidate = replace(candidate, statistics=candidate.statistics._replace(whole=whole))

    def propose(calibrator: str) -> Remedy:
        recipe = RECIPE.override(activations={"calibrator": calibrator})
        return always(lambda start, bench: Proposal(start.with_recipe(recipe)))

    kept, trial = judge.better(candidate, propose("minmax"))
    assert kept is candidate and trial.why == "it must gain 0.5 dB, with the ranges of all samples"
    start_db = _sqnr(candidate.with_all_ranges(), split_samples(judge.kept).proving)
    assert trial.before == pytest.approx(start_db, abs=1e-3) and trial.after < trial.before
    kept, trial = judge.better(candidate, propose("range:-4,4"))
    assert trial.is_kept and kept is not candidate


def test_the_interval_of_a_gain_is_of_paired_samples() -> None:
    """It has the noises that ONNX Runtime's outputs have, sample by sample."""
    candidate, judge = judge_of(120)
    other = candidate.with_recipe(RECIPE.override(activations={"calibrator": "range:-1,1"}))
    feeds = judge.kept
    gain = judge.measure_gain([candidate, other], feeds)
    noises = np.asarray([[10 ** (-_sqnr(one, [feed]) / 10) for feed in feeds] for one in (candidate, other)])
    want = [Session(network(), 1).run(feed)[0] for feed in feeds]
    noises *= [float(np.square(y.astype(np.float64)).sum()) for y in want]
    assert gain.interval == pytest.approx(interval_db(*noises), abs=1e-3)
    alone = [interval_db([1.0] * len(feeds), row) for row in noises]
    assert np.diff(gain.interval) < sum(np.diff(ends) for ends in alone)  # what both suffer from cancels
    assert judge.measure_gain([candidate, other], feeds[:1]).interval is None


def test_the_next_best_may_be_proven(monkeypatch: pytest.MonkeyPatch) -> None:
    """The best on the samples that choose lose on those that prove; the third is kept, no fourth is asked."""
    candidate, judge = judge_of(48)
    proving = split_samples(judge.kept).proving
    made = {name: candidate.with_recipe(COARSE) for name in "abcd"}
    chosen_db = {"a": 4.0, "b": 3.0, "c": 2.0, "d": 1.0}
    proven_db = {"a": -1.0, "b": -1.0, "c": 1.0, "d": 1.0}
    asked = give_scores(monkeypatch, made, chosen_db, proven_db, proving)
    monkeypatch.setattr(combinations, "BEAM", 8)  # so that each remedy is tried alone
    remedies = [
        free(
            name,
            lambda start, bench, name=name: Proposal(made[name]) if start is candidate else Refusal("no"),
        )
        for name in "abcd"
    ]
    final, trials = improve(judge, candidate, remedies)
    assert final is made["c"] and [trial.is_kept for trial in trials] == [False, False, True, False]
    assert "d" not in asked
    proven_db["c"] = -1.0
    assert improve(judge, candidate, remedies)[0] is candidate


def give_scores(
    monkeypatch: pytest.MonkeyPatch,
    made: dict[str, Candidate],
    chosen_db: dict[str, float],
    proven_db: dict[str, float],
    proving,
) -> list[str]:
    """Give candidates these figures, all others 0 dB; return the names of those that are proven."""
    asked: list[str] = []

    def score(self: Judge, some, feeds) -> list[float]:
        names = {id(one): name for name, one in made.items()}
        of = proven_db if feeds[0] is proving[0] else chosen_db
        asked.extend(names[id(one)] for one in some if id(one) in names and of is proven_db)
        return [of[names[id(one)]] if id(one) in names else 0.0 for one in some]

    def prove(self: Judge, some, feeds, folds=None) -> list[CandidateScore]:
        return [scored(db) for db in score(self, some, feeds)]

    monkeypatch.setattr(Judge, "score", score)
    monkeypatch.setattr(Judge, "prove", prove)
    return asked


def scored(sqnr_db: float) -> CandidateScore:
    """Return the scores of a candidate with one output."""
    output = OutputScore(output="y", sqnr_db=sqnr_db, cosine=1.0, largest_error=0.0)
    return CandidateScore(candidate="", outputs=(output,))


@pytest.mark.parametrize("chosen_db", [4.0, -2.0])
def test_what_is_refused_makes_room_for_its_kind(monkeypatch: pytest.MonkeyPatch, chosen_db: float) -> None:
    """The first of a kind is not proven, or not even chosen; the next one is proven in its place."""
    candidate, judge = judge_of(48)
    made = {name: candidate.with_recipe(COARSE) for name in "ab"}
    give_scores(monkeypatch, made, {"a": chosen_db, "b": 3.0}, {"a": -1.0, "b": 1.0}, judge.split.proving)
    kind = free("kind", lambda *_: Proposal(made["a"], ["first"], others=[Proposal(made["b"], ["next"])]))
    final, (trial,) = improve(judge, candidate, [kind])
    assert final is made["b"] and trial.is_kept and trial.details == ("next",)


def test_thorough_begins_from_what_was_kept() -> None:
    """A remedy that the budget did not reach is tried on what was kept within it, which stays."""
    candidate, judge = judge_of(48, budget=Budget(1.0), is_thorough=True)
    seen: list[Candidate] = []

    def look(start: Candidate, bench: Judge) -> Refusal:
        seen.append(start)
        return Refusal("no")

    final, (cheap, dear) = improve(judge, candidate, [free("cheap", finer, 0.5), free("dear", look, 0.8)])
    assert cheap.is_kept and dear.why == "no" and seen[0] is final is not candidate


@pytest.mark.parametrize(("first_db", "is_tried"), [(5.0, True), (40.0, False)])
def test_the_likeliest_cure_is_not_cut(first_db: float, is_tried: bool) -> None:
    """A cure of what shows has no budget if outputs are low; other remedies, or good outputs, have one."""
    first = Evaluation(reference="float", feeds=1, candidates=(scored(first_db),))
    candidate, judge = judge_of(48, budget=Budget(1.0), first=first, least=20.0)
    remedies = [replace(free("likely", finer, 5.0), is_cure=True), free("dearer", finer, 6.0)]
    _, (likely, dearer) = improve(judge, candidate, remedies)
    assert likely.is_kept is is_tried and "beyond the budget" in dearer.why
    assert is_tried or "beyond the budget" in likely.why


def test_what_cannot_gain_enough_is_not_tried() -> None:
    """A remedy whose most gain is below half a dB has a reason with it."""
    candidate, judge = judge_of(48)
    little = free("little", finer, Bounded(0.0, 0.3))
    final, (trial,) = improve(judge, candidate, [little])
    assert final is candidate and trial.why == "it gains 0.3 dB at most"


def free(name: str, propose, seconds: float = 0.0) -> Remedy:
    """Return a remedy that costs nothing at run time, and takes `seconds` to try."""
    return Remedy(name, lambda *_: "", propose, is_free=True, estimate=lambda *_: seconds)


def ranges(size: float):
    """Return a remedy's function that proposes ranges of this size."""
    calibrator = f"range:-{size},{size}"
    return lambda start, bench: Proposal(
        start.with_recipe(start.recipe.override(activations={"calibrator": calibrator}))
    )


def test_what_helps_only_with_another_is_found() -> None:
    """The first remedy loses alone and the second doubles what it finds: a chain would never keep both."""
    candidate, judge = judge_of(48)

    def after_worse(start: Candidate, bench: Judge) -> Proposal | Refusal:
        worse = start.recipe.activations.calibrator.name == "range" and start is not candidate
        return finer(start, bench) if worse else Refusal("nothing to build on")

    remedies = [free("worse", ranges(0.45)), free("better", after_worse)]
    final, trials = improve(judge, candidate, remedies)
    assert [trial.is_kept for trial in trials] == [True, True] and final is not candidate
    assert trials[0].after < trials[0].before + LEAST_GAIN_DB < trials[1].after
    figures = [_sqnr(one, split_samples(judge.kept).proving) for one in (candidate, final)]
    assert [trials[0].before, trials[1].after] == pytest.approx(figures, abs=1e-3)
    assert trials[0].details == (f"chosen with better: together {figures[0]:.1f} -> {figures[1]:.1f} dB",)
    assert trials[1].details == ("finer ranges",)


def test_the_best_of_several_is_kept_alone() -> None:
    """Of two remedies for the same loss one stays, and the other's trial says so."""
    candidate, judge = judge_of(48)
    final, trials = improve(judge, candidate, [free("half", ranges(1.0)), free("whole", finer)])
    assert [trial.is_kept for trial in trials] == [False, True]
    assert trials[0].why == "others gain more" and final.recipe.activations.calibrator.name == "minmax"


def test_the_budget_is_for_the_cheapest() -> None:
    """What it does not reach is not tried, and its trial names the words that try it."""
    candidate, judge = judge_of(48, budget=Budget(1.0))

    def fail(start: Candidate, bench: Judge) -> Proposal:
        raise AssertionError("tried")

    remedies = [free("dear", fail, Bounded(0.8, 2.0)), free("cheap", finer, 0.5)]
    final, (dear, cheap) = improve(judge, candidate, remedies)
    assert cheap.is_kept and final is not candidate and dear.is_needed
    left = "it takes about 0.8 runs of the float model, beyond the budget; --repair thorough tries it"
    assert dear.why == f"{left} (2.0 dB at most)"


def test_what_takes_less_than_estimated_leaves_its_time() -> None:
    """A remedy that was too dear is tried in its turn if those before it were cheaper than estimated."""
    candidate, judge = judge_of(48, budget=Budget(1.0))
    remedies = [free("cheap", lambda *_: Refusal("no"), 0.5), free("dear", finer, 0.8)]
    final, (cheap, dear) = improve(judge, candidate, remedies)
    assert not cheap.is_kept and dear.is_kept and final is not candidate


def test_a_remedy_leaves_the_later_ones_their_time() -> None:
    """While a remedy is tried, the estimates of those behind it are set aside, and no longer its own."""
    candidate, judge = judge_of(48, budget=Budget(1.0))
    aside: list[float] = []

    def look(start: Candidate, bench: Judge) -> Refusal:
        aside.append(bench.budget.later)
        return Refusal("no")

    costly = [replace(always(look), estimate=lambda *_, seconds=seconds: seconds) for seconds in (0.25, 0.5)]
    improve(
        judge, candidate, [free("free", look), *(replace(one, name=f"{n}") for n, one in enumerate(costly))]
    )
    assert aside == [0.75, 0.5, 0.0]


@pytest.mark.parametrize("seconds", [0.5, 2.0])
def test_all_leave_the_sure_remedy_its_time(seconds: float) -> None:
    """What would take the time of a layer in float is not tried before it, unless that is too dear itself."""
    candidate, judge = judge_of(48, budget=Budget(1.0))
    nothing = [always(lambda *_: Refusal("no")), always(finer)]
    costly, sure = (replace(one, estimate=lambda *_: seconds) for one in nothing)
    sure = replace(sure, name="widened")
    dear = free("dear", lambda *_: Refusal("no"), 0.75)
    final, (first, second, third) = improve(judge, candidate, [dear, replace(costly, name="costly"), sure])
    is_tried, late = seconds == 0.5, "runs of the float model, beyond the budget; --repair thorough tries it"
    assert third.is_kept is is_tried and (final is not candidate) is is_tried
    whys = [f"it takes about 0.75 {late}", "no"] if is_tried else ["no", f"it takes about 2 {late}"]
    assert [first.why, second.why] == whys


def test_what_is_done_at_any_price_spends_no_time_of_the_sure_remedy() -> None:
    """Rounding of few bits takes no time by its estimate, and the search for layers in float follows it."""
    candidate, judge = judge_of(48, budget=Budget(1.0))

    def spend(start: Candidate, bench: Judge) -> Refusal:
        bench.budget.spend(2.0)
        return Refusal("no")

    later = replace(always(finer), name="later", estimate=lambda *_: 0.125)
    sure = replace(always(finer), name="protected", estimate=lambda *_: 0.5)
    _, (first, second, third) = improve(judge, candidate, [free("free", spend), later, sure])
    assert first.why == "no" and "beyond the budget" in second.why and third.is_kept


def test_promises_have_no_budget() -> None:
    """What a promise or a recipe asks for is done when all seconds are spent, as is what takes none."""
    candidate, judge = judge_of(48, budget=Budget(-1.0))
    costly = replace(always(finer), estimate=lambda *_: 0.1)
    assert not judge.better(candidate, costly)[1].is_kept
    asked = replace(costly, is_asked=lambda recipe: True)
    assert all(judge.better(candidate, one)[1].is_kept for one in (asked, always(finer)))
    assert improve(judge, candidate, [replace(asked, is_free=True)])[1][0].is_kept
    assert judge.keep(candidate, finer)[1].why == NO_PROMISE
    promising = replace(judge, accuracy=AccuracyTarget(min_sqnr=1.0))
    assert promising.keep(candidate, finer)[1].is_kept


def test_nothing_is_tried_where_repair_is_off() -> None:
    """But for what a recipe asks for."""
    candidate, judge = judge_of(24, is_off=True)
    kept, trials = improve(judge, candidate, [free("free", finer), always(finer)])
    assert kept is candidate and {trial.why for trial in trials} == {"repair is off"}
    asked = replace(free("free", finer), is_asked=lambda recipe: recipe is COARSE)
    assert improve(judge, candidate, [asked])[1][0].is_kept


@pytest.mark.sample
@pytest.mark.parametrize("count", [3, 5, 8, 40, 300])
def test_unseen_samples_give_no_ranges(count: int) -> None:
    """The candidate that is judged has the ranges of the other samples; the completed one has all."""
    x = draw(count)
    candidate = candidate_of(x, RECIPE.override(activations={"calibrator": "minmax"}))
    unseen = np.concatenate([feed["x"] for feed in candidate.session.feeds.unseen] or [x[:0]])
    assert len(unseen) == {3: 0, 5: 0, 8: 4, 40: 16, 300: 75}[count]
    rest = np.asarray([row for row in x if row.tobytes() not in {one.tobytes() for one in unseen}])
    assert len(rest) + len(unseen) == count
    for one, rows in ((candidate, rest), (candidate.with_all_samples(OPTIONS, round_again=False), x)):
        scale = max(-rows.min() / np.float32(128), rows.max() / np.float32(127))
        assert float(one.encodings["x"].scale) == pytest.approx(float(scale), rel=1e-6)  # float32


@pytest.mark.parametrize("count, is_few", [(40, True), (80, False)])
def test_all_of_few_samples_round_the_weights(count: int, is_few: bool) -> None:
    """Half of them would waste what they tell; of many, the weights stay as they were judged."""
    x, recipe = draw(count), weights_by_gptq("int3")
    judged = candidate_of(x, recipe)
    session, complete = judged.session, judged.with_all_samples(OPTIONS, round_again=True)
    by_all = round_weights(
        session.model,
        complete.plan,
        Candidate.of(session, recipe, complete.planned, complete.statistics).encodings,
        open_feeds(session.model.proto, {"x": x}),
    )
    assert _rounded(by_all) != _rounded(judged)
    assert _rounded(complete) == _rounded(by_all if is_few else judged)
    assert _rounded(judged.with_all_samples(OPTIONS, round_again=False)) == _rounded(judged)


def weights_by_gptq(qtype: str) -> Recipe:
    """Return a recipe that rounds weights alone."""
    recipe = load_recipe("tensorrt-int8-weights").override(weights={"rounding": "gptq", "qtype": qtype})
    return recipe.model_copy(update={"target": "simulation"})


@pytest.mark.parametrize("qtype, is_again", [("int4", True), ("int8", False)])
def test_weights_of_many_bits_are_written_as_they_were_proven(qtype: str, is_again: bool) -> None:
    """More samples for the moments gain at 4 bits; at 8 what was proven stays."""
    candidate = candidate_of(draw(40), weights_by_gptq(qtype))
    assert can_round_again(candidate, Judge(candidate, QuantizeOptions(), Sources())) is is_again


def test_weights_beside_wider_ones_are_rounded_again() -> None:
    """`qronos` makes up for what earlier layers lose, so that less loss there needs other numbers."""
    values = {f"w{n}": weights(64, 64) for n in range(3)}
    lines = "[a] h = MatMul (x, w0) [b] i = MatMul (h, w1) [c] y = MatMul (i, w2)"
    proto = build(f"g (float[N,64] x) => (float[N,64] y) {{ {lines} }}", values)
    recipe = load_recipe("genai-int4").override(activations=None, weights={"rounding": "qronos"})
    candidate = candidate_of(draw(96, 64), recipe, proto)
    target = AccuracyTarget(weight_bits=6.0, fallback="genai-int8")
    judge = Judge(candidate, OPTIONS, Sources(), accuracy=target)
    made = fit_size(candidate, judge, target).candidate
    wide = [one.tensor for one in made.plan.weights if one.spec.qtype.bits == 8]
    assert len(wide) == 1
    before, after, afresh = (
        {name: numpy_helper.to_array(one) for name, one in found.rounding.tensors.items()}
        for found in (candidate, made, round_again(unround(made), judge))
    )
    assert after.keys() == afresh.keys() and all((after[one] == afresh[one]).all() for one in after)
    assert any((after[one] != before[one]).any() for one in values.keys() - {*wide})


def test_other_ranges_of_activations_take_the_same_rounded_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    """`gptq` reads inputs in float: its moments are not gathered again, and the bits are of a new run."""
    values = {"w": weights(64, 64)}
    proto = build("g (float[N,64] x) => (float[N,64] y) { [a] y = MatMul (x, w) }", values)
    recipe = load_recipe("tensorrt-int8")
    candidate = candidate_of(draw(96, 64), recipe, proto)
    other = candidate.with_recipe(recipe.override(activations={"calibrator": "entropy"}))
    monkeypatch.setattr(rounding_search, "ROUNDINGS", ("gptq",))
    monkeypatch.setattr(rounding_search, "_most_gain", lambda *_: 3.0)

    def search(one: Candidate, judge: Judge) -> Candidate:
        return rounding_search.search_rounding(one, judge.trying).candidate

    judge = Judge(candidate, OPTIONS, Sources())
    afresh, first = search(other, Judge(candidate, OPTIONS, Sources())), search(candidate, judge)
    monkeypatch.setattr(rounding_search, "round_given", None)
    again = search(other, judge)
    assert _rounded(again) == _rounded(afresh) == _rounded(first)
    assert again.encodings == afresh.encodings != first.encodings


def _rounded(one: Candidate | Rounding) -> bytes:
    rounding = one.rounding if isinstance(one, Candidate) else one
    return numpy_helper.to_array(rounding.tensors["w"]).tobytes()


@pytest.mark.parametrize("is_free", [True, False])
def test_a_remedy_that_fails_is_left(is_free: bool) -> None:
    """Nobody asked for it, so that its error is its reason; a recipe that asks for it gets the error."""
    candidate, judge = judge_of(24)

    def fail(start: Candidate, bench: Judge) -> Proposal:
        raise StatisticsError("the moments are not finite")

    remedy = replace(always(fail), is_free=is_free)
    kept, trials = improve(judge, candidate, [remedy, free("other", finer)])
    assert {trial.remedy: (trial.is_kept, trial.why) for trial in trials}["toy"] == (
        False,
        "it failed: the moments are not finite",
    )
    assert kept is not candidate
    with pytest.raises(StatisticsError, match="not finite"):
        improve(judge, candidate, [replace(remedy, is_asked=lambda recipe: True)])


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
    made = finer(candidate, judge).candidate
    judge.score([made], whole)
    gone = weakref.ref(made)
    del made
    gc.collect()
    assert gone() is None


def test_a_step_that_loses_on_other_samples_is_dropped() -> None:
    """Ranges that fit the samples that choose clip the others; the step before stays."""
    candidate, judge = judge_of(48)

    def fit(start: Candidate, bench: Judge) -> Proposal | Refusal:
        if start is candidate:
            return Refusal("nothing to fit")
        largest = max(float(np.abs(feed["x"]).max()) for feed in bench.choosing)
        return ranges(largest)(start, bench)

    final, (first, second) = improve(judge, candidate, [free("finer", finer), free("fitted", fit)])
    assert first.is_kept and final.recipe.activations.calibrator.name == "minmax"
    assert not second.is_kept and second.after < second.before and second.why.startswith("it loses ")


@pytest.mark.parametrize(
    ("interval", "of_most", "text"),
    [
        ((0.2, 1.4), True, "its gain is 0.2 to 1.4 dB"),
        ((-0.2, 1.4), True, "its gain is -0.2 to 1.4 dB; most samples surely gain"),
        ((-0.2, 1.4), False, "its gain is -0.2 to 1.4 dB"),
    ],
)
def test_what_a_kept_remedy_says_of_its_gain(interval: tuple[float, float], of_most: bool, text: str) -> None:
    """The text claims that most samples gain only if they do."""
    gain = Gain(20.0, 20.6, interval, of_most)
    assert Trial(remedy="x", is_kept=True, **gain.figures).texts == [text]
