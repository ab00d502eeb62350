"""Ranking of suspicions by what was measured: which are causes."""

from __future__ import annotations

from collections.abc import Sequence

from onnxfq.diagnosis.cause import Suspicion
from onnxfq.remedies.judge import GAINED_SHARE

EXPLAINED = ("clipping", "foreign_parameters", "lost_values", "preprocessing", "unsigned_on_signed", "wide_range")
"""Kinds about the range of one tensor, which a cause of the whole file explains."""


def rank(suspicions: Sequence[Suspicion]) -> list[Suspicion]:
    """Return the suspicions that are causes, the most harmful first.

    One that is not certain must be due to as much of the noise that the worse ones leave as a remedy must
    gain. A cause of the whole file stands for those of the tensors that it explains.
    """
    wholes = [one for one in suspicions if one.is_whole and one.harm >= GAINED_SHARE]
    whole = max(wholes, key=lambda one: one.harm, default=None)
    causes, left = [] if whole is None else [whole], 1.0
    for one in sorted(suspicions, key=lambda suspicion: suspicion.harm, reverse=True):
        if one.is_whole or (whole is not None and one.kind in EXPLAINED):
            continue
        if one.is_certain or one.harm >= GAINED_SHARE * left:
            causes.append(one)
            left = max(left - max(one.harm, 0.0), 0.0)
    return causes
