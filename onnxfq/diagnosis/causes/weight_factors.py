"""Weights whose scale is another one times a factor."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import numpy as np
import onnx

from onnxfq.diagnosis.causes.ranges import APART, BETTER, TRIED
from onnxfq.diagnosis.causes.weight_reading import OFF, WeightReading, squared_error
from onnxfq.diagnosis.reading.candidate import FileCandidate
from onnxfq.diagnosis.reading.cause import Suspicion
from onnxfq.diagnosis.reading.file_editor import FileEditor
from onnxfq.diagnosis.reading.quantizers import ActivationQuantizer
from onnxfq.diagnosis.reading.range_reading import RangeReading, mean_misfit

COARSE = 4.0
"""Squared error over the one of rounding from which a weight has another fault."""


def find_factor(reading: WeightReading, others: Sequence[WeightReading]) -> Suspicion | None:
    """Return that the scale is another one times a factor."""
    factor = _factor_of(reading)
    if factor is None or abs(factor - 1) <= OFF:
        return None
    scale = reading.constant.grid.scale.ravel()
    same = (o for o in others if o is not reading and np.array_equal(o.constant.grid.scale.ravel(), scale))
    owner = next(same, None)
    text = f"its values are {factor:.3g} times those of the float layer"
    if reading.floats is None:
        text = f"by the bias or the ranges behind its scale was {1 / factor:.3g} times as large"
    if owner is not None:
        text += f"; the scale is that of {owner.constant.data!r}"
    kind = "foreign_parameters" if owner is not None else "weight_scale"
    edit = partial(FileEditor.scale_weight, constant=reading.constant, factor=factor)
    repair = f"the scale divided by {factor:.3g}"
    return reading.suspect(text, repair, edit, kind=kind)


def _factor_of(reading: WeightReading) -> float | None:
    """Return the factor of a weight against the float layer, or against the scale of its bias."""
    if reading.floats is None:
        if reading.data is None or not reading.data.is_near:
            return None
        by_bias = _factor_by_bias(reading, reading.data)
        return _factor_by_ranges(reading) if by_bias is None else by_bias
    if reading.error < COARSE * reading.rounding or not np.any(reading.floats):
        return None
    a, b = reading.values.astype(np.float64).ravel(), reading.floats.astype(np.float64).ravel()
    factor = float(a @ b / (b @ b))
    explains = squared_error(a, factor * b) < reading.error / COARSE
    return factor if explains and factor > 0 else None


def _factor_by_bias(reading: WeightReading, data: RangeReading) -> float | None:
    """Return the scale of a weight over the one that the scale of its bias was made of.

    Quantizers give an int32 bias the product of the scales of data and weight. If the range of the data fits,
    a difference is the weight's.
    """
    constants, names = reading.candidate.form.constants, reading.layer.input[2:3]
    bias = next((one.grid for one in constants if one.is_bias and one.constant in names), None)
    if bias is None:
        return None
    product = np.float64(data.quantizer.grid.scale) * reading.constant.grid.scale.ravel().astype(np.float64)
    factors = product / bias.scale.ravel()
    return float(factors.mean()) if np.ptp(factors) < OFF * factors.mean() else None


def _factor_by_ranges(reading: WeightReading) -> float | None:
    """Return the factor of a weight without which the ranges of all tensors behind it fit the data."""
    candidate = reading.candidate
    behind = _next_quantizer(candidate, reading.layer)
    if behind is None:
        return None
    first = RangeReading([behind], candidate.values[behind.number])
    places = [at for at, one in enumerate(candidate.ranges) if max(one.numbers) >= behind.number]
    if len(places) < 3 or first.is_near or not first.ratio:
        return None
    edit = partial(FileEditor.scale_weight, constant=reading.constant, factor=1 / first.ratio)
    tried = (candidate.read_ranges(candidate.feeds[:TRIED], edits) for edits in ((), (edit,)))
    before, after = (mean_misfit([ranges[at] for at in places[1:]]) for ranges in tried)
    return 1 / first.ratio if before > APART and after < BETTER * before else None


def _next_quantizer(candidate: FileCandidate, layer: onnx.NodeProto) -> ActivationQuantizer | None:
    """Return the first of the quantizers behind a layer with no other one between."""
    tensors = {quantizer.plain: quantizer for quantizer in candidate.form.activations}
    behind = [layer, *candidate.form_index.nodes_behind(layer.output, tensors)]
    found = [tensors[name] for node in behind for name in node.output if name in tensors]
    return min(found, key=lambda quantizer: quantizer.number, default=None)
