"""Feeds that a pass keeps for the comparison, and passes without them."""

from __future__ import annotations

import numpy as np
import pytest
from builders import conv_relu

from onnxfq.data.model_inputs import input_specs
from onnxfq.data.replay import CHECK_FEEDS, KeptFeeds, spread_numbers, spread_order
from onnxfq.stages.options import open_feeds


def samples(count: int) -> np.ndarray:
    """Samples that hold their number."""
    shape = [dim.dim_value for dim in conv_relu().graph.input[0].type.tensor_type.shape.dim[1:]]
    return np.broadcast_to(np.arange(count, dtype=np.float32)[:, None, None, None], (count, *shape)).copy()


def numbers(feeds) -> list[int]:
    """Numbers of the samples of some feeds."""
    (name,) = (spec.name for spec in input_specs(conv_relu()))
    return [int(feed[name].flat[0]) for feed in feeds]


@pytest.mark.parametrize("count", [1, 5, CHECK_FEEDS, 3 * CHECK_FEEDS])
@pytest.mark.parametrize("repeats", [True, False])
def test_a_pass_without_the_first_compared_feeds(count: int, repeats: bool) -> None:
    """It has all other samples of data that can be read again, and all other kept ones of other data."""
    (name,) = (spec.name for spec in input_specs(conv_relu()))
    x = samples(count)
    data = {name: x} if repeats else ({name: one[None]} for one in x)
    kept = KeptFeeds(open_feeds(conv_relu(), data))
    assert numbers(kept) == list(range(count))
    left_out = numbers(spread_order(kept.feeds)[:4])
    rest = range(count) if repeats else numbers(kept.feeds)
    for _ in range(2):
        assert numbers(kept.again_without(4)) == [number for number in rest if number not in left_out]
    assert len(kept.feeds) <= CHECK_FEEDS


def test_every_beginning_of_the_order_is_spread() -> None:
    """Van der Corput's sequence in base 2."""
    assert spread_numbers(7) == [0, 4, 2, 6, 1, 5, 3]
