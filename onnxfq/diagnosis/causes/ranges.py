"""Ranges that do not fit the values of their tensor."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial

import numpy as np

from onnxfq.diagnosis.reading.candidate import FileCandidate
from onnxfq.diagnosis.reading.cause import Suspicion
from onnxfq.diagnosis.reading.file_editor import Edit, Edits, FileEditor
from onnxfq.diagnosis.reading.range_reading import WIDE, RangeReading, typical
from onnxfq.diagnosis.reading.values import GridFit

WIDEST = 0.9
"""Part of the other ranges than which a certain fault is wider: of many ranges some are, by their data."""

APART = 0.1
"""Mean misfit of all ranges from which other preprocessing is tried; another draw of samples makes less."""

BETTER = 0.5
"""Part of the misfit that the right preprocessing leaves at most."""

TRIED = 16
"""Samples on which a preprocessing is tried: fewer move the ranges as much as the order of the channels."""

LEAVING = 0.1
"""How far values leave a range, over their width, to be unlike the ones that calibrated it."""

OUTLYING = 3.0
"""Misfit over the typical one of a file from which samples do not explain it."""

MINOR = 0.05
"""Share of the noise that a scale alone makes, from which it can be a cause by its harm."""

MEASURED = 8
"""Tensors whose harm is measured, those that lose most by themselves; others are faults if certain."""

SHIFTED = 0.1
"""Move of both ends to one side, over the width of the values, that no other draw of samples makes."""

COARSE_DB = 3.0
"""Error over a better range's from which saturation is harmful: twice the noise."""

GROSS_DB = 12.0
"""Error over a better range's, two bits, that no draw of samples makes by moving both ends to one side."""

LOST_DB = 6.0
"""Error over a better range's from which typical values are lost: a bit of precision."""


def find_ranges(candidate: FileCandidate) -> Iterator[Suspicion]:
    """Yield scales whose range is too wide or too narrow for the data, or cannot hold its sign."""
    readings, inputs = candidate.ranges, {value.name for value in candidate.proto.graph.input}
    found = [(one, _explain(one, readings)) for one in readings if one.values.power]
    faults = [row for row in sorted(found, key=lambda row: row[0].excess, reverse=True) if row[1][0]]
    for place, (reading, (kind, evidence, is_certain)) in enumerate(faults):
        is_measured = place < MEASURED
        if not is_certain and (not is_measured or candidate.share(reading.numbers) < MINOR):
            continue
        other = _owner(reading, readings) if kind != "unsigned_on_signed" else None
        if other is not None and candidate.are_tied(reading.numbers, other.numbers):
            continue
        if other is not None:
            kind = "foreign_parameters"
            evidence += f"; its scale and zero point are those of {other.quantizer.tensor!r}"
        is_other = kind == "wide_range" or (kind == "clipping" and is_certain)  # means of extremes clip
        if is_other and reading.quantizer.tensor in inputs:
            kind, evidence = "preprocessing", f"the input was calibrated on other values: {evidence}"
        # The grid that holds all values, or the one of least error, whichever is better.
        fits = {fit: grid_edits(candidate, reading, fit) for fit in reading.fits[0 if is_measured else 1 :]}
        harms = {
            fit: candidate.harm(reading.numbers, edits) if is_measured else 0.0 for fit, edits in fits.items()
        }
        fit = max(harms, key=lambda one: harms[one])
        repair = f"the range of the data: scale {fit.scale:.4g}, zero point {fit.zero:g}"
        fault = Suspicion.of(reading.group, kind=kind, evidence=evidence, repair=repair, harm=harms[fit])
        yield replace(fault, is_certain=is_certain, edits=fits[fit])


def _explain(reading: RangeReading, readings: Sequence[RangeReading]) -> tuple[str, str, bool]:
    """Return the kind of fault, its evidence, and whether it is a fault at any harm; empty without one."""
    others = [other.ratio for other in readings if other is not reading]
    quantizer, values = reading.quantizer, reading.values
    low, high = quantizer.grid.limits
    seen, half = values.seen, quantizer.grid.scale / 2
    covers = f"the range is {low:.4g}..{high:.4g} and the data is {seen.rmin:.4g}..{seen.rmax:.4g}"
    below, above = reading.saturated
    if quantizer.starts_at_zero and values.is_signed and seen.rmin < -half:
        part, energy = values.below_zero
        zeros = f"{100 * part:.3g}% of the values, with {100 * energy:.3g}% of the energy, become 0"
        return "unsigned_on_signed", f"{covers}: {zeros}", True
    if reading.ratio > WIDE and reading.ratio > WIDE * min(typical(others), 1.0):
        used = f"{covers}: {100 / reading.ratio:.2g}% of its grid is used"
        widest = float(np.quantile(others, WIDEST, method="lower")) if others else 1.0
        return "wide_range", used, reading.ratio > WIDE * max(widest, typical(others))
    least, most = (0.0, 0.0) if reading.excess_db >= GROSS_DB and reading.shift else reading.wander
    if reading.excess_db >= COARSE_DB and reading.overrun > LEAVING + most:
        side = "both ends" if min(below, above) > 0 else ("the lower end" if below else "the upper end")
        share = f"{covers}: {100 * (below + above):.3g}% of the values saturate at {side}"
        is_outlier = reading.misfit > OUTLYING * typical([one.misfit for one in readings])
        is_far, moved = reading.overrun > 1 - 1 / WIDE and is_outlier, abs(reading.shift)
        if moved > max(SHIFTED + least, OUTLYING * typical([abs(one.shift) for one in readings])):
            share, is_far = f"{share}, the other is {100 * moved:.2g}% of the width too far out", True
        return "clipping", f"{share}, {reading.excess_db:.1f} dB over the best range", is_far
    if reading.excess_db >= LOST_DB and not below + above:
        lost = f"{covers}: {100 * values.share_between(-half, half):.3g}% of the values become 0"
        return "lost_values", f"{lost}, {reading.excess_db:.1f} dB over the best range", False
    return "", "", False


def _owner(reading: RangeReading, readings: Sequence[RangeReading]) -> RangeReading | None:
    """Return another tensor that has the same scale and zero point, and whose values they fit."""
    grid = reading.quantizer.grid
    near = (other for other in readings if other is not reading and other.is_near)
    return next((other for other in near if other.quantizer.grid.agrees(grid)), None)


def grid_edits(candidate: FileCandidate, reading: RangeReading, fit: GridFit) -> Edits:
    """Return the edits that give quantizers a grid, and the layers behind them the float model's biases.

    A bias in integers was rounded in steps of the range of its layer's input, and is as wrong as that.
    """
    edits: list[Edit] = [partial(FileEditor.set_grid, quantizer=reading.quantizer, fit=fit)]
    outputs = {quantizer.output for quantizer in reading.group}
    stored = {one.constant for one in candidate.form.constants if one.is_bias}
    integer = {node.name for node in candidate.index.nodes if node.op_type in ("QGemm", "QLinearConv")}
    layers = {} if candidate.floats is None else candidate.floats.layers
    for node in candidate.form_index.nodes:
        layer = layers.get(node.name)
        has_stored = len(node.input) > 2 and (node.input[2] in stored or node.name in integer)
        if layer is not None and layer.bias is not None and node.input[0] in outputs and has_stored:
            edits.append(partial(FileEditor.set_bias, layer=node.name, values=layer.bias))
    return tuple(edits)


def all_fits(candidate: FileCandidate) -> Edits:
    """Return the repair that gives every scale the range of the data."""
    return tuple(edit for one in candidate.ranges for edit in grid_edits(candidate, one, one.fits[0]))
