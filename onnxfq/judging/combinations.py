"""`improve`: remedies that cost nothing at run time, alone and combined, then those that do, one by one."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from time import perf_counter
from typing import NamedTuple

from onnxfq.documents.trial import Trial
from onnxfq.judging.candidate import Candidate
from onnxfq.judging.judge import (
    NOTHING_GAINS,
    Gain,
    Judge,
    Proposal,
    Refusal,
    Remedy,
    explain_gain,
    explain_limit,
)
from onnxfq.judging.samples import PROVING, take

SURE = ("widened", "protected")
"""Remedies that take noise away and change nothing else: all others leave them their time."""

BEAM = 2
"""Candidates that the next remedy is tried on: a chain that keeps one misses what only pairs gain."""


PROVEN = 3
"""Candidates, the best first, of which the first that is proven is kept; more would be kept by chance."""

OTHERS = "others gain more"


class _Step(NamedTuple):
    """A remedy on the way to a candidate, with its proposal."""

    remedy: str
    proposal: Proposal


class _Path(NamedTuple):
    """A candidate, and the remedies that led to it."""

    candidate: Candidate
    steps: tuple[_Step, ...] = ()

    def join(self, step: _Step) -> _Path:
        """Return the path with one more step."""
        return _Path(step.proposal.candidate, (*self.steps, step))


Finish = Callable[[Judge, Candidate], tuple[Candidate, list[Trial]]]
"""Does what was asked for, whatever it takes, and returns what is left and the trials."""


def improve(
    judge: Judge, candidate: Candidate, remedies: Sequence[Remedy], finish: Finish | None = None
) -> tuple[Candidate, tuple[Trial, ...]]:
    """Return what is left of `candidate` after all remedies in this order and `finish`, and their trials.

    Without a budget this begins again from what was kept within one.
    """
    candidate, trials = _improve(judge, candidate, remedies, finish)
    if judge.is_thorough:
        judge.budget.left = math.inf
        candidate, more = _improve(judge, candidate, remedies, finish)
        trials = [old if old.is_kept else new for old, new in zip(trials, more, strict=True)]
    return candidate, tuple(trials)


def _improve(
    judge: Judge, candidate: Candidate, remedies: Sequence[Remedy], finish: Finish | None
) -> tuple[Candidate, list[Trial]]:
    free = [remedy for remedy in remedies if remedy.is_free]
    costly = [remedy for remedy in remedies if not remedy.is_free]
    start, budget = candidate, judge.budget
    costs = _estimate_needed(judge, start, costly)
    sure = sum(costs.pop(name, 0.0) for name in SURE)
    aside = sure if sure <= budget.left else 0.0
    budget.spend(aside)
    budget.later = sum(costs.values())
    candidate, trials = _Combined(judge, start, free).improve()
    if candidate is not start:
        costs = _estimate_needed(judge, candidate, [one for one in costly if one.name not in SURE])
    for remedy in costly:
        costs.pop(remedy.name, None)
        budget.later = sum(costs.values())
        if aside and remedy.name in SURE:  # also if more than all the rest was spent
            budget.left, aside = max(budget.left, 0.0) + aside, 0.0
        candidate, trial = judge.better(candidate, remedy)
        trials.append(trial)
    if finish is None:
        return candidate, trials
    candidate, more = finish(judge, candidate)
    return candidate, [*trials, *more]


def _estimate_needed(judge: Judge, candidate: Candidate, remedies: Sequence[Remedy]) -> dict[str, float]:
    """Return the runs that each remedy takes that is needed."""
    return {
        remedy.name: remedy.estimate(candidate, judge)
        for remedy in remedies
        if not judge.explain_unneeded(candidate, remedy)
    }


class _Combined:
    """Free remedies on one candidate."""

    def __init__(self, judge: Judge, start: Candidate, remedies: Sequence[Remedy]) -> None:
        self._judge, self._start, self._remedies = judge, start, remedies
        self._refusals: dict[str, Refusal] = {}
        self._seconds: dict[str, float] = {}
        self._reserved: dict[str, float] = {}
        self._best = _Path(start)

    def improve(self) -> tuple[Candidate, list[Trial]]:
        """Return the best candidate that is proven, and a trial for each remedy."""
        judge, start = self._judge, self._start
        whys = {remedy.name: judge.explain_unneeded(start, remedy) for remedy in self._remedies}
        asked = [remedy for remedy in self._remedies if not whys[remedy.name]]
        limited = {remedy.name: remedy for remedy in asked if remedy.has_budget(start, judge)}
        costs = {name: remedy.estimate(start, judge) for name, remedy in limited.items()}
        most_db = {name: getattr(cost, "most_db", math.inf) for name, cost in costs.items()}
        # The cheapest first; cures of a loss that shows come after all others.
        for name in sorted(costs, key=lambda name: (limited[name].is_cure, costs[name])):
            why = judge.budget.explain_refusal(costs[name], sum(self._reserved.values()))
            if why:
                most = f" ({most_db[name]:.1f} dB at most)" if math.isfinite(most_db[name]) else ""
                self._refusals[name] = Refusal(why + most)
            elif explain_limit(most_db[name]):
                self._refusals[name] = Refusal(explain_limit(most_db[name]))
            else:
                self._reserved[name] = costs[name]
        able = [remedy for remedy in asked if not explain_limit(most_db.get(remedy.name, math.inf))]
        kept, whole, unproven = start, "", dict[str, Refusal]()
        if len(self._refusals) < len(asked):
            whole = judge.explain_few()
            paths = [] if whole else self._try_combinations(start, judge.trying, able)
            whole = whole or ("" if paths else NOTHING_GAINS)
            self._best = paths[0] if paths else self._best
            for path in paths[:PROVEN]:
                why = judge.prove_gain(start, path.candidate).explain_refusal(0.0)
                if not why:
                    kept, self._best = path.candidate, path
                    break
                whole = whole or why
                for step in path.steps:
                    unproven.setdefault(step.remedy, Refusal(why, step.proposal.details))
        figures = self._prove()
        if kept is not start:
            kept = self._drop_losses(figures)
        steps = {step.remedy: step for step in self._best.steps}
        trials = []
        for name in whys:
            if whys[name]:
                trials.append(Trial(remedy=name, is_needed=False, why=whys[name]))
                continue
            gain = figures.get(name)
            is_kept = name in steps and kept is not start
            missed = Refusal(OTHERS if kept is not start else whole)
            others = {name: missed} | unproven | self._refusals
            verdict = steps[name].proposal if name in steps else others[name]
            why = verdict.why if isinstance(verdict, Refusal) else "" if is_kept else whole
            details = tuple(verdict.details)
            if is_kept and figures[name].is_loss:
                details += (self._explain_loss(figures),)
            trials.append(
                Trial(
                    remedy=name,
                    is_needed=not isinstance(verdict, Refusal) or verdict.is_needed,
                    is_kept=is_kept,
                    **({} if gain is None else gain.figures),
                    why=why,
                    details=details,
                    evidence=verdict.evidence,
                    seconds=self._seconds.get(name, 0.0),
                )
            )
        return kept, trials

    def _drop_losses(self, figures: Mapping[str, Gain]) -> Candidate:
        """Return the best candidate without its last steps that lose on the samples that prove."""
        steps = self._best.steps
        while len(steps) > 1 and figures[steps[-1].remedy].is_loss:
            proposal, gain = steps[-1].proposal, figures[steps[-1].remedy]
            why = explain_gain(gain.before, gain.after)
            self._refusals[steps[-1].remedy] = Refusal(why, proposal.details, proposal.evidence)
            steps = steps[:-1]
        self._best = _Path(steps[-1].proposal.candidate, steps)
        return self._best.candidate

    def _explain_loss(self, figures: Mapping[str, Gain]) -> str:
        """Return why a step is kept that loses by itself: what the whole combination gains."""
        first, last = self._best.steps[0].remedy, self._best.steps[-1].remedy
        return f"chosen with {last}: together {figures[first].before:.1f} -> {figures[last].after:.1f} dB"

    def _try_combinations(self, start: Candidate, judge: Judge, remedies: Sequence[Remedy]) -> list[_Path]:
        """Return the combinations that gain enough on the samples that choose, the best first."""
        (start_db,) = judge.choose([start])
        later = judge.budget.later
        beam = tried = [(start_db, _Path(start))]
        spare: list[tuple[float, _Path]] = []
        for remedy in remedies:
            begun = perf_counter()
            self._reserved.pop(remedy.name, None)
            if remedy.name in self._refusals:  # those before it may have taken less than was estimated
                others = sum(self._reserved.values())
                if judge.budget.explain_refusal(remedy.estimate(start, judge), others):
                    continue
                del self._refusals[remedy.name]
            left, judge.budget.later = judge.budget.left, later + sum(self._reserved.values())
            for place, (_, path) in enumerate(list(beam)):
                # A remedy that has no budget has one from its second try on: the runs of the first.
                runs = max(remedy.estimate(path.candidate, judge), left - judge.budget.left) if place else 0.0
                if place and judge.budget.explain_extra(runs):
                    continue
                verdict = judge.ask(remedy, path.candidate)
                if isinstance(verdict, Refusal):
                    if path.candidate is start:
                        self._refusals[remedy.name] = verdict
                    continue
                scores_db = judge.choose([one.candidate for one in (verdict, *verdict.others)])
                score_db, *others_db = scores_db
                paths = [path.join(_Step(remedy.name, one)) for one in (verdict, *verdict.others)]
                tried = [*tried, (score_db, paths[0])]
                why = explain_gain(start_db, score_db)
                # They stand behind a proposal that gains, and by themselves where it does not.
                others_db = others_db if why else [min(one, score_db) for one in others_db]
                spare += zip(others_db, paths[1:], strict=True)
                if path.candidate is start and why:
                    self._refusals[remedy.name] = Refusal(why, verdict.details, verdict.evidence)
            tried = sorted(tried, key=lambda pair: (-pair[0], len(pair[1].steps)))
            beam = tried[:BEAM]
            self._seconds[remedy.name] = self._seconds.get(remedy.name, 0.0) + perf_counter() - begun
        judge.budget.later = later
        judge.rounded.clear()
        ranked = sorted([*tried, *spare], key=lambda pair: (-pair[0], len(pair[1].steps)))
        return [path for score_db, path in ranked if not explain_gain(start_db, score_db)]

    def _prove(self) -> dict[str, Gain]:
        """Return the gain of each step of the best candidate on the samples that prove."""
        chain = [self._start, *(step.proposal.candidate for step in self._best.steps)]
        proving = take(self._judge.split.proving, PROVING)
        return {
            step.remedy: self._judge.measure_gain(pair, proving)
            for step, pair in zip(self._best.steps, pairwise(chain), strict=True)
        }
