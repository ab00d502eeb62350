"""`recalibrate`: another calibrator for the activations, where the measured outputs tell it is better.

The expected errors of single tensors cannot tell how much each of them matters to the outputs; a run can.
"""

from __future__ import annotations

from dataclasses import dataclass

from onnxfq.calibration.calibrators.best_error import METHODS
from onnxfq.documents.recipe import Recipe
from onnxfq.remedies.accuracy_target import SqnrAim
from onnxfq.remedies.mixed_precision import LEAST_GAIN_DB, Protected
from onnxfq.stages.inputs import QuantizeSession
from onnxfq.stages.options import RunOptions
from onnxfq.stages.planned_encodings import plan_encodings


@dataclass(frozen=True)
class Recalibration:
    """Gain of another calibrator than `best_error`.

    Attributes:
        calibrator: of the activations; "best_error" if no other is better.
        before: SQNR of the outputs with `best_error` in dB, on samples that did not choose.
        reached: the same with `calibrator`.
    """

    calibrator: str
    before: float
    reached: float

    def lines(self) -> list[str]:
        """Return a line of the summary; none if nothing changed."""
        if self.calibrator == "best_error":
            return []
        return [
            f"calibrated by {self.calibrator}: {self.reached:.1f} dB on samples that did not choose it, "
            f"{self.before:.1f} by best_error"
        ]


def recalibrate(
    inputs: QuantizeSession, start: Protected, least: float, options: RunOptions
) -> tuple[Protected, Recalibration | None]:
    """Return `start` with the candidate of `best_error` that gives the best outputs, for all activations.

    It must restore `least` dB or gain LEAST_GAIN_DB on the kept samples that choose, and half of that gain on
    the others, as protected layers must. No tensor is observed again. None is returned with `start`
    itself if its outputs are good enough, or its recipe does not leave the choice to `best_error`.

    Args:
        inputs: the model, and the kept feeds.
        start: the plan to measure.
        least: dB of the outputs, of the logits where these are measured.
        options: threads and progress.
    """
    if not _is_open(start.recipe):
        return start, None
    aim = SqnrAim(least, inputs.kept)
    board = start.open_board(inputs, options)
    chosen, proven = (part(board, board.everything) for part in (aim.choose, aim.prove))
    if min(chosen, proven) >= least:
        return start, None
    best, reached = start, chosen
    for name in METHODS:
        made = _calibrated_by(name, inputs, start)
        board = made.open_board(inputs, options)
        value = aim.choose(board, board.everything)
        if value > reached:
            best, reached = made, value
    if best is not start and reached >= min(least, chosen + LEAST_GAIN_DB):
        value = best.prove(aim, inputs, options)
        if value >= min(least, proven + LEAST_GAIN_DB / 2):
            assert best.recipe.activations is not None
            return best, Recalibration(str(best.recipe.activations.calibrator), proven, value)
    return start, Recalibration("best_error", proven, proven)


def _is_open(recipe: Recipe) -> bool:
    """Tell whether the recipe leaves the ranges of activations to `best_error`."""
    scheme = recipe.activations
    return scheme is not None and not scheme.dynamic and scheme.calibrator.name == "best_error"


def _calibrated_by(name: str, inputs: QuantizeSession, start: Protected) -> Protected:
    """Return the plan of `start` with another calibrator; rounded weights stay."""
    recipe = start.recipe.override(activations={"calibrator": name})
    planned = plan_encodings(inputs.ranked, recipe)
    rounding = start.rounding
    # Rounded weights may have other scales than those of the nearest values.
    weights = None if rounding is not None and rounding.tensors else start.encodings.encodings
    made = Protected.of(inputs.model, recipe, planned, start.statistics, weights)
    return made.rounded_as(start, inputs.model)
