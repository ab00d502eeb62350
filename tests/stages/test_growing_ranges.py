"""A note says that ranges still grow with the samples, from statistics with and without the unseen ones."""

from __future__ import annotations

import numpy as np
import pytest
from builders import build, planned, weights

from onnxfq import quantize
from onnxfq.graph.io.load import load
from onnxfq.stages.observe import collect_statistics
from onnxfq.stages.options import open_feeds
from onnxfq.stages.statistics_source import GatheredStatistics

ROWS = np.random.default_rng(1).uniform(-1, 1, (48, 16)).astype(np.float32)


def network():
    """Return two layers, whose inputs are observed."""
    text = """g (float[N,16] x) => (float[N,4] y) {
        [first] h = MatMul (x, w1)
        [second] y = MatMul (h, w2) }"""
    return build(text, {"w1": weights(16, 8), "w2": weights(8, 4)})


@pytest.mark.parametrize("factor, grows", [(0.5, False), (1.04, False), (1.2, True), (50.0, True)])
def test_growth_is_counted(factor: float, grows: bool) -> None:
    """Sixteen more samples, the same ones at another size, widen both ranges by just this factor."""
    model, plan = load(network()), planned(network())
    seen, unseen = (
        collect_statistics(
            model, plan, open_feeds(model.proto, {"x": (rows * np.float32(size)).astype(np.float32)})
        )
        for rows, size in ((ROWS, 1.0), (ROWS, factor))
    )
    note = GatheredStatistics(seen, seen.join(unseen)).describe_growth()
    assert note == (
        "the 48 unseen samples widened 2 of 2 ranges by over 5%: take more samples" if grows else ""
    )


def test_nothing_is_said_without_unseen_samples() -> None:
    """One sample gives all ranges."""
    result = quantize(network(), {"x": ROWS[:1]})
    assert not any("take more samples" in note for note in result.model.notes)
