"""`WeightReading`: a stored weight, its layer and its float values."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property, partial

import numpy as np
import onnx
from numpy.typing import NDArray

from onnxfq.diagnosis.reading.board import Change
from onnxfq.diagnosis.reading.cause import Suspicion
from onnxfq.diagnosis.reading.file_editor import FileEditor
from onnxfq.diagnosis.reading.patient import Patient
from onnxfq.diagnosis.reading.quantizers import ActivationQuantizer, StoredConstant
from onnxfq.diagnosis.reading.stored_weight import channel_axis, requantize
from onnxfq.graph.ops import WEIGHTED_INPUTS
from onnxfq.numerics.granularity import Granularity

OFF = 0.05
"""Difference of a factor from 1 that is more than rounding."""


@dataclass(frozen=True)
class WeightReading:
    """A stored weight, the layer of the float form that reads it, and its float values if they are known."""

    constant: StoredConstant
    layer: onnx.NodeProto
    floats: NDArray[np.float32] | None

    @property
    def values(self) -> NDArray[np.float32]:
        """The real values of the file."""
        return self.constant.grid.values

    @property
    def axis(self) -> int | None:
        """The axis of the output channels."""
        return channel_axis(self.layer, self.values.ndim)

    @cached_property
    def use(self) -> float:
        """The largest number over the largest that it may have."""
        return float(np.abs(self.constant.grid.steps).max()) / self.constant.codes[1]

    @property
    def error(self) -> float:
        """Squared error of the file's values."""
        return squared_error(self.values, self.floats)

    @property
    def rounding(self) -> float:
        """Squared error that rounding alone makes on the grid of the file."""
        step = np.broadcast_to(self.constant.grid.stored_scale.elementwise, self.values.shape)
        return float((step.astype(np.float64) ** 2 / 12).sum())


def read_weights(patient: Patient) -> list[WeightReading]:
    """Return the stored weights that layers read."""
    rows = []
    for constant in patient.form.constants:
        if constant.is_bias or not constant.scale or not constant.grid.steps.size:
            continue
        for layer in patient.form_index.readers.get(constant.constant, ()):
            if layer.op_type not in WEIGHTED_INPUTS:
                continue
            floats = constant.floats
            matched = patient.floats.layers.get(layer.name) if patient.floats is not None else None
            if matched is not None and matched.weight.shape == constant.grid.steps.shape:
                floats = matched.weight
            rows.append(WeightReading(constant, layer, floats))
            break
    return rows


def group_in_front(patient: Patient, layer: onnx.NodeProto) -> list[ActivationQuantizer] | None:
    """Return the quantizers that share the scale of the data of a layer; None if it is in float."""
    for group in patient.groups:
        if any(quantizer.output == layer.input[0] for quantizer in group):
            return group
    return None


def suspect_weight(
    reading: WeightReading,
    kind: str,
    evidence: str,
    repair: str,
    change: Change,
    is_certain: bool,
    *edits: partial[None],
) -> Suspicion:
    """Return a suspicion of a weight; a dynamic product has no edit."""
    return Suspicion(
        kind=kind,
        evidence=evidence,
        tensor=reading.constant.data,
        node=reading.layer.name,
        repair=repair if reading.constant.is_editable else f"quantize the float model again: {repair}",
        is_certain=is_certain,
        change=change,
        edits=edits if reading.constant.is_editable else (),
    )


def round_again(
    reading: WeightReading, values: NDArray[np.float32], axis: int | None
) -> tuple[Change, partial[None]]:
    """Return the change and the edit that store a weight as `values`, with a scale a channel along `axis`."""
    weight = requantize(values, reading.constant, axis)
    change = Change(constants={reading.constant.constant: weight.rounded})
    return change, partial(FileEditor.set_weight, constant=reading.constant, weight=weight)


def is_per_axis(reading: WeightReading) -> bool:
    """Tell whether a weight has several scales."""
    return reading.constant.grid.granularity != Granularity()


def squared_error(one: NDArray[np.floating], other: NDArray[np.floating] | None) -> float:
    """Return the sum of squared differences; 0 without the other."""
    if other is None:
        return 0.0
    return float(((np.asarray(one, np.float64) - other) ** 2).sum())
