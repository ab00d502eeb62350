"""Parts of outputs by the size of their columns: what is divided, and what stays whole."""

from __future__ import annotations

import hypothesis
import numpy as np
import pytest
from hypothesis import strategies as st

from onnxfq.execution.column_parts import LEAST_RATIO, find_columns, split_columns
from onnxfq.graph.patterns.logits import JudgedTensors


def parts_of(*outputs: np.ndarray, **judged: object) -> list[str]:
    """Return the names of the parts of an output `y`."""
    of = JudgedTensors(deciding=("y",), **judged)
    return [part.name for part in find_columns(of, ["y"], [[one] for one in outputs]).get("y", ())]


def values(*shape: int) -> np.ndarray:
    """Return values of one size."""
    return np.random.default_rng(0).uniform(0.5, 1, shape).astype(np.float32)


@pytest.mark.parametrize("shape", [(9, 6), (1, 50, 6), (2, 3, 50, 6)])
def test_boxes_and_scores(shape: tuple[int, ...]) -> None:
    """The shorter of the second and the last axis counts; sizes are taken over all feeds."""
    y = values(*shape)
    assert parts_of(y) == []
    if len(shape) < 4:  # the second axis of the last one is its shorter one
        y[..., :4] *= 500
        names = ["columns 0-3", "columns 4-5"] if len(shape) == 3 else ["channels 0-3", "channels 4-5"]
        assert parts_of(y) == parts_of(y * 0, y) == names
        assert parts_of(y, y.take(range(5), -1)) == []
    else:
        y[:, 1:] *= 500
        assert parts_of(y) == ["channel 0", "channels 1-2"]


def test_what_stays_whole() -> None:
    """Probabilities, classes, parts that are known, integers, overflow, and columns that mix."""
    y = values(9, 6)
    y[:, :4] *= 500
    assert parts_of(y) and not parts_of(y, logits={"l": "y"}) and not parts_of(y, classes={"y": 3})
    assert not parts_of(y, parts={"y": ()}) and not parts_of(y.astype(np.int64)) and not parts_of(y[:, 0])
    assert not parts_of(y * np.inf) and not parts_of(y[:, [0, 4, 1, 5]]) and not parts_of()


@hypothesis.given(st.lists(st.sampled_from([0.0, 1.0, 3.0, 99.0, 1e3, 2e5]), min_size=1, max_size=12))
def test_ranges_are_all_columns(sizes: list[float]) -> None:
    """Each column is in one range; neighbouring ranges are LEAST_RATIO apart, and no range can be divided."""
    columns = np.asarray(sizes)
    ranges = split_columns(columns, 0)
    assert [n for first, end in ranges for n in range(first, end)] == [*range(len(sizes))]
    for first, end in ranges:
        inner = columns[first:end]
        for at in range(1, len(inner)):
            left, right = inner[:at][inner[:at] > 0], inner[at:][inner[at:] > 0]
            if left.size and right.size:
                assert max(left.min() / right.max(), right.min() / left.max()) < LEAST_RATIO
