"""`Repairs`: the repair of each cause on the file, alone and together, measured on samples that chose nothing."""

from __future__ import annotations

from collections.abc import Sequence

import onnx

from onnxfq.data import Feed
from onnxfq.diagnosis.cause import Cause, Suspicion
from onnxfq.diagnosis.diagnosis import Diagnosis, verdict_of
from onnxfq.diagnosis.file_editor import FileEditor
from onnxfq.diagnosis.patient import Patient
from onnxfq.numerics.metrics import ErrorSums, ratio_db
from onnxfq.remedies.judge import LEAST_PROVEN_DB
from onnxfq.runtime.session import Session


class Repairs:
    """Edited copies of a file, and their SQNR."""

    def __init__(self, patient: Patient, threads: int) -> None:
        """Begin with the file as it is."""
        self._patient, self._threads = patient, threads
        self.together: onnx.ModelProto = patient.proto
        self.is_changed = False

    def report(self, suspicions: Sequence[Suspicion], looked_at: tuple[str, ...]) -> Diagnosis:
        """Return the diagnosis with what each repair restores; `together` gets those that do no harm."""
        patient = self._patient
        causes: list[Cause] = []
        before = after = None
        if patient.board is not None:
            before = self.measure(patient.proto, patient.proving)
            chosen = self.measure(patient.proto, patient.choosing)
        for suspicion in suspicions:
            alone = None
            if suspicion.edits and patient.board is not None:
                alone = self.measure(self._edit(patient.proto, suspicion), patient.proving)
                candidate = self._edit(self.together, suspicion)
                score = self.measure(candidate, patient.choosing)
                if score >= chosen - LEAST_PROVEN_DB:
                    self.together, self.is_changed, chosen = candidate, True, max(chosen, score)
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
            after = self.measure(self.together, patient.proving)
        return Diagnosis(
            source=patient.source,
            verdict=verdict_of(tuple(causes), before, after),
            causes=tuple(causes),
            looked_at=looked_at,
            unmatched=() if patient.floats is None else tuple(patient.floats.unmatched),
            quantizers=len(patient.form.activations) + len(patient.form.constants),
            samples=len(patient.feeds),
            before=before,
            after=after,
        )

    def measure(self, proto: onnx.ModelProto, feeds: Sequence[Feed]) -> float:
        """Return the SQNR in dB of the worst output of a file."""
        board = self._patient.board
        assert board is not None
        session = Session(proto, self._threads)
        sums = [ErrorSums() for _ in board.outputs]
        for feed in feeds:
            results = session.run(feed, board.outputs)
            for at, (want, have) in enumerate(zip(self._patient.references[id(feed)], results, strict=True)):
                if want.shape == have.shape:
                    sums[at] += ErrorSums.from_arrays(want, have)
        return min(ratio_db(total.signal, total.noise) for total in sums)

    def _edit(self, proto: onnx.ModelProto, suspicion: Suspicion) -> onnx.ModelProto:
        editor = FileEditor(proto)
        for edit in suspicion.edits:
            edit(editor)
        return editor.proto
