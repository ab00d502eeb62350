"""Tiles: the figures of a verdict, each with its label."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypedDict

from onnxfq.documents.proof import name_figure
from onnxfq.documents.scores import LOW_SQNR_DB, CandidateScore, Evaluation
from onnxfq.documents.timing import Timing
from onnxfq.support.plurals import agree_numbers


class Tile(TypedDict):
    """One figure of the verdict; a low one is marked."""

    value: str
    label: str
    low: bool


def make_tile(value: str, label: str, low: bool = False) -> Tile:
    """Return a tile; its label agrees with a value of 1."""
    return Tile(value=value, label=agree_numbers(f"{value} {label}").removeprefix(f"{value} "), low=low)


def score_tiles(candidates: Sequence[CandidateScore], evaluation: Evaluation) -> list[Tile]:
    """Return SQNR, agreement, accuracy and metric of the last candidate: the written model if it was run."""
    tiles: list[Tile] = []
    for candidate in candidates:
        worst = candidate.lowered(evaluation.losses).worst
        if worst is not None:
            kind = "part" if worst.part else "output"
            which = f"the {kind}" if len(candidate.judging) == 1 else f"the worst {kind}"
            low = worst.sqnr_db < LOW_SQNR_DB
            tiles.append(
                make_tile(worst.figure, f"SQNR of {which} {worst.name}, {evaluation.feeds} samples", low)
            )
        tiles += [
            make_tile(str(share), f"output {share.output}", share.equal < 1) for share in candidate.shares
        ]
        same = [one.top1_agreement for one in candidate.outputs if one.top1_agreement is not None]
        if same:
            tiles.append(make_tile(f"{min(same):.1%}", "top-1 agreement with the float model"))
        if candidate.accuracy is not None and evaluation.accuracy is not None:
            tiles.append(make_tile(f"{evaluation.accuracy:.2%} → {candidate.accuracy:.2%}", "accuracy"))
        if evaluation.metric_value is not None:
            known, found = f"{evaluation.metric_value:.6g}", candidate.task_figures[1]
            tiles.append(make_tile(f"{known} → {found}", evaluation.metric))
    proof = evaluation.proof
    if proof is not None and proof.samples:
        where = f"in {proof.runtime}, {name_figure(proof.simulated_db)} simulated, {proof.samples} samples"
        tiles.append(make_tile(name_figure(proof.runtime_db), where, bool(proof.difference)))
    return tiles


def time_tiles(timing: Timing | None, candidate: str) -> list[Tile]:
    """Return a tile with the ratio of a candidate's time to the float model's; none without times."""
    timed = None if timing is None else timing.of(candidate)
    if timed is None or not timed.ratio:
        return []
    return [make_tile(f"{timed.ratio:.2f}", "time of a run, float = 1", timed.is_slower)]
