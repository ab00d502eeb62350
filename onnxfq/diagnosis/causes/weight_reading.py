"""`WeightReading`: a stored weight, its layer and its float values."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property, partial

import numpy as np
import onnx
from numpy.typing import NDArray

from onnxfq.diagnosis.reading.candidate import FileCandidate
from onnxfq.diagnosis.reading.cause import Suspicion
from onnxfq.diagnosis.reading.file_editor import Edit, FileEditor
from onnxfq.diagnosis.reading.quantizers import StoredConstant
from onnxfq.diagnosis.reading.range_reading import RangeReading
from onnxfq.diagnosis.reading.stored_weight import channel_axis
from onnxfq.graph.ops import WEIGHTED_INPUTS
from onnxfq.numerics.granularity import PER_TENSOR

OFF = 0.05
"""Difference of a factor from 1 that is more than rounding."""


@dataclass(frozen=True)
class WeightReading:
    """A stored weight, the layer of the float form that reads it, and its float values if they are known."""

    candidate: FileCandidate
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

    @property
    def own_axis(self) -> int | None:
        """The axis of the output channels; None if they share one scale."""
        return None if self.constant.grid.granularity == PER_TENSOR else self.axis

    @cached_property
    def data(self) -> RangeReading | None:
        """The range of the data of the layer against its values; None in float, and without data."""
        ranges = () if self.candidate.opened is None else self.candidate.ranges
        name = self.layer.input[0]
        return next((one for one in ranges if any(of.output == name for of in one.group)), None)

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

    def suspect(
        self, evidence: str, repair: str, edit: Edit | None = None, *, kind: str, is_certain: bool = True
    ) -> Suspicion:
        """Return a suspicion of the weight; a dynamic product has no edit."""
        constant, is_editable = self.constant, self.constant.is_editable
        repair = repair if is_editable else f"quantize the float model again: {repair}"
        edits = (edit,) if edit is not None and is_editable else ()
        place = {"tensor": constant.data, "node": self.layer.name}
        found = Suspicion(kind=kind, evidence=evidence, repair=repair, is_certain=is_certain, **place)
        return replace(found, edits=edits)

    def round_again(self, values: NDArray[np.float32], axis: int | None) -> Edit:
        """Return what stores the weight as `values`, with a scale a channel along `axis`."""
        return partial(FileEditor.set_weight, constant=self.constant, values=values, axis=axis)


def read_weights(candidate: FileCandidate) -> list[WeightReading]:
    """Return the stored weights that layers read."""
    rows = []
    for constant in candidate.form.constants:
        if constant.is_bias or not constant.scale or not constant.grid.steps.size:
            continue
        readers = candidate.form_index.readers.get(constant.constant, ())
        for layer in [node for node in readers if node.op_type in WEIGHTED_INPUTS][:1]:
            matched = None if candidate.floats is None else candidate.floats.layers.get(layer.name)
            floats = constant.floats
            if matched is not None and matched.weight.shape == constant.grid.steps.shape:
                floats = matched.weight
            rows.append(WeightReading(candidate, constant, layer, floats))
    return rows


def squared_error(one: NDArray[np.floating], other: NDArray[np.floating] | None) -> float:
    """Return the sum of squared differences; 0 without the other."""
    if other is None:
        return 0.0
    return float(((np.asarray(one, np.float64) - other) ** 2).sum())
