"""Rows of the tensors that causes name: histogram, grid and channels, for the report."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from onnxfq.calibration.calibrators.entropy import linear_histogram
from onnxfq.diagnosis.reading.candidate import FileCandidate
from onnxfq.diagnosis.reading.cause import Suspicion
from onnxfq.diagnosis.reading.range_reading import RangeReading
from onnxfq.documents.layers import ChannelSizes, TensorRow
from onnxfq.numerics.metrics import ratio_db
from onnxfq.support.groups import group_pairs

BINS = 128
"""Bins of a histogram on the page."""

MOST = 24
"""Tensors that are drawn."""


def named_rows(candidate: FileCandidate, causes: Sequence[Suspicion]) -> tuple[TensorRow, ...]:
    """Return a row for each activation that a cause names, in the order of the causes; none without data."""
    if candidate.opened is None:
        return ()
    kinds = group_pairs((number, cause.kind) for cause in causes for number in cause.numbers)
    rows = []
    for number, names in list(kinds.items())[:MOST]:
        quantizer, values = candidate.form.activations[number], candidate.values[number]
        seen, (low, high) = values.seen, quantizer.grid.limits
        if not seen.finite:
            continue
        edges = np.linspace(min(seen.rmin, low), max(seen.rmax, high), BINS + 1)  # a wide grid is seen too
        noise, _ = RangeReading([quantizer], values).noises
        rows.append(
            TensorRow(
                tensor=quantizer.tensor,
                role="activation",
                format=quantizer.grid.kind.name,
                bits=quantizer.grid.kind.itemsize * 8,
                calibrator="of the file",
                why=", ".join(dict.fromkeys(names)).replace("_", " "),
                sqnr_db=ratio_db(values.power, noise),
                observed=(seen.rmin, seen.rmax),
                grid=quantizer.grid.limits,
                edges=(float(edges[0]), float(edges[-1])),
                counts=tuple(map(int, linear_histogram(values.density, edges))),
                sizes=ChannelSizes.of(values.channels, len(seen.feed_ranges)),
            )
        )
    return tuple(rows)
