"""Ranking of suspicions by what was measured: which are causes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial

from onnxfq.diagnosis.causes.stale_weights import find_other_weights
from onnxfq.diagnosis.reading.candidate import FileCandidate, worst_db
from onnxfq.diagnosis.reading.cause import Suspicion
from onnxfq.diagnosis.reading.file_editor import FileEditor
from onnxfq.diagnosis.registry import LAYER_DETECTORS, RANGE_DETECTORS
from onnxfq.judging.judge import GAINED_SHARE

EXPLAINED = tuple(
    "clipping foreign_parameters lost_values preprocessing unsigned_on_signed wide_range".split()
)
"""Kinds about the range of one tensor, which a cause of the whole file explains."""

BROKEN = ("foreign_parameters", "lost_bias", "saturated_bias", "stale_weights", "weight_scale", "wrong_axis")
"""Kinds about the constants of a layer."""

FOR_SPEED = ("asymmetric_for_target", "left_in_float", "missing_pair", "pair_inside_fusion")
"""Kinds that cost time on the target; their repairs need gain no accuracy."""

PLACED = ("double_quantization", "pair_inside_fusion")
"""Kinds about a pair that should not be there at all."""


HALF = 0.5
"""Share of the noise from which the range of one tensor is a cause; another calibration gains less."""


MOST_PAIRS = 64
"""Most pairs that are left out one at a time, those that lose most by themselves."""

SOUND_DB = 30.0
"""SQNR from which a cause is certain or makes almost all of the noise, a thousandth of the signal."""

ALMOST_ALL = 0.9
"""Share of the noise without which the SQNR is 10 dB higher."""


def find_suspicions(candidate: FileCandidate) -> list[Suspicion]:
    """Return what all detectors suspect, layers first and taken as repaired for the others.

    A layer that is certainly wrong and cannot be repaired here explains the ranges behind it.
    """
    others = [*find_other_weights(candidate)]
    if others:  # measured against another model, nothing is a fault
        return others
    layers = []
    for find in LAYER_DETECTORS.values():
        for one in find(candidate):
            layers.append(one)
            if one.is_certain and one.edits and one.kind not in FOR_SPEED and not one.harm:
                candidate.keep(one.edits)  # later detectors look behind it
    for at, one in enumerate(layers if candidate.opened is not None else ()):
        if one.edits and not one.harm:
            layers[at] = replace(one, harm=candidate.harm(one.numbers, one.edits))
    broken = {one.node for one in layers if one.kind in BROKEN and not one.edits}
    outputs = [name for node in candidate.index.nodes if node.name in broken for name in node.output]
    behind = broken | {node.name for node in candidate.index.nodes_behind(outputs)}
    detectors = () if candidate.opened is None else RANGE_DETECTORS.values()
    ranges = [one for find in detectors for one in find(candidate)]
    apart = [one for one in ranges if one.is_certain and not one.is_whole and one.node not in behind]
    return layers + (apart if broken else ranges)


def find_noisiest(candidate: FileCandidate) -> list[Suspicion]:
    """Return the pair that alone makes almost all of the noise of a file; a sound file has none."""
    readings = [] if is_sound(candidate) else [one for one in candidate.ranges if one.values.power]
    readings = sorted(readings, key=lambda one: one.excess, reverse=True)[:MOST_PAIRS]
    shares = [candidate.share(one.numbers) for one in readings]
    most = max(range(len(shares)), key=lambda at: shares[at], default=None)
    if most is None or shares[most] < ALMOST_ALL:
        return []
    group = readings[most].group
    text = f"this pair alone makes {min(shares[most], 1.0):.0%} of the noise of the file"
    found = Suspicion.of(
        group, kind="noisy_pair", evidence=text, repair="the pair removed", harm=shares[most]
    )
    is_pair = all(one.op_type == "QuantizeLinear" for one in group)
    edits = tuple(partial(FileEditor.bypass, quantizing=one.node) for one in group if is_pair)
    return [replace(found, edits=edits)]


def is_sound(candidate: FileCandidate) -> bool:
    """Tell whether the file as a whole loses little."""
    return candidate.opened is not None and worst_db(candidate.whole) >= SOUND_DB


def rank(candidate: FileCandidate, suspicions: Sequence[Suspicion]) -> list[Suspicion]:
    """Return the suspicions that are causes, the most harmful first.

    One that is not certain must be due to a part of the noise that the worse ones leave: as much as a remedy
    must gain, and half if it is the range of one tensor. A cause of the whole file stands for the
    causes of tensors that it explains, and a pair in the wrong place for its range.
    """
    placed = {number for one in suspicions if one.kind in PLACED for number in one.numbers}
    suspicions = [
        one for one in suspicions if one.kind not in EXPLAINED or not placed & {*one.numbers} or one.is_whole
    ]
    sound = is_sound(candidate)
    wholes = [one for one in suspicions if one.is_whole and (one.is_certain or not sound)]
    harmful = [one for one in wholes if one.harm >= GAINED_SHARE]
    whole = max(harmful, key=lambda one: one.harm, default=None)
    causes = [] if whole is None else [whole]
    repaired = () if whole is None else whole.edits
    for one in sorted(suspicions, key=lambda one: (one.harm, one.is_certain), reverse=True):
        if one.is_whole or (whole is not None and one.kind in EXPLAINED):
            continue
        least = ALMOST_ALL if sound else HALF if one.kind in EXPLAINED else GAINED_SHARE
        has_data = candidate.opened is not None
        if one.is_certain or (has_data and one.harm >= least * candidate.left_by(repaired)):
            causes.append(one)
            repaired += one.edits
    return causes
