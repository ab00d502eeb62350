"""`CALIBRATOR`: another calibrator for the activations, where the measured outputs tell that it is better.

The expected errors of single tensors cannot tell how much each of them matters to the outputs; a run can.
"""

from __future__ import annotations

from onnxfq.calibration.calibrators.best_error import METHODS
from onnxfq.judging.candidate import Candidate
from onnxfq.judging.judge import Judge, Proposal, Refusal, Remedy


def explain_unneeded(candidate: Candidate, judge: Judge) -> str:
    """Return why no other calibrator is tried; empty if the recipe leaves it open."""
    scheme = candidate.recipe.activations
    if scheme is None or scheme.dynamic or scheme.calibrator.name != "best_error":
        return "the recipe names a calibrator, or observes nothing"
    return "encodings of another tool are used as they are" if judge.sources.encodings is not None else ""


def search_calibrators(candidate: Candidate, judge: Judge) -> Proposal | Refusal:
    """Return the candidate with the calibrator of the best outputs for all activations.

    The calibrators are those among which `best_error` chooses. No tensor is observed again; rounded weights
    stay.
    """
    candidates = {
        name: candidate.with_recipe(candidate.recipe.override(activations={"calibrator": name}))
        for name in METHODS
    }
    judge.budget.spend(judge.work.opening)  # their ranges are known since `best_error` chose among them
    before_db, *scores_db = judge.choose([candidate, *candidates.values()])
    score_db, name = max(zip(scores_db, candidates, strict=True))
    if not score_db > before_db:
        return Refusal("no other calibrator is better")
    return Proposal(candidates[name], [f"activations are calibrated by {name}"])


def estimate(candidate: Candidate, judge: Judge) -> float:
    """Return the runs of comparing the calibrators."""
    return judge.compare_choosing(1 + len(METHODS)) + judge.work.opening


CALIBRATOR = Remedy("calibrator", explain_unneeded, search_calibrators, is_free=True, estimate=estimate)
