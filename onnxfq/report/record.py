"""Result of `quantize` as a record for programs."""

from __future__ import annotations

from onnxfq.pipeline import QuantizeResult


def quantize_record(result: QuantizeResult, sizes: tuple[int, int]) -> dict[str, object]:
    """Return the records of a result, without models, statistics and scales: other files hold these.

    Args:
        result: of `quantize`.
        sizes: bytes of the files of the float model and of the written model.
    """
    return {
        "source": result.model.source,
        "recipe": result.recipe,
        "evaluation": result.evaluation,
        "coverage": [row._asdict() for row in result.plan.coverage()],
        "bytes": {"before": sizes[0], "after": sizes[1]},
        "notes": [
            *result.model.notes,
            *(result.recalibration.lines() if result.recalibration is not None else ()),
            *(result.fitted.lines() if result.fitted is not None else ()),
            *(result.rounding.lines() if result.rounding is not None else ()),
        ],
        "plan": result.plan,
        "floats": result.floats,
        "sensitivity": result.sensitivity,
        "seconds": result.seconds,
    }
