"""Ranking of suspicions by what was measured: which are causes."""

from __future__ import annotations

import math
from collections.abc import Sequence

from onnxfq.diagnosis.board import Change
from onnxfq.diagnosis.cause import Suspicion
from onnxfq.diagnosis.patient import Patient
from onnxfq.remedies.judge import GAINED_SHARE

EXPLAINED = (
    "clipping",
    "foreign_parameters",
    "lost_values",
    "preprocessing",
    "unsigned_on_signed",
    "wide_range",
)
"""Kinds about the range of one tensor, which a cause of the whole file explains."""

PLACED = ("double_quantization", "pair_inside_fusion")
"""Kinds about a pair that should not be there at all."""


HALF = 0.5
"""Share of the noise from which the range of one tensor is a cause: another calibration gains less, or loses."""


def rank(patient: Patient, suspicions: Sequence[Suspicion]) -> list[Suspicion]:
    """Return the suspicions that are causes, the most harmful first.

    One that is not certain must be due to as much of the noise that the worse ones leave as a remedy must
    gain, and if it is the range of one tensor to half of it. A cause of the whole file stands for those of the
    tensors that it explains, and a pair in the wrong place for its range.
    """
    placed = {number for one in suspicions if one.kind in PLACED for number in one.numbers}
    suspicions = [
        one for one in suspicions if one.kind not in EXPLAINED or not placed & {*one.numbers} or one.is_whole
    ]
    wholes = [one for one in suspicions if one.is_whole and one.harm >= GAINED_SHARE]
    whole = max(wholes, key=lambda one: one.harm, default=None)
    causes = [] if whole is None else [whole]
    repaired = Change() if whole is None else whole.change
    for one in sorted(suspicions, key=lambda suspicion: suspicion.harm, reverse=True):
        if one.is_whole or (whole is not None and one.kind in EXPLAINED):
            continue
        least = HALF if one.kind in EXPLAINED else GAINED_SHARE
        if one.is_certain or one.harm >= least * _left(patient, repaired):
            causes.append(one)
            repaired |= one.change
    return causes


def _left(patient: Patient, repaired: Change) -> float:
    return math.inf if patient.board is None else patient.left_by(repaired)
