"""Stored weights: wrong axis, scale of another tensor, channels of very different size, stale factors."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
import onnx
from numpy.typing import NDArray

from onnxfq.diagnosis.board import Change
from onnxfq.diagnosis.cause import Suspicion
from onnxfq.diagnosis.causes.ranges import APART, BETTER, TRIED, WIDE
from onnxfq.diagnosis.file_editor import FileEditor
from onnxfq.diagnosis.patient import Patient
from onnxfq.diagnosis.range_reading import RangeReading
from onnxfq.diagnosis.stored_weight import RequantizedWeight, channel_axis, requantize
from onnxfq.diagnosis.switched_form import ActivationQuantizer, StoredConstant
from onnxfq.diagnosis.values import TensorValues
from onnxfq.graph.ops import WEIGHTED_INPUTS
from onnxfq.graph.stored_grid import StoredGrid
from onnxfq.numerics.granularity import Granularity

COARSE = 4.0
"""Squared error over that of rounding from which a weight has another fault than its rounding."""

OFF = 0.05
"""Difference of a factor from 1 that is more than rounding."""

FILLED = 0.98
"""Part of the largest number that each channel reaches along the axis by which it was rounded."""

USED = 0.6
"""Part of the grid that all channels of a weight leave unused above, where its scale is too wide."""

LEAST_GRID = 0.1
"""Part of the grid that a channel uses, below which its scale is one for others."""


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

    @property
    def error(self) -> float:
        """Squared error of the file's values."""
        return _squared(self.values, self.floats)

    @property
    def rounding(self) -> float:
        """Squared error that rounding alone makes on the grid of the file."""
        step = np.broadcast_to(self.constant.grid.stored_scale.elementwise, self.values.shape)
        return float((step.astype(np.float64) ** 2 / 12).sum())


def read_weights(patient: Patient) -> list[WeightReading]:
    """Return the stored weights that layers read."""
    rows = []
    for constant in patient.form.constants:
        if constant.is_bias or not constant.grid.steps.size:
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


def find_weights(patient: Patient) -> Iterator[Suspicion]:
    """Yield weights that are not what their layer needs, the first fault of each."""
    readings = read_weights(patient)
    for reading in readings:
        for find in (_find_axis, _find_factor, _find_factors, _find_spread, _find_unused):
            suspicion = find(patient, reading, readings)
            if suspicion is not None:
                yield suspicion
                break


def _find_axis(patient: Patient, reading: WeightReading, others: Sequence[WeightReading]) -> Suspicion | None:
    """Return that the scales belong to another axis: along that one each channel fills the grid."""
    grid = reading.constant.grid
    axis = grid.granularity.axis
    if axis is None or grid.granularity.block_size is not None:
        return None
    fills = {at: _fill(grid.steps, at) for at, size in enumerate(grid.steps.shape) if size == grid.scale.size}
    right = max(fills, key=lambda at: fills[at], default=axis)
    if right == axis or fills[right] < FILLED or fills.get(axis, 1.0) >= FILLED:
        return None
    turned = StoredGrid(grid.steps, grid.scale, replace(grid.granularity, axis=right))
    text = (
        f"its {grid.scale.size} scales are applied along axis {axis}, and the integers fill the grid along axis "
        f"{right}"
    )
    change = Change(constants={reading.constant.constant: turned.values})
    return _suspect(
        patient,
        reading,
        "wrong_axis",
        text,
        f"the scales along axis {right}",
        change,
        True,
        partial(_set_axes, scale=reading.constant.scale, axis=right),
    )


