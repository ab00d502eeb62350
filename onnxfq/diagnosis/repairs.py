"""`Repairs`: the repair of each cause, alone and together, measured on samples that chose nothing."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import onnx

from onnxfq.diagnosis.diagnosis import NOTHING_READ, Diagnosis, verdict_of
from onnxfq.diagnosis.guilty_tensors import guilty_rows
from onnxfq.diagnosis.measure import Measure
from onnxfq.diagnosis.reading.cause import Cause, Suspicion
from onnxfq.diagnosis.reading.file_editor import FileEditor
from onnxfq.remedies.judge import keeps_sqnr


class Repairs:
    """Edited copies of a file, and their SQNR."""

    def __init__(self, measure: Measure) -> None:
        """Begin with the file as it is."""
        self._patient, self._measure = measure.patient, measure
        self.together: onnx.ModelProto = measure.patient.proto
        self.is_changed = False

    def report(self, suspicions: Sequence[Suspicion], looked_at: tuple[str, ...]) -> Diagnosis:
        """Return the diagnosis with what each repair restores; `together` gets those that do no harm."""
        patient, measure = self._patient, self._measure
        causes: list[Cause] = []
        samples = (patient.choosing, patient.proving)
        before = after = None
        if patient.board is not None:
            before = measure.reported(patient.proto)
        best: list[float] = []
        for suspicion in suspicions:
            alone = None
            if suspicion.edits and patient.board is not None:
                alone = measure.reported(self._edit(patient.proto, suspicion))
                best = best or [measure.sqnr_db(patient.proto, feeds) for feeds in samples]
                candidate = self._edit(self.together, suspicion)
                scores = [measure.sqnr_db(candidate, feeds) for feeds in samples]
                if keeps_sqnr(best, scores):
                    self.together, self.is_changed = candidate, True
                    best = [max(pair) for pair in zip(scores, best, strict=True)]
            causes.append(
                Cause(
                    kind=suspicion.kind,
                    tensor=suspicion.tensor,
                    node=suspicion.node,
                    evidence=suspicion.evidence,
                    repair=suspicion.repair,
                    before=before,
                    after=alone,
                )
            )
        if self.is_changed:
            after = measure.reported(self.together)
        count = len(patient.form.activations) + len(patient.form.constants)
        verdict = NOTHING_READ
        if count:
            with_float = patient.floats is not None
            verdict = verdict_of(tuple(causes), before, after, measure.unit, with_float=with_float)
        return Diagnosis(
            source=patient.source,
            verdict=verdict,
            causes=tuple(causes),
            looked_at=looked_at,
            not_looked_at=tuple(
                f"{kind}: {count}" for kind, count in Counter(patient.form.passed_over).items()
            ),
            unmatched=() if patient.floats is None else tuple(patient.floats.unmatched),
            quantizers=count,
            samples=len(patient.feeds),
            unit=measure.unit,
            tensors=guilty_rows(patient, suspicions),
            before=before,
            after=after,
        )

    def _edit(self, proto: onnx.ModelProto, suspicion: Suspicion) -> onnx.ModelProto:
        editor = FileEditor(proto)
        for edit in suspicion.edits:
            edit(editor)
        return editor.proto
