"""Weights whose scale is another one times a factor."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import numpy as np
import onnx

from onnxfq.diagnosis.causes.ranges import APART, BETTER, TRIED, WIDE
from onnxfq.diagnosis.causes.weight_reading import (
    OFF,
    WeightReading,
    group_in_front,
    squared_error,
    suspect_weight,
)
from onnxfq.diagnosis.reading.board import Change
from onnxfq.diagnosis.reading.cause import Suspicion
from onnxfq.diagnosis.reading.file_editor import FileEditor
from onnxfq.diagnosis.reading.patient import Patient
from onnxfq.diagnosis.reading.quantizers import ActivationQuantizer
from onnxfq.diagnosis.reading.range_reading import RangeReading
from onnxfq.diagnosis.reading.values import TensorValues

COARSE = 4.0
"""Squared error over the one of rounding from which a weight has another fault."""


def find_factor(
    patient: Patient, reading: WeightReading, others: Sequence[WeightReading]
) -> Suspicion | None:
    """Return that the scale is another one times a factor."""
    factor = _factor_of(patient, reading)
    if factor is None or abs(factor - 1) <= OFF:
        return None
    scale = np.asarray(reading.constant.grid.scale).reshape(-1)
    owner = next(
        (o for o in others if o is not reading and np.array_equal(o.constant.grid.scale.reshape(-1), scale)),
        None,
    )
    text = f"its values are {factor:.3g} times those of the float layer"
    if reading.floats is None:
        text = f"by the bias or the ranges behind its scale was {1 / factor:.3g} times as large"
    if owner is not None:
        text += f"; the scale is that of {owner.constant.data!r}"
    right = (reading.values / np.float32(factor)).astype(np.float32)
    kind = "foreign_parameters" if owner is not None else "weight_scale"
    change = Change(constants={reading.constant.constant: right})
    edit = partial(FileEditor.scale_weight, constant=reading.constant, factor=factor)
    repair = f"the scale divided by {factor:.3g}"
    return suspect_weight(reading, kind, text, repair, change, True, edit)


def _factor_of(patient: Patient, reading: WeightReading) -> float | None:
    """Return the factor of a weight against the float layer, or against the scale of its bias."""
    if reading.floats is not None:
        if reading.error < COARSE * reading.rounding or not np.any(reading.floats):
            return None
        a, b = reading.values.astype(np.float64).ravel(), reading.floats.astype(np.float64).ravel()
        factor = float(a @ b / (b @ b))
        explains = squared_error(a, factor * b) < reading.error / COARSE
        return factor if explains and factor > 0 else None
    by_bias = _factor_by_bias(patient, reading)
    return _factor_by_ranges(patient, reading) if by_bias is None else by_bias


def _factor_by_bias(patient: Patient, reading: WeightReading) -> float | None:
    """Return the scale of a weight over the one that the scale of its bias was made of.

    Quantizers give an int32 bias the product of the scales of data and weight. If the range of the data fits,
    a difference is the weight's.
    """
    layer = reading.layer
    bias = next((o for o in patient.form.constants if o.is_bias and o.constant in layer.input[2:3]), None)
    group = group_in_front(patient, layer)
    if bias is None or group is None or patient.board is None:
        return None
    if not 1 / WIDE < RangeReading(group, patient.group_values(group)).ratio < WIDE:
        return None
    product = np.float64(group[0].grid.scale) * reading.constant.grid.scale.reshape(-1).astype(np.float64)
    factors = product / bias.grid.scale.reshape(-1)
    return float(factors.mean()) if np.ptp(factors) < OFF * factors.mean() else None


def _factor_by_ranges(patient: Patient, reading: WeightReading) -> float | None:
    """Return the factor of a weight without which the ranges of all tensors behind it fit the data."""
    if patient.board is None:
        return None
    data = group_in_front(patient, reading.layer)
    if data is None or not 1 / WIDE < RangeReading(data, patient.group_values(data)).ratio < WIDE:
        return None
    numbers = _next_quantizers(patient, reading.layer)
    groups = [group for group in patient.groups if any(q.number >= min(numbers, default=0) for q in group)]
    if not numbers or len(groups) < 3:
        return None
    first = RangeReading([patient.form.activations[numbers[0]]], patient.values[numbers[0]])
    if 1 / WIDE < first.ratio < WIDE or not first.ratio:
        return None
    change = Change(constants={reading.constant.constant: reading.values * np.float32(first.ratio)})
    feeds = patient.feeds[:TRIED]
    before, after = (_misfit(patient.collect(feeds, c), groups[1:]) for c in (Change(), change))
    return 1 / first.ratio if before > APART and after < BETTER * before else None


def _misfit(values: Sequence[TensorValues], groups: Sequence[Sequence[ActivationQuantizer]]) -> float:
    return float(np.mean([RangeReading(group, values[group[0].number]).misfit for group in groups]))


def _next_quantizers(patient: Patient, layer: onnx.NodeProto) -> list[int]:
    """Return the numbers of the quantizers behind a layer with no other one between."""
    by_tensor = {q.plain: q.number for q in patient.form.activations}
    behind = patient.form_index.nodes_behind(layer.output, by_tensor)
    names = {*layer.output, *(name for node in behind for name in node.output)}
    return sorted(by_tensor[name] for name in names if name in by_tensor)
