"""Prices of layers in float: by their number in small networks, by their multiply-adds in large ones."""

from __future__ import annotations

import numpy as np
import pytest
from builders import build, weights

from onnxfq import sensitivity
from onnxfq.judging.work import ALLOWED, Work


def wide_and_narrow(size: int):
    """Return two layers, the first with three quarters of the multiply-adds."""
    text = f"""g (float[N,{size}] x) => (float[N,{size // 4}] y) {{
        [first] h = MatMul (x, w1)
        r = Relu (h)
        [second] y = MatMul (r, w2) }}"""
    return build(text, {"w1": weights(size, 3 * size // 4), "w2": weights(3 * size // 4, size // 4)})


@pytest.mark.parametrize("size, share", [(32, 0.5), (4096, 0.65)])
def test_prices(size: int, share: float) -> None:
    """Two small layers cost the same; of large ones the first costs nearly its share of the multiply-adds."""
    proto = wide_and_narrow(size)
    x = np.random.default_rng(0).normal(size=(4, size)).astype(np.float32)
    groups = {group.nodes[0]: group for group in sensitivity(proto, {"x": x}).groups}
    assert sum(group.price for group in groups.values()) == pytest.approx(1)
    assert groups["first"].multiplies == pytest.approx(0.8, abs=0.05)
    # 5e7 multiply-adds for each start of a kernel: 1e4 of these layers are nothing, 1.2e7 a fifth of it.
    assert groups["first"].price == pytest.approx(
        (5e7 + size * 3 * size / 4) / (1e8 + size * size * 15 / 16), rel=1e-6
    )
    assert groups["first"].price == pytest.approx(share, abs=0.16)


def test_low_outputs_allow_three_times_the_work() -> None:
    """Repair may take what `quantize` takes without it, thrice that for low outputs, and a floor."""
    large = Work(nodes=100, samples=64, elements=10**6, products={"conv": 10**11})
    assert large.allow(is_low=False) == large.base > large.runs(ALLOWED)
    assert large.allow(is_low=True) == 3 * large.base
    small = Work(nodes=10, samples=4, products={"conv": 10**6})
    assert small.allow(is_low=False) == small.allow(is_low=True) == small.runs(ALLOWED)
