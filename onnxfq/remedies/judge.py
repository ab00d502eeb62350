"""`Judge`: tries remedies on a candidate and keeps those that samples confirm which did not choose them.

This is the only place that compares candidates. It has one division of the samples, one measure, one least
gain, and one record, `Trial`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from time import perf_counter
from typing import NamedTuple
from weakref import WeakKeyDictionary

from onnxfq.choices import REPAIR_DB, THOROUGH
from onnxfq.data import Feed
from onnxfq.data.stream import count_runs
from onnxfq.documents.equalization import Equalization
from onnxfq.documents.recipe import Recipe
from onnxfq.documents.scores import CandidateScore, Evaluation
from onnxfq.documents.sensitivity import FLOAT, WEIGHTS, Sensitivity
from onnxfq.documents.trial import Trial
from onnxfq.errors import DataError, OnnxfqError
from onnxfq.execution.reference_runs import keep_outputs
from onnxfq.execution.sides import Outputs
from onnxfq.graph.external.scratch_file import weights_stored_in
from onnxfq.numerics.metrics import standard_error_db
from onnxfq.remedies.accuracy_target import AccuracyTarget
from onnxfq.remedies.candidate import Candidate, Sources
from onnxfq.remedies.samples import PROVING, split_samples
from onnxfq.remedies.work import Budget, Work
from onnxfq.stages.options import QuantizeOptions
from onnxfq.stages.score import score_models
from onnxfq.targets.target import target_by_name

LEAST_GAIN_DB = 0.5
"""Gain in dB from which a remedy is proposed; what costs at run time has it on the samples that prove too.

"""

LEAST_PROVEN_DB = 0.25
"""The same for what costs nothing: the samples that prove are few, and reject half of what gains just enough.