def _find_factor(
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
        text = f"the scale of the bias, or the ranges behind, show that its scale was {1 / factor:.3g} times as large"
    if owner is not None:
        text += f"; the scale is that of {owner.constant.data!r}"
    right = (reading.values / np.float32(factor)).astype(np.float32)
    kind = "foreign_parameters" if owner is not None else "weight_scale"
    return _suspect(
        patient,
        reading,
        kind,
        text,
        f"the scale divided by {factor:.3g}",
        Change(constants={reading.constant.constant: right}),
        True,
        partial(_scale, constant=reading.constant, factor=factor),
    )


def _factor_of(patient: Patient, reading: WeightReading) -> float | None:
    """Return the factor of a weight against the float layer, or against the scale of its bias."""
    if reading.floats is not None:
        if reading.error < COARSE * reading.rounding or not np.any(reading.floats):
            return None
        a, b = reading.values.astype(np.float64).ravel(), reading.floats.astype(np.float64).ravel()
        factor = float(a @ b / (b @ b))
        explains = _squared(a, factor * b) < reading.error / COARSE
        return factor if explains and factor > 0 else None
    factor = _factor_by_bias(patient, reading)
    return _factor_by_ranges(patient, reading) if factor is None else factor


def _factor_by_bias(patient: Patient, reading: WeightReading) -> float | None:
    """Return the scale of a weight over the one that the scale of its bias was made of.

    Quantizers give an int32 bias the product of the scales of data and weight. If the range of the data fits,
    a difference is the weight's.
    """
    layer = reading.layer
    bias = next((o for o in patient.form.constants if o.is_bias and o.constant in layer.input[2:3]), None)
    group = _group_in_front(patient, layer)
    if bias is None or group is None or patient.board is None:
        return None
    if not 1 / WIDE < RangeReading.of(group, patient.group_values(group)).ratio < WIDE:
        return None
    product = np.float64(group[0].grid.scale) * reading.constant.grid.scale.reshape(-1).astype(np.float64)
    factors = product / bias.grid.scale.reshape(-1)
    return float(factors.mean()) if np.ptp(factors) < OFF * factors.mean() else None


def _group_in_front(patient: Patient, layer: onnx.NodeProto) -> list[ActivationQuantizer] | None:
    """Return the quantizers that share the scale of the data of a layer; None if it is in float."""
    for group in patient.groups:
        if any(f"diagnosed/{quantizer.number}/out" == layer.input[0] for quantizer in group):
            return group
    return None


def _factor_by_ranges(patient: Patient, reading: WeightReading) -> float | None:
    """Return the factor of a weight without which the ranges of all tensors behind it fit the data."""
    if patient.board is None:
        return None
    data = _group_in_front(patient, reading.layer)
    if data is None or not 1 / WIDE < RangeReading.of(data, patient.group_values(data)).ratio < WIDE:
        return None
    numbers = _next_quantizers(patient, reading.layer)
    groups = [group for group in patient.groups if any(q.number >= min(numbers, default=0) for q in group)]
    if not numbers or len(groups) < 3:
        return None
    first = RangeReading.of([patient.form.activations[numbers[0]]], patient.values[numbers[0]])
    if 1 / WIDE < first.ratio < WIDE or not first.ratio:
        return None
    change = Change(constants={reading.constant.constant: reading.values * np.float32(first.ratio)})
    feeds = patient.feeds[:TRIED]
    before, after = (_misfit(patient.collect(feeds, c), groups[1:]) for c in (Change(), change))
    return 1 / first.ratio if before > APART and after < BETTER * before else None


def _misfit(values: Sequence[TensorValues], groups: Sequence[Sequence[ActivationQuantizer]]) -> float:
    return float(np.mean([RangeReading.of(group, values[group[0].number]).misfit for group in groups]))


def _next_quantizers(patient: Patient, layer: onnx.NodeProto) -> list[int]:
    """Return the numbers of the quantizers behind a layer with no other one between."""
    numbers, waiting, seen = [], list(layer.output), set()
    by_tensor = {q.plain: q.number for q in patient.form.activations}
    while waiting:
        name = waiting.pop()
        if name in by_tensor:
            numbers.append(by_tensor[name])
        elif name not in seen:
            seen.add(name)
            waiting += [out for node in patient.form_index.readers.get(name, ()) for out in node.output]
    return sorted(numbers)


def _find_factors(
    patient: Patient, reading: WeightReading, others: Sequence[WeightReading]
) -> Suspicion | None:
    """Return that the channels of the data have factors that the weight lacks, or the other way."""
    if patient.floats is None or patient.board is None or reading.floats is None or reading.values.ndim != 2:
        return None
    data = reading.layer.input[0]
    number = next((q.number for q in patient.form.activations if data == f"diagnosed/{q.number}/out"), None)
    name = None if number is None else patient.floats.tensors.get(number)
    if number is None or name is None:
        return None
    summed = 1 - (reading.axis or 0)
    factors = _channel_factors(patient, number, name)
    if factors is None or factors.size != reading.values.shape[summed]:
        return None
    shape = [-1 if at == summed else 1 for at in range(2)]
    given = (reading.values * reading.floats).sum(1 - summed) / np.maximum(
        (reading.floats**2).sum(1 - summed), 1e-30
    )
    product = factors * given
    if np.abs(product - 1).max() <= 4 * OFF:
        return None
    right = (reading.floats / factors.reshape(shape)).astype(np.float32)
    weight = requantize(right, reading.constant, reading.axis if _is_per_axis(reading) else None)
    text = (
        f"the channels of {patient.form.activations[number].tensor!r} are {factors.min():.3g} to "
        f"{factors.max():.3g} times those of the float model, and the weight has not the inverse factors"
    )
    return _suspect(
        patient,
        reading,
        "stale_weights",
        text,
        "the weight of the float layer with the inverse factors",
        Change(constants={reading.constant.constant: weight.rounded}),
        False,
        partial(_set_weight, constant=reading.constant, weight=weight),
    )


def _channel_factors(patient: Patient, number: int, name: str) -> NDArray[np.float64] | None:
    """Return the factor of each channel, along the last axis, of a tensor against the float one."""
    assert patient.board is not None and patient.floats is not None
    products = squares = mine = 0.0
    for feed in patient.choosing:
        (have,) = patient.board.run(feed, patient.board.nothing, [patient.board.inner[number]])
        (want,) = patient.floats.run(feed, [name])
        if have.shape != want.shape or have.ndim < 2:
            return None
        a, b = (np.asarray(x, np.float64).reshape(-1, x.shape[-1]) for x in (have, want))
        products, squares, mine = products + (a * b).sum(0), squares + (b * b).sum(0), mine + (a * a).sum(0)
    factors = np.asarray(products) / np.maximum(squares, 1e-30)
    residual = np.asarray(mine - factors * products).sum() / max(float(np.sum(mine)), 1e-30)
    is_scaled = residual < 0.01 and (factors > 0).all() and factors.max() / factors.min() > 1 + 4 * OFF
    return factors if is_scaled else None


def _find_spread(
    patient: Patient, reading: WeightReading, others: Sequence[WeightReading]
) -> Suspicion | None:
    """Return that channels of very different size share one scale."""
    axis, steps = reading.axis, reading.constant.grid.steps
    if axis is None or _is_per_axis(reading) or steps.shape[axis] < 2:
        return None
    around = tuple(at for at in range(steps.ndim) if at != axis)
    reach = np.abs(steps).max(around)
    used = reach / max(int(reach.max()), 1)
    typical = float(np.median(used))
    if typical >= LEAST_GRID:
        return None
    channel = int(np.argmax(reach))
    text = (
        f"channel {channel} of {used.size} sets the scale of all: the typical channel uses {100 * typical:.2g} % "
        "of the grid"
    )
    if reading.floats is None:
        return _suspect(
            patient,
            reading,
            "channel_spread",
            text,
            "a scale for each channel; give the float model",
            Change(),
            True,
        )
    weight = requantize(reading.floats, reading.constant, axis)
    return _suspect(
        patient,
        reading,
        "channel_spread",
        text,
        f"a scale for each of {used.size} channels",
        Change(constants={reading.constant.constant: weight.rounded}),
        True,
        partial(_set_weight, constant=reading.constant, weight=weight),
    )


def _find_unused(
    patient: Patient, reading: WeightReading, others: Sequence[WeightReading]
) -> Suspicion | None:
    """Return that the scale is too wide for every channel; tools leave a bit unused to avoid saturated sums."""
    used = float(np.abs(reading.constant.grid.steps).max()) / 127
    if reading.floats is None or reading.constant.kind != "int8" or used > USED:
        return None
    weight = requantize(reading.floats, reading.constant, reading.axis if _is_per_axis(reading) else None)
    return _suspect(
        patient,
        reading,
        "weight_scale",
        f"its numbers reach {100 * used:.2g} % of the grid",
        "the range of its values",
        Change(constants={reading.constant.constant: weight.rounded}),
        False,
        partial(_set_weight, constant=reading.constant, weight=weight),
    )


def _suspect(
    patient: Patient,
    reading: WeightReading,
    kind: str,
    evidence: str,
    repair: str,
    change: Change,
    is_certain: bool,
    *edits: partial[None],
) -> Suspicion:
    harm = 0.0 if patient.board is None or not change.constants else patient.harm((), change)
    return Suspicion(
        kind=kind,
        evidence=evidence,
        tensor=reading.constant.data,
        node=reading.layer.name,
        repair=repair,
        harm=harm,
        is_certain=is_certain,
        change=change,
        edits=edits,
    )


def _fill(steps: NDArray[np.int32], axis: int) -> float:
    """Return the least part of the largest number that a channel along `axis` reaches."""
    around = tuple(at for at in range(steps.ndim) if at != axis)
    reach = np.abs(steps).max(around)
    return float(reach.min()) / max(float(reach.max()), 1.0)


def _is_per_axis(reading: WeightReading) -> bool:
    return reading.constant.grid.granularity != Granularity()


def _squared(one: NDArray[np.floating], other: NDArray[np.floating] | None) -> float:
    if other is None:
        return 0.0
    return float(((np.asarray(one, np.float64) - other) ** 2).sum())


def _set_axes(editor: FileEditor, scale: str, axis: int) -> None:
    editor.set_axes(scale, axis)


def _scale(editor: FileEditor, constant: StoredConstant, factor: float) -> None:
    editor.scale_weight(constant, factor)


def _set_weight(editor: FileEditor, constant: StoredConstant, weight: RequantizedWeight) -> None:
    editor.set_weight(constant, weight)
