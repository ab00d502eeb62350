"""Whether two float models compute the same: the largest difference of their outputs."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from onnxfq.data import Feed
from onnxfq.graph.model import Model
from onnxfq.runtime.session import Session


def largest_difference(one: Model, other: Model, feeds: Sequence[Feed], threads: int) -> float:
    """Return the largest difference of an output over its largest value; infinity for other NaN.

    Args:
        one: the model with the values.
        other: a model with the same inputs and outputs.
        feeds: the inputs.
        threads: cores to use, 0 for all.
    """
    found = []
    for model in (one, other):
        session = Session(model.proto, threads, exact=True)  # one at a time: both may be large
        found.append([array for feed in feeds for array in session.run(feed)])
    largest = 0.0
    for want, got in zip(*found, strict=True):
        if not np.issubdtype(want.dtype, np.floating):
            continue
        if want.shape != got.shape or not np.array_equal(np.isfinite(want), np.isfinite(got)):
            return np.inf
        known = np.isfinite(want)
        off = np.abs(want[known].astype(np.float64) - got[known]).max(initial=0.0)
        largest = max(largest, off / max(np.abs(want[known]).max(initial=0.0), np.finfo(np.float32).tiny))
    return float(largest)
