"""Ranking of suspicions by what was measured: which are causes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from onnxfq.diagnosis.reading.board import Change
from onnxfq.diagnosis.reading.cause import Suspicion
from onnxfq.diagnosis.reading.patient import Patient
from onnxfq.diagnosis.registry import LAYER_DETECTORS, RANGE_DETECTORS
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

BROKEN = ("foreign_parameters", "lost_bias", "saturated_bias", "stale_weights", "weight_scale", "wrong_axis")
"""Kinds about the constants of a layer."""

PLACED = ("double_quantization", "pair_inside_fusion")
"""Kinds about a pair that should not be there at all."""


HALF = 0.5
"""Share of the noise from which the range of one tensor is a cause; another calibration gains less."""


SOUND_DB = 30.0
"""SQNR from which a cause is certain or makes almost all of the noise, a thousandth of the signal."""

ALMOST_ALL = 0.9
"""Share of the noise without which the SQNR is 10 dB higher."""


def find_suspicions(patient: Patient) -> list[Suspicion]:
    """Return what all detectors suspect, layers first and taken as repaired for the others.

    A layer that is certainly wrong and cannot be repaired here explains the ranges behind it.
    """
    layers = []
    for find in LAYER_DETECTORS.values():
        for one in find(patient):
            layers.append(one)
            if one.is_certain and one.change.constants:
                patient.cure(one.change)  # later detectors look behind it
    if patient.board is not None:
        layers = [
            replace(one, harm=patient.harm(one.numbers, one.change)) if one.change != Change() else one
            for one in layers
        ]
    broken = {one.node for one in layers if one.kind in BROKEN and not one.edits}
    outputs = [name for node in patient.index.nodes if node.name in broken for name in node.output]
    behind = broken | {node.name for node in patient.index.nodes_behind(outputs)}
    ranges = [one for find in RANGE_DETECTORS.values() for one in find(patient)]
    return layers + [
        one
        for one in ranges
        if not broken or (not one.is_whole and (one.is_certain and one.node not in behind))
    ]


def rank(patient: Patient, suspicions: Sequence[Suspicion]) -> list[Suspicion]:
    """Return the suspicions that are causes, the most harmful first.

    One that is not certain must be due to a part of the noise that the worse ones leave: as much as a remedy
    must gain, and half if it is the range of one tensor. A cause of the whole file stands for the
    causes of tensors that it explains, and a pair in the wrong place for its range.
    """
    placed = {number for one in suspicions if one.kind in PLACED for number in one.numbers}
    suspicions = [
        one for one in suspicions if one.kind not in EXPLAINED or not placed & {*one.numbers} or one.is_whole
    ]
    is_sound = patient.board is not None and patient.whole.db >= SOUND_DB
    wholes = [
        one
        for one in suspicions
        if one.is_whole and one.harm >= GAINED_SHARE and (one.is_certain or not is_sound)
    ]
    whole = max(wholes, key=lambda one: one.harm, default=None)
    causes = [] if whole is None else [whole]
    repaired = Change() if whole is None else whole.change
    for one in sorted(suspicions, key=lambda suspicion: suspicion.harm, reverse=True):
        if one.is_whole or (whole is not None and one.kind in EXPLAINED):
            continue
        least = HALF if one.kind in EXPLAINED else GAINED_SHARE
        least = ALMOST_ALL if is_sound else least
        is_clear = one.harm >= least * _left(patient, repaired)
        if one.is_certain or is_clear:
            causes.append(one)
            repaired |= one.change
    return causes


def _left(patient: Patient, repaired: Change) -> float:
    return math.inf if patient.board is None else patient.left_by(repaired)
