"""`Judge`: tries remedies on a candidate and keeps those that samples confirm which did not choose them.

This is the only place that compares candidates. It has one division of the samples, one measure, one least
gain, and one record, `Trial`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from time import perf_counter
from typing import Any, NamedTuple, cast

from onnxfq.choices import REPAIR_DB, THOROUGH
from onnxfq.data import Feed
from onnxfq.data.stream import count_runs
from onnxfq.documents.equalization import Equalization
from onnxfq.documents.promise import Promised
from onnxfq.documents.recipe import Recipe
from onnxfq.documents.scores import CandidateScore, Evaluation, name_interval
from onnxfq.documents.sensitivity import FLOAT, WEIGHTS, Sensitivity
from onnxfq.documents.trial import Trial
from onnxfq.errors import DataError, OnnxfqError
from onnxfq.execution.reference_runs import keep_outputs
from onnxfq.execution.sides import Outputs
from onnxfq.graph.external.scratch_file import weights_stored_in
from onnxfq.judging.accuracy_target import AccuracyTarget, PromiseProof
from onnxfq.judging.candidate import Candidate, Sources
from onnxfq.judging.folds import Folds
from onnxfq.judging.samples import PROVING, REPORTED, Split, split_samples, take
from onnxfq.judging.work import Budget, Work, limit_samples
from onnxfq.numerics.intervals import interval_db, most_gain
from onnxfq.stages.options import QuantizeOptions
from onnxfq.support.progress import announce
from onnxfq.targets.target import target_by_name

LEAST_GAIN_DB = 0.5
"""Gain in dB from which a remedy is proposed; what costs at run time has it on the samples that prove too."""

HARMLESS_DB = 0.25
"""Loss in dB that proves nothing: a gain of less was a loss as often, in the tasks of 19 networks."""

GAINED_SHARE = 1 - 10 ** (-LEAST_GAIN_DB / 10)
"""Share of the noise that must go for a gain of LEAST_GAIN_DB."""


PROMISED = "promised"
"""Name of the trial of what keeps an accuracy target."""

NO_PROMISE = "no accuracy is promised"
"""Reason of that trial without a target."""

NOTHING_GAINS = f"nothing gains {LEAST_GAIN_DB} dB on the samples that choose"


def explain_gain(before_db: float, after_db: float) -> str:
    """Return why a gain is too little; empty if it is enough."""
    if after_db - before_db >= LEAST_GAIN_DB:
        return ""
    if after_db == -math.inf:
        return "an output is not finite"
    gain = round(after_db - before_db, 1)
    return f"it {'gains' if gain >= 0 else 'loses'} {abs(gain):.1f} dB and must gain {LEAST_GAIN_DB}"


def explain_limit(most_db: float) -> str:
    """Return why what gains so many dB at most is not tried; empty if it may gain enough."""
    return f"it gains {most_db:.1f} dB at most" if most_db < LEAST_GAIN_DB else ""


def keeps_sqnr(before: Sequence[float], after: Sequence[float]) -> bool:
    """Tell whether no figure in dB is lower by more than what proves nothing, as a repair of a fault must."""
    return all(new >= old - HARMLESS_DB for old, new in zip(before, after, strict=True))


class Bounded(float):
    """Runs of a proposal that gains `most_db` at most."""

    most_db: float = math.inf

    def __new__(cls, runs: float, most_db: float) -> Bounded:
        """Return so many runs."""
        made = super().__new__(cls, runs)
        made.most_db = most_db
        return made


class Gain(NamedTuple):
    """SQNR in dB of two candidates on the same samples, and the interval of the difference; None unknown.

    `of_most` tells whether most samples surely gain, and `how` ends the reason of a refusal.
    """

    before: float
    after: float
    interval: tuple[float, float] | None
    of_most: bool = False
    how: str = ""

    @property
    def is_sure(self) -> bool:
        """Whether the interval is above zero, or most samples gain; a single sample has no interval."""
        is_above = self.interval is None or self.interval[0] > 0.0
        return self.after > self.before and (is_above or self.of_most)

    @property
    def is_loss(self) -> bool:
        """Whether the figure is lower."""
        return self.after < self.before

    @property
    def figures(self) -> dict[str, Any]:
        """The fields of a trial."""
        measured = {"before": self.before, "after": self.after, "gain": self.interval}
        return measured | {"of_most": self.of_most}

    @property
    def is_open(self) -> bool:
        """Whether more samples may make it sure."""
        return self.after > self.before and not self.is_sure

    def explain_refusal(self, least: float = LEAST_GAIN_DB) -> str:
        """Return why the gain is not enough; empty if it is sure and at least so many dB."""
        if not self.after > self.before or self.after - self.before < least:
            why = f"it must gain {least:g} dB" if least else "it gains nothing on the samples that prove"
            return why + self.how
        return "" if self.is_sure else f"its gain is not sure: {self}"

    def __str__(self) -> str:
        """Return the gain and its interval, as `1.2 dB (0.3 to 2.1)`."""
        return f"{self.after - self.before:.1f} dB{name_interval(self.interval)}"


class Refusal(NamedTuple):
    """Answer of a remedy without a candidate.

    Attributes:
        why: the reason in a few words.
        details: what was measured, a line each.
        evidence: the measurement, if there is one to look up.
        is_needed: whether anything has to be done.
        answer: to a promise that is kept without it.
    """

    why: str
    details: Sequence[str] = ()
    evidence: Sensitivity | Equalization | None = None
    is_needed: bool = True
    answer: Promised | None = None


class Proposal(NamedTuple):
    """A candidate in place of another.

    Attributes:
        candidate: to be proven.
        details: what differs, a line each.
        evidence: the measurement that chose it, if there is one to look up.
        price: its cost at run time, if the evidence has none.
        others: candidates of the same kind that were found too, the best first: one takes the place of this
            one if that is not proven.
        is_sure: whether it learnt from those samples alone that choose: in folds, all others can prove it.
        answer: to a promise that it keeps.
    """

    candidate: Candidate
    details: Sequence[str] = ()
    evidence: Sensitivity | Equalization | None = None
    price: str = ""
    others: Sequence[Proposal] = ()
    is_sure: bool = False
    answer: Promised | None = None


def ask_for_nothing(recipe: Recipe) -> bool:
    """Return False: no recipe asks for the remedy."""
    return False


def take_no_time(candidate: Candidate, judge: Judge) -> float:
    """Return 0 runs."""
    return 0.0


@dataclass(frozen=True)
class Remedy:
    """One thing that can be done for a loss.

    Attributes:
        name: of its trials.
        explain_unneeded: takes a candidate and the judge, and returns why nothing has to be tried, or "".
        propose: takes the same; the judge's `choose` compares candidates on the samples that choose. Returns
            a better candidate, or the reason not to.
        is_asked: whether a recipe asks for it, so that it runs where repair is off too.
        is_free: whether it costs nothing at run time, so that it is tried at any accuracy, alone and combined
            with others.
        is_cure: whether it cures a loss that shows. Where the outputs are low it comes first, and has no
            budget; where they are good it comes last.
        estimate: takes a candidate and the judge, and returns the runs of `work` that a proposal takes;
            `Bounded` where the most is known that it can gain.
    """

    name: str
    explain_unneeded: Callable[[Candidate, Judge], str]
    propose: Callable[[Candidate, Judge], Proposal | Refusal]
    is_asked: Callable[[Recipe], bool] = ask_for_nothing
    is_free: bool = False
    is_cure: bool = False
    estimate: Callable[[Candidate, Judge], float] = take_no_time

    def has_budget(self, candidate: Candidate, judge: Judge) -> bool:
        """Tell whether the budget may cut it: not what a recipe asks for, nor a cure of low outputs."""
        is_needed = self.is_cure and not judge.explain_sound(candidate)
        return not (is_needed or self.is_asked(candidate.recipe))


WIDE_FORMAT = "float8e4m3fn"
"""Format for layers whose values integers of the same width cannot span."""


def can_multiply(target: str, qtype: str, capability: int) -> bool:
    """Tell whether a GPU of this compute capability multiplies in a number format."""
    return capability >= target_by_name(target).capabilities.get(qtype, math.inf)


def _choose_wide_format(start: Candidate, accuracy: AccuracyTarget, capability: int | None) -> str:
    """Return the format that repair may give to layers: the one asked for, or what the GPU has."""
    asked = [name for name in accuracy.fallbacks if name not in (FLOAT, WEIGHTS)]
    if accuracy.is_target or accuracy.fallbacks != (FLOAT,) or capability is None:
        return asked[0] if asked else FLOAT
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
        is_thorough: whether what was kept within the budget is then improved without one.
        work: what a trial costs.
        budget: for all trials.
        choosing: the samples that choose, in a proposal.
        proving: the samples that will prove it, and from which nothing may be learnt.
        folds: parts of the samples, where few or none are unseen.
        wanted: outputs of the float model so far, by samples; none if they are large.
        rounded: candidates of which another one may take the rounded weights, by model and method.
    """

    start: Candidate
    options: QuantizeOptions
    sources: Sources
    first: Evaluation | None = None
    accuracy: AccuracyTarget | None = None
    wide: str = FLOAT
    least: float | None = None
    is_off: bool = False
    is_thorough: bool = False
    work: Work = Work(0)
    budget: Budget = field(default_factory=Budget, repr=False)
    choosing: Sequence[Feed] = ()
    proving: Sequence[Feed] = ()
    folds: Folds | None = None
    wanted: dict[tuple[int, int, int], list[Outputs]] = field(default_factory=dict, repr=False)
    rounded: dict[tuple[int, str], Candidate] = field(default_factory=dict, repr=False)

    @staticmethod
    def of(
        start: Candidate,
        options: QuantizeOptions,
        sources: Sources,
        first: Evaluation,
        accuracy: AccuracyTarget,
    ) -> Judge:
        """Return the judge of a call of `quantize`, with its budget."""
        least = accuracy.repair
        if isinstance(least, str):
            least = REPAIR_DB if start.plan.activations else None
        wide = _choose_wide_format(start, accuracy, options.capability)
        promise = accuracy if accuracy.is_target else None
        folds = Folds.of(start, sources, options)
        judge = Judge(start, options, sources, first, promise, wide, least, folds=folds)
        judge = replace(judge, first=judge.with_folds(start, first))
        if accuracy.repair is None:
            return replace(judge, is_off=True)
        work = Work.of(start)
        low = judge.read_low(start) < (REPAIR_DB if judge.aim is None else judge.aim)
        # The cure of infinity and NaN has no budget.
        is_broken = any(one.broken for one in first.candidates[:1])
        budget = Budget() if is_broken else Budget(work.allow(low))
        is_thorough = accuracy.repair == THOROUGH
        judge = replace(judge, work=work, budget=budget, is_thorough=is_thorough)
        split = judge.split
        runs = count_runs(split.choosing) + count_runs(take(split.proving, PROVING))
        budget.spend(work.opening + work.plain * runs + work.finish(count_runs(take(split.unused, REPORTED))))
        return judge

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
        split = self.split
        return limit_samples(self.start, split.promised if self.is_promised else split.unused)

    @property
    def split(self) -> Split:
        """How the kept samples choose and prove."""
        return split_samples(self.kept, max(PROVING, self.work.proving))

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
        if remedy.has_budget(candidate, self):
            why = self.budget.explain_refusal(remedy.estimate(candidate, self))
        if why:
            return candidate, Trial(remedy=remedy.name, why=why)
        verdict, figures = self._confirm(candidate, remedy)
        return _conclude(remedy.name, candidate, verdict, seconds=perf_counter() - begun, **figures)

    def keep(
        self, candidate: Candidate, propose: Callable[[Candidate, Judge], Proposal | Refusal]
    ) -> tuple[Candidate, Trial]:
        """Return the candidate that keeps the promised accuracy, by the measure and the proof of `propose`.

        A promise has no budget. Its errors end the call.
        """
        begun = perf_counter()
        if self.accuracy is None:
            return candidate, Trial(remedy=PROMISED, is_needed=False, why=NO_PROMISE)
        announce(PROMISED)
        verdict = propose(candidate, self)
        return _conclude(PROMISED, candidate, verdict, seconds=perf_counter() - begun)

    def _confirm(self, candidate: Candidate, remedy: Remedy) -> tuple[Proposal | Refusal, dict[str, Any]]:
        """Return what `remedy` proposes if other samples confirm it, and the figures on these."""
        why = self.explain_few()
        if why:
            return Refusal(why), {}
        proposal = self.trying.ask(remedy, candidate)
        if isinstance(proposal, Refusal):
            return proposal, {}
        gain = self.prove_gain(candidate, proposal.candidate, proposal.is_sure)
        why = gain.explain_refusal(0.0 if remedy.is_free else LEAST_GAIN_DB)
        return Refusal(why, proposal.details, proposal.evidence) if why else proposal, gain.figures

    def explain_few(self) -> str:
        """Return why nothing can be tried; empty with two samples or more."""
        if len(self.kept) > 1:
            return ""
        return "one sample cannot both choose and prove it" if self.kept else "no data was given"

    @property
    def trying(self) -> Judge:
        """The judge as proposals have it, with the samples that choose."""
        return replace(self, choosing=self.split.choosing, proving=self.split.proving)

    def prove_gain(self, before: Candidate, after: Candidate, is_sure: bool = False) -> Gain:
        """Return the gain on samples that prove: PROVING, and more where these do not decide.

        All samples that do not choose prove what is sure, in folds, unless many are unseen. With the ranges
        of all samples, which the file has, it must not lose: a channel may be large in few of them.
        """
        proving = self.split.proving
        gain = self.measure_gain([before, after], take(proving, PROVING))
        if gain.is_open and len(proving) > PROVING:
            gain = self.measure_gain([before, after], proving)
        if gain.is_open and is_sure and self.folds is not None:
            gain = self.measure_gain([before, after], self.others, self.folds)
        if not gain.is_sure or after.statistics.whole is after.statistics.seen:
            return gain
        written = [one.with_all_ranges() for one in (before, after)]
        whole = self.measure_gain(written, take(proving, PROVING))
        return whole._replace(how=", with the ranges of all samples") if whole.is_loss else gain

    def measure_gain(
        self, pair: Sequence[Candidate], feeds: Sequence[Feed], folds: Folds | None = None
    ) -> Gain:
        """Return the gain of the second candidate over the first on `feeds`, with its interval.

        Both run on the same samples, so that what makes a sample difficult cancels.
        """
        scores = self.prove(pair, feeds, folds)
        worst = [score.worst for score in scores]
        noises = [() if score is None else score.noises for score in worst]
        figures = scores[0].lowest_db, scores[1].lowest_db
        if len(noises[0]) != len(noises[1]):
            return Gain(*figures, None)
        return Gain(*figures, interval_db(*noises), most_gain(*noises))

    def prove(
        self, candidates: Sequence[Candidate], feeds: Sequence[Feed], folds: Folds | None = None
    ) -> list[CandidateScore]:
        """Return the scores of candidates on samples that did not choose: of few samples, in folds."""
        folds = self.folds if folds is None and self.folds is not None and self.folds.is_few else folds
        if folds is not None:
            self.budget.spend(self.work.compare(len(feeds), len(candidates), is_first=False))
            found = [folds.score(one, feeds) for one in candidates]
            if None not in found:
                return [one.candidates[0] for one in found if one is not None]
        self.score(candidates, feeds)
        return [self._read(one, feeds) for one in candidates]

    def prove_promise(self, candidate: Candidate, losses: Mapping[str, float]) -> PromiseProof:
        """Return what decides about a promised SQNR: the lower end of the interval that the report has.

        In folds more samples prove, and some have values larger than all known ones: what these leave must
        have the promised SQNR too. `losses` in the runtime of the target are taken off, in dB by output.
        """
        self.score([candidate], self.reported, REPORTED)
        seen = self._read(candidate, self.reported, REPORTED).lowered(losses)
        found = None if self.folds is None else self.folds.score(candidate, self.others)
        folded = seen if found is None else found.candidates[0].lowered(losses)
        score = folded if self._reports_folds(seen, folded) else seen
        if folded.lowest_db < score.low_db:
            return PromiseProof(folded.lowest_db, f"{folded.lowest_db:.4g} with ranges of fewer samples")
        worst = min(score.judging, key=lambda one: one.low_db, default=None)
        interval = "" if worst is None else name_interval(worst.interval)
        return PromiseProof(
            score.lasting_db, f"{score.lowest_db if worst is None else worst.sqnr_db:.4g}{interval}"
        )

    def _reports_folds(self, seen: CandidateScore, folded: CandidateScore) -> bool:
        """Tell whether the folds are reported: of few samples, and where they promise more."""
        return self.folds is not None and (self.folds.is_few or folded.low_db > seen.low_db)

    def answer(self, trial: Trial, evaluation: Evaluation, size: Promised | None) -> Trial:
        """Return the trial of a promised SQNR with the figure that the summary prints, or of a size."""
        if trial.remedy == PROMISED and size is not None:
            return trial.model_copy(update={"promised": size})
        worst, aim = evaluation.worst, None if self.accuracy is None else self.accuracy.min_sqnr
        if trial.remedy != PROMISED or worst is None or aim is None:
            return trial
        answer = Promised(
            measure="SQNR",
            unit=" dB",
            allowed=aim,
            value=round(worst.sqnr_db, 1),  # as the summary has it
            interval=worst.interval and (round(worst.interval[0], 1), round(worst.interval[1], 1)),
            samples=evaluation.feeds,
        )
        return trial.model_copy(update={"promised": answer})

    def with_folds(self, candidate: Candidate, evaluation: Evaluation) -> Evaluation:
        """Return the scores for the report of `candidate`: in folds of few samples, or of a promise."""
        if self.folds is None or not (self.folds.is_few or self.is_promised):
            return evaluation
        among = self.others if self.is_promised else self.folds.samples
        folded = self.folds.rescore(candidate, evaluation, among)
        scores = (*evaluation.candidates[:1], *folded.candidates[:1])
        return folded if len(scores) == 2 and self._reports_folds(*scores) else evaluation

    @property
    def others(self) -> list[Feed]:
        """The samples of the folds that do not choose."""
        choosing = {id(feed) for feed in self.split.choosing}
        return [] if self.folds is None else [one for one in self.folds.samples if id(one) not in choosing]

    def ask(self, remedy: Remedy, candidate: Candidate) -> Proposal | Refusal:
        """Return what `remedy` proposes; if it fails, and nobody asked for it, its error is the reason."""
        self.budget.trying = f"repair: {remedy.name}"
        self.budget.announce()
        try:
            return remedy.propose(candidate, self)
        except OnnxfqError as error:
            if remedy.is_asked(candidate.recipe):
                raise
            return Refusal(f"it failed: {error}")

    def explain_unneeded(self, candidate: Candidate, remedy: Remedy) -> str:
        """Return why `remedy` is not tried; empty if it is."""
        if self.is_off and not remedy.is_asked(candidate.recipe):
            return "repair is off"
        return remedy.explain_unneeded(candidate, self)

    def compare_choosing(self, candidates: int) -> float:
        """Return the runs of comparing so many candidates on the samples that choose."""
        return self.work.compare(count_runs(self.split.choosing), candidates, is_first=False)

    def choose(self, candidates: Sequence[Candidate]) -> list[float]:
        """Return the SQNR in dB of each candidate on the samples that choose."""
        return self.score(candidates, self.choosing)

    def score(
        self, candidates: Sequence[Candidate], feeds: Sequence[Feed], narrow_from: int = 0
    ) -> list[float]:
        """Return the SQNR in dB of each candidate, as `Evaluation.lowest_db` has it for these samples.

        With `narrow_from` those from there on are left out that a narrow interval does not need, as in a
        report.

        Raises DataError without feeds.
        """
        if not feeds:
            raise DataError("comparing candidates needs data; give data")
        session, samples = self.start.session, (id(feeds[0]), len(feeds), narrow_from)
        new = [one for one in candidates if samples not in one.memory]
        if new:
            self.budget.spend(self.work.compare(count_runs(feeds), len(new), is_first=False))
        with weights_stored_in(session.scratch):
            if new and samples not in self.wanted:
                given = session.compared, session.judged, feeds, self.options.threads, self.options.device
                self.wanted[samples] = keep_outputs(*given)
            wanted = self.wanted.get(samples)
            # One at a time, so that memory holds the sessions of one; else each would run the float model.
            for part in filter(None, [[one] for one in new] if wanted else [new]):
                evaluation = session.score(
                    {str(at): one.simulate() for at, one in enumerate(part)},
                    feeds,
                    self.options,
                    narrow_from=0 if self.options.exact or session.judged.states else narrow_from,
                    expected=iter(wanted) if wanted else None,
                )
                for candidate, scores in zip(part, evaluation.candidates, strict=True):
                    candidate.memory[samples] = scores
        return [self._read(candidate, feeds, narrow_from).lowest_db for candidate in candidates]

    def _read(self, candidate: Candidate, feeds: Sequence[Feed], narrow_from: int = 0) -> CandidateScore:
        """Return a score that was measured before."""
        return cast(CandidateScore, candidate.memory[id(feeds[0]), len(feeds), narrow_from])

    def explain_sound(self, candidate: Candidate) -> str:
        """Return why a loss of `candidate` needs no repair; empty if it does."""
        if self.sources.encodings is not None:
            return "encodings of another tool are used as they are"
        least = self.aim
        if least is None:
            return "no SQNR is asked for"
        return "" if self.read_low(candidate) < least else f"the outputs have {least:g} dB"

    def read_low(self, candidate: Candidate) -> float:
        """Return the lower end in dB of the interval of what the summary prints of `candidate`.

        One that remedies have changed is read on the samples that prove.
        """
        if candidate is self.start or len(self.kept) < 2:
            scores = () if self.first is None else self.first.candidates[:1]
            return min((one.low_db for one in scores), default=math.inf)
        return self.prove([candidate], take(self.split.proving, PROVING))[0].low_db


def _conclude(
    name: str, candidate: Candidate, verdict: Proposal | Refusal, **figures: Any
) -> tuple[Candidate, Trial]:
    """Return what is left of `candidate` after a verdict, and the trial."""
    figures |= {"details": tuple(verdict.details), "evidence": verdict.evidence}
    trial = Trial(remedy=name, promised=verdict.answer, **figures)
    if isinstance(verdict, Proposal):
        return verdict.candidate, trial.model_copy(update={"is_kept": True, "price": verdict.price})
    return candidate, trial.model_copy(update={"why": verdict.why, "is_needed": verdict.is_needed})