A gain of less was a loss as often, in the tasks of 19 networks.
"""


GAINED_SHARE = 1 - 10 ** (-LEAST_GAIN_DB / 10)
"""Share of the noise that must go for a gain of LEAST_GAIN_DB."""


NOTHING_GAINS = f"nothing gains {LEAST_GAIN_DB} dB on the samples that choose"


def explain_gain(before_db: float, after_db: float) -> str:
    """Return why a gain is too little; empty if it is enough."""
    if after_db - before_db >= LEAST_GAIN_DB:
        return ""
    if after_db == -math.inf:
        return "an output is not finite"
    gain = round(after_db - before_db, 1)
    return f"it {'gains' if gain >= 0 else 'loses'} {abs(gain):.1f} dB and must gain {LEAST_GAIN_DB}"


def keeps_sqnr(before: Sequence[float], after: Sequence[float]) -> bool:
    """Tell whether no figure in dB is lower by more than what proves nothing, as a repair of a fault must."""
    return all(new >= old - LEAST_PROVEN_DB for old, new in zip(before, after, strict=True))


def ask_for_nothing(recipe: Recipe) -> bool:
    """Return False: no recipe asks for the remedy."""
    return False


def take_no_time(candidate: Candidate, judge: Judge) -> float:
    """Return 0 s."""
    return 0.0


def know_no_limit(candidate: Candidate, judge: Judge) -> float:
    """Return infinity."""
    return math.inf


class Refusal(NamedTuple):
    """Answer of a remedy without a candidate.

    Attributes:
        why: the reason in a few words.
        details: what was measured, a line each.
        evidence: the measurement, if there is one to look up.
        is_needed: whether anything has to be done.
    """

    why: str
    details: Sequence[str] = ()
    evidence: Sensitivity | Equalization | None = None
    is_needed: bool = True


class Proposal(NamedTuple):
    """A candidate in place of another.

    Attributes:
        candidate: to be proven.
        details: what differs, a line each.
        evidence: the measurement that chose it, if there is one to look up.
        price: its cost at run time, if the evidence has none.
    """

    candidate: Candidate
    details: Sequence[str] = ()
    evidence: Sensitivity | Equalization | None = None
    price: str = ""


@dataclass(frozen=True)
class Remedy:
    """One thing that can be done for a loss.

    Attributes:
        name: of its trials.
        explain_unneeded: takes a candidate and the judge, and returns why nothing has to be tried, or "".
        propose: takes the same; the judge's `choose` compares candidates on the samples that choose. Returns
            a better candidate, or the reason not to.
        proves_itself: whether it keeps an accuracy target, which has its own measure and proof.
        is_asked: whether a recipe asks for it, so that it runs where repair is off.
        is_free: whether it costs nothing at run time, so that it is tried at any accuracy, alone and combined
            with others.
        comes_last: whether others have the budget before it where the outputs are good, and after it where
            they are low.
        is_sure: whether it takes noise away and changes nothing else, so that all others leave it its time,
            and its gain on few samples needs no standard error.
        estimate: takes the same, and returns the seconds of `work` that a proposal takes.
        leave: the same for what it leaves to a later remedy that is likelier to gain.
        gain: takes the same, and returns the most dB that it can gain, as far as that is known.
    """

    name: str
    explain_unneeded: Callable[[Candidate, Judge], str]
    propose: Callable[[Candidate, Judge], Proposal | Refusal]
    proves_itself: bool = False
    is_asked: Callable[[Recipe], bool] = ask_for_nothing
    is_free: bool = False
    comes_last: bool = False
    is_sure: bool = False
    estimate: Callable[[Candidate, Judge], float] = take_no_time
    leave: Callable[[Candidate, Judge], float] = take_no_time
    gain: Callable[[Candidate, Judge], float] = know_no_limit


WIDE_FORMAT = "float8e4m3fn"
"""Format for layers whose values integers of the same width cannot span."""


def can_multiply(target: str, qtype: str, capability: int) -> bool:
    """Tell whether a GPU of this compute capability multiplies in a number format."""
    return capability >= target_by_name(target).capabilities.get(qtype, math.inf)


def _choose_wide_format(start: Candidate, accuracy: AccuracyTarget, capability: int | None) -> str:
    """Return the format that repair may give to layers: the one asked for, or what the GPU has."""
    if accuracy.is_target or accuracy.fallback != FLOAT or capability is None:
        return FLOAT if accuracy.fallback == WEIGHTS else accuracy.fallback
    return WIDE_FORMAT if can_multiply(start.recipe.target, WIDE_FORMAT, capability) else FLOAT


@dataclass(frozen=True)
class Judge:
    """Samples, measure and limits by which remedies are chosen and kept.

    Attributes:
        start: the first candidate: its float model is the reference.
        options: threads, device and progress.
        sources: what `quantize` was given beside the data.
        first: the comparison of `start` with the float model; None before it is compared.
        accuracy: the target to keep; None without one.
        wide: number format that repair gives to layers in place of float; FLOAT for none.
        least: dB of the worst part of the outputs below which also remedies are tried that cost something at
            run time; None for never.
        is_off: whether nothing is tried but for a target, and what the recipe asks for.
        work: what a trial costs.
        budget: for all trials.
        choosing: the samples that choose, in a proposal.
        proving: the samples that will prove it, and from which nothing may be learnt.
        known: scores so far, by candidate as long as it lives, and by samples.
        wanted: outputs of the float model so far, by samples; none if they are large.
    """

    start: Candidate
    options: QuantizeOptions
    sources: Sources
    first: Evaluation | None = None
    accuracy: AccuracyTarget | None = None
    wide: str = FLOAT
    least: float | None = None
    is_off: bool = False
    work: Work = Work(0, 0.0, 0)
    budget: Budget = field(default_factory=Budget, repr=False)
    choosing: Sequence[Feed] = ()
    proving: Sequence[Feed] = ()
    known: WeakKeyDictionary[Candidate, dict[tuple[int, int], CandidateScore]] = field(
        default_factory=WeakKeyDictionary, repr=False
    )
    wanted: dict[tuple[int, int], list[Outputs]] = field(default_factory=dict, repr=False)

    @staticmethod
    def of(
        start: Candidate,
        options: QuantizeOptions,
        sources: Sources,
        first: Evaluation,
        accuracy: AccuracyTarget,
    ) -> Judge:
        """Return the judge of a call of `quantize`, with its budget."""
        least = accuracy.least_db(bool(start.plan.activations))
        wide = _choose_wide_format(start, accuracy, options.capability)
        judge = Judge(start, options, sources, first, accuracy if accuracy.is_target else None, wide, least)
        if accuracy.repair is None:
            return replace(judge, is_off=True)
        work = Work.of(start)
        low = first.lowest_db < (REPAIR_DB if judge.aim is None else judge.aim)
        # The cure of infinity and NaN has no budget.
        endless = accuracy.repair == THOROUGH or any(one.broken for one in first.candidates[:1])
        budget = Budget() if endless else Budget(work.allow(low))
        split = split_samples(start.session.kept)
        runs = work.opening + work.run * (count_runs(split.choosing) + count_runs(split.proving))
        budget.spend(runs + work.finish(count_runs(split.unused)))
        return replace(judge, work=work, budget=budget)

    @property
    def aim(self) -> float | None:
        """SQNR in dB to reach: the promised one, or `least`; None without one."""
        return self.least if self.accuracy is None else self.accuracy.min_sqnr

    @property
    def kept(self) -> list[Feed]:
        """The samples that are kept for comparing, in the order of their digests."""
        return self.start.session.kept

    @property
    def reported(self) -> Sequence[Feed]:
        """The samples for the report: those that prove a promised SQNR, else those that did not judge.

        If the samples are few, all of them are reported.
        """
        split = split_samples(self.kept)
        return split.promised if self.is_promised else split.unused

    @property
    def is_promised(self) -> bool:
        """Whether an SQNR is promised."""
        return self.accuracy is not None and self.accuracy.min_sqnr is not None

    def better(self, candidate: Candidate, remedy: Remedy) -> tuple[Candidate, Trial]:
        """Return the candidate that `remedy` proposes if it is proven to be better, else `candidate`."""
        begun = perf_counter()
        why = self.explain_unneeded(candidate, remedy)
        if why:
            return candidate, Trial(remedy=remedy.name, is_needed=False, why=why)
        # A promise and what the recipe names have no budget.
        if not remedy.proves_itself and not remedy.is_asked(candidate.recipe):
            why = self.budget.explain_refusal(remedy.estimate(candidate, self))
        if why:
            return candidate, Trial(remedy=remedy.name, why=why)
        figures: dict[str, float] = {}
        if remedy.proves_itself:
            verdict = remedy.propose(candidate, self)
        else:
            verdict, figures = self._confirm(candidate, remedy)
        trial = Trial(
            remedy=remedy.name,
            details=tuple(verdict.details),
            evidence=verdict.evidence,
            seconds=perf_counter() - begun,
            before=figures.get("before"),
            after=figures.get("after"),
        )
        if isinstance(verdict, Proposal):
            return verdict.candidate, trial.model_copy(update={"is_kept": True, "price": verdict.price})
        return candidate, trial.model_copy(update={"why": verdict.why, "is_needed": verdict.is_needed})

    def _confirm(self, candidate: Candidate, remedy: Remedy) -> tuple[Proposal | Refusal, dict[str, float]]:
        """Return what `remedy` proposes if other samples confirm it, and the figures on these."""
        if len(self.kept) < 2:
            why = "one sample cannot both choose and prove it" if self.kept else "no data was given"
            return Refusal(why), {}
        split = split_samples(self.kept)
        proposal = replace(self, choosing=split.choosing, proving=split.proving).ask(remedy, candidate)
        if isinstance(proposal, Refusal):
            return proposal, {}
        before, after = self.score([candidate, proposal.candidate], split.proving)
        figures = {"before": before, "after": after}
        least_db = LEAST_PROVEN_DB if remedy.is_free else LEAST_GAIN_DB
        # For more, LEAST_PROVEN_DB was measured; what only takes noise away needs no other guard.
        is_few = len(split.proving) < PROVING // 2 and not (remedy.is_sure and self.wide == FLOAT)
        error_db = self.gain_error(candidate, proposal.candidate, split.proving) if is_few else 0.0
        if after - before >= max(least_db, error_db):
            return proposal, figures
        is_large = after - before >= least_db
        why = f"its standard error is {error_db:.2g} dB" if is_large else f"it must gain {least_db} dB"
        return Refusal(why, proposal.details, proposal.evidence), figures

    def gain_error(self, before: Candidate, after: Candidate, feeds: Sequence[Feed]) -> float:
        """Return the standard error in dB of a gain on `feeds`, which were scored; 0 where it is unknown.

        Both ran on the same samples, so that what makes a sample difficult cancels. One sample has none.
        """
        # Of what gains 0.5 dB on 4 samples of mnist, resnet20 and ultraface, 4 others kept 29% of the true
        # losses without this limit and 12% with it, 91% and 85% of the true gains of 0.25 dB.
        worst = [self.known[one][id(feeds[0]), len(feeds)].worst for one in (before, after)]
        noises = [score.noises for score in worst if score is not None]
        if len(noises) < 2 or len(noises[0]) != len(noises[1]):
            return 0.0
        error_db = standard_error_db(*noises)
        return error_db if math.isfinite(error_db) else 0.0

    def ask(self, remedy: Remedy, candidate: Candidate) -> Proposal | Refusal:
        """Return what `remedy` proposes; if it fails, and nobody asked for it, its error is the reason."""
        try:
            return remedy.propose(candidate, self)
        except OnnxfqError as error:
            if remedy.proves_itself or remedy.is_asked(candidate.recipe):
                raise
            return Refusal(f"it failed: {error}")

    def explain_unneeded(self, candidate: Candidate, remedy: Remedy) -> str:
        """Return why `remedy` is not tried; empty if it is."""
        if self.is_off and not remedy.proves_itself and not remedy.is_asked(candidate.recipe):
            return "repair is off"
        return remedy.explain_unneeded(candidate, self)

    def compare_choosing(self, candidates: int) -> float:
        """Return the seconds of comparing so many candidates on the samples that choose."""
        return self.work.compare(count_runs(split_samples(self.kept).choosing), candidates, is_first=False)

    def choose(self, candidates: Sequence[Candidate]) -> list[float]:
        """Return the SQNR in dB of each candidate on the samples that choose."""
        return self.score(candidates, self.choosing)

    def score(self, candidates: Sequence[Candidate], feeds: Sequence[Feed]) -> list[float]:
        """Return the SQNR in dB of each candidate, as `Evaluation.lowest_db` has it for these samples.

        Raises DataError without feeds.
        """
        if not feeds:
            raise DataError("comparing candidates needs data; give data")
        session, samples = self.start.session, (id(feeds[0]), len(feeds))
        new = [one for one in candidates if samples not in self.known.setdefault(one, {})]
        if new:
            self.budget.spend(self.work.compare(count_runs(feeds), len(new), is_first=False))
        with weights_stored_in(session.scratch):
            if new and samples not in self.wanted:
                given = session.compared, session.judged, feeds, self.options.threads, self.options.device
                self.wanted[samples] = keep_outputs(*given)
            evaluation = score_models(
                session.compared,
                {str(at): one.simulate() for at, one in enumerate(new)},
                feeds if new else (),
                threads=self.options.threads,
                device=self.options.device,
                exact=self.options.exact,
                judged=session.judged,
                expected=iter(self.wanted[samples]) if new and self.wanted[samples] else None,
            )
        for candidate, scores in zip(new, evaluation.candidates, strict=True):
            self.known[candidate][samples] = scores
        return [self.known[candidate][samples].lowest_db for candidate in candidates]

    def prove(self, candidate: Candidate, feeds: Sequence[Feed]) -> CandidateScore:
        """Return the scores of a candidate, which `score` returns the SQNR of."""
        self.score([candidate], feeds)
        return self.known[candidate][id(feeds[0]), len(feeds)]

    def explain_sound(self, candidate: Candidate) -> str:
        """Return why a loss of `candidate` needs no repair; empty if it does."""
        if self.sources.encodings is not None:
            return "encodings of another tool are used as they are"
        least = self.aim
        if least is None:
            return "no SQNR is asked for"
        if candidate is self.start or len(self.kept) < 2:
            worst = math.inf if self.first is None else self.first.lowest_db
        else:
            worst = self.score([candidate], split_samples(self.kept).choosing)[0]
        return "" if worst < least else f"the outputs have {least:g} dB"
