"""Activations whose grid loses their typical values, for a warning and for reports."""

from __future__ import annotations

import logging

from onnxfq.calibration.calibrators.best_error import KEPT_DB, middle_half
from onnxfq.calibration.calibrators.grid_error import Density, estimate_noise
from onnxfq.calibration.statistics import Statistics
from onnxfq.documents.encodings import Encodings
from onnxfq.documents.plan import Placement, Plan
from onnxfq.graph.model import Model
from onnxfq.numerics.metrics import ratio_db
from onnxfq.placement.masked_scores import find_floors, raise_floors
from onnxfq.support.plurals import name_first

log = logging.getLogger(__name__)

_LISTED = 8


def find_zeroed_values(
    model: Model, plan: Plan, statistics: Statistics, encodings: Encodings
) -> dict[str, float]:
    """Return the expected SQNR in dB of the middle half of activations, by tensor, where it is below KEPT_DB.

    The middle half is the one of `best_error`. Only activations with one calibrated range are looked at: not
    those with scales of channels or blocks, dynamic ones, and ranges from a rule or a file. Probabilities of
    a Softmax lose nothing: most of them are near 0, and add as little to what they weigh.
    """
    statistics = raise_floors(statistics, find_floors(model, plan, statistics))
    found = {}
    for placement in plan.activations:
        sqnr_db = middle_sqnr_db(model, placement, statistics, encodings)
        if sqnr_db is not None and sqnr_db < KEPT_DB:
            found[placement.tensor] = sqnr_db
    return dict(sorted(found.items(), key=lambda item: item[1]))


def middle_sqnr_db(
    model: Model, placement: Placement, statistics: Statistics, encodings: Encodings
) -> float | None:
    """Return the expected SQNR in dB of the middle half of an activation.

    None for those not looked at, and for a low one of a Softmax.
    """
    name, is_fixed = placement.tensor, placement.observes_channels or placement.calibrator.is_fixed
    if placement.spec.dynamic or is_fixed or name not in statistics.tensors or name not in encodings:
        return None
    encoding, middle = encodings[name], middle_half(Density.from_statistics(statistics[name]))
    if encoding.param_shape or not middle.counts.size:
        return None
    scale, zero_point = float(encoding.scale), float(encoding.zero_point)
    sqnr_db = ratio_db(middle.power, estimate_noise(middle, scale, zero_point, encoding.spec.qtype))
    maker = model.index.makers.get(name)
    is_probability = maker is not None and maker.op_type == "Softmax"
    return None if sqnr_db < KEPT_DB and is_probability else sqnr_db


def warn_zeroed_values(model: Model, plan: Plan, statistics: Statistics, encodings: Encodings) -> None:
    """Log the tensors that `find_zeroed_values` finds, in one line."""
    lost = find_zeroed_values(model, plan, statistics, encodings)
    if not lost:
        return
    named = [f"{name!r} {sqnr_db:.1f} dB" for name, sqnr_db in lost.items()]
    log.warning(
        f"the ranges of {len(lost)} activation(s) lose the typical values, of which most become 0 (SQNR of "
        f"the middle half: {name_first(named, _LISTED)}); leave them in float with an override, or take 16 "
        "bits or float8"
    )
