"""`Repairs`: the repair of each cause, alone and together, measured on samples that chose nothing."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence

import onnx

from onnxfq.diagnosis.diagnosis import NOTHING_READ, Diagnosis, verdict_of
from onnxfq.diagnosis.measure import Measure
from onnxfq.diagnosis.named_tensors import named_rows
from onnxfq.diagnosis.ranking import FOR_SPEED, find_noisiest, rank
from onnxfq.diagnosis.reading.cause import FOUND, Cause, Suspicion
from onnxfq.diagnosis.reading.file_editor import edit_file
from onnxfq.judging.judge import GAINED_SHARE, explain_gain, keeps_sqnr
from onnxfq.judging.work import Budget

RUNS = 512
"""Most runs that measure single repairs, 32 on all samples that prove."""


class Repairs:
    """Edited copies of a file, and their SQNR."""

    def __init__(self, measure: Measure) -> None:
        """Begin with the file as it is."""
        self._candidate, self._measure = measure.candidate, measure
        self.together: onnx.ModelProto = measure.candidate.proto
        self.is_changed = False
        self._budget = Budget(RUNS)
        self._measured: dict[tuple[int, ...], float | None] = {}

    def confirm(self, suspicions: Sequence[Suspicion]) -> list[Suspicion]:
        """Return the causes among `suspicions`, the most harmful first.

        The repair of a cause gains on samples that did not choose it, alone or on top of worse ones. Others
        hide nothing. Without any cause, a pair that alone makes almost all of the noise is one.
        """
        causes = self._confirm(list(suspicions))
        if any(one.edits for one in causes) or self._candidate.opened is None:
            return causes
        return self._confirm([*causes, *find_noisiest(self._candidate)])

    def _confirm(self, left: list[Suspicion]) -> list[Suspicion]:
        while True:
            causes = rank(self._candidate, left)
            places = (at for at in range(len(causes)) if not self._gains(causes[at], causes[:at]))
            wrong = next(places, None)
            if wrong is None:
                return causes
            left = [one for one in left if one is not causes[wrong]]

    def _gains(self, one: Suspicion, worse: Sequence[Suspicion]) -> bool:
        """Tell whether the repair of a suspicion gains in SQNR, alone or on top of worse ones."""
        if not one.edits or one.kind in FOR_SPEED or self._candidate.opened is None:
            return True
        for others in ([], [other for other in worse if other.edits]) if worse else ([],):
            before, after = self._sqnr_of(*others), self._sqnr_of(*others, one)
            if before is None or after is None:
                return one.harm >= GAINED_SHARE  # on the samples that choose
            if before == after == -math.inf or not explain_gain(before, after):
                return True
        return False

    def _sqnr_of(self, *suspicions: Suspicion) -> float | None:
        """Return the SQNR with some repairs on the samples that prove; None without runs for it."""
        key, proving = tuple(map(id, suspicions)), self._candidate.split.proving
        if key not in self._measured and self._can_run(len(proving)):
            edited = self._edit(self._candidate.proto, *suspicions)
            self._measured[key] = self._measure.sqnr_db(edited, proving)
        return self._measured.get(key)

    def report(self, suspicions: Sequence[Suspicion], looked_at: tuple[str, ...]) -> Diagnosis:
        """Return the diagnosis with what each repair restores; `together` gets those that do no harm."""
        candidate, measure = self._candidate, self._measure
        causes: list[Cause] = []
        before = None if candidate.opened is None else measure.reported(candidate.proto)
        repairs: list[Suspicion] = []
        good: list[Suspicion] = []
        for suspicion in suspicions:
            alone = None
            if suspicion.edits and before is not None:
                alone = self._sqnr_of(suspicion)
                if measure.function is not None and alone is not None:
                    alone = measure.reported(self._edit(candidate.proto, suspicion))
                repairs.append(suspicion)
                if alone is None or measure.function is not None or keeps_sqnr([before], [alone]):
                    good.append(suspicion)
            found = {name: getattr(suspicion, name) for name in FOUND}
            causes.append(Cause(**found, before=before, after=alone))
        if repairs:
            self._combine(repairs, good)
        after = measure.reported(self.together) if self.is_changed else None
        form, floats = candidate.form, candidate.floats
        count = len(form.activations) + len(form.constants)
        verdict = verdict_of(tuple(causes), before, after, measure.unit, with_float=floats is not None)
        return Diagnosis(
            source=candidate.source,
            verdict=verdict if count else NOTHING_READ,
            causes=tuple(causes),
            looked_at=looked_at,
            not_looked_at=tuple(f"{kind}: {n}" for kind, n in Counter(form.passed_over).items()),
            unmatched=() if floats is None else tuple(floats.unmatched),
            quantizers=count,
            samples=len(candidate.feeds),
            unit=measure.unit,
            tensors=named_rows(candidate, suspicions),
            before=before,
            after=after,
        )

    def _combine(self, repairs: Sequence[Suspicion], good: Sequence[Suspicion]) -> None:
        """Give `together` all repairs, or those that do no harm alone, else each that keeps the SQNR."""
        file = self._candidate.proto
        best = self._scores(file)
        for tried in (repairs, good if len(good) < len(repairs) else ()):
            best = self._try(file, tried, best) if tried else best
        for one in () if self.is_changed or len(repairs) == 1 else repairs:
            if self._can_run(len(self._candidate.split.choosing) + len(self._candidate.split.proving)):
                best = self._try(self.together, [one], best)

    def _try(self, proto: onnx.ModelProto, tried: Sequence[Suspicion], best: list[float]) -> list[float]:
        """Keep repairs of a file if they keep the best SQNR so far; return the best."""
        candidate = self._edit(proto, *tried)
        scores = self._scores(candidate)
        if not keeps_sqnr(best, scores):
            return best
        self.together, self.is_changed = candidate, True
        return [max(pair) for pair in zip(scores, best, strict=True)]

    def _scores(self, proto: onnx.ModelProto) -> list[float]:
        """Return the SQNR in dB on the samples that choose, and on those that prove."""
        return [self._measure.sqnr_db(proto, f) for f in self._candidate.split[:2]]

    def _can_run(self, samples: int) -> bool:
        """Take so many runs from the budget; tell whether there were as many."""
        is_left = not self._budget.explain_refusal(samples)
        if is_left:
            self._budget.spend(samples)
        return is_left

    def _edit(self, proto: onnx.ModelProto, *suspicions: Suspicion) -> onnx.ModelProto:
        return edit_file(proto, [edit for suspicion in suspicions for edit in suspicion.edits])
