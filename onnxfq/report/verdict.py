"""`verdict`: what came of quantizing in one sentence, with one next step."""

from __future__ import annotations

from collections.abc import Sequence

from onnxfq.documents.layers import LayerRow
from onnxfq.documents.scores import LOW_SQNR_DB, Evaluation
from onnxfq.documents.trial import Trial


def verdict(
    evaluation: Evaluation,
    trials: Sequence[Trial],
    wider: str = "",
    layers: Sequence[LayerRow] = (),
    is_float: bool = False,
) -> str:
    """Return `ship`, or what to try or to look at first, and why.

    Args:
        evaluation: its last candidate is the written model.
        trials: of remedies and of a promise.
        wider: name of a recipe with a format for layers that lose too much.
        layers: with their shares of the noise, the one that costs most first.
        is_float: whether nothing is quantized and no float has another type.
    """
    if evaluation.difference:
        return "do not ship: the file is not what was meant; see below what differs"
    worst, scores = evaluation.worst, evaluation.candidates[-1:]
    if any(one.broken for one in scores):
        return "do not ship: an output is infinite or not a number; keep the layers that make it in float"
    if is_float:
        return "keep the float model: nothing in this file is quantized"
    if evaluation.drawn:
        return "measure it: inputs were drawn, and only `onnxfq evaluate` with data tells what it loses"
    if any(trial.promised is not None for trial in trials):
        return "ship: the promise is kept"
    if worst is None:
        return "measure it: nothing was compared; `onnxfq evaluate` with data and labels tells what it loses"
    if worst.sqnr_db >= LOW_SQNR_DB:
        return f"ship when the task agrees: {worst.figure} is not low; `onnxfq evaluate --labels` measures it"
    first = next((row for row in layers if row.noise_share), None)
    if first is not None and first.noise_share is not None:
        name = first.module or first.node
        return (
            f"look at {first.op_type} {name!r} first: {first.noise_share:.0%} of the noise of {worst.figure}"
        )
    fallback = f" --fallback {wider}" if wider else ""
    return f"try --min-sqnr {LOW_SQNR_DB:g}{fallback}: {worst.figure} is low, and few layers make most of it"
