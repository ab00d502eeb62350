"""Prices of layers in float: by their number in small networks, by their multiply-adds in large ones."""

from __future__ import annotations

import numpy as np
import onnx.parser
import pytest
from builders import build, weights

from onnxfq import sensitivity
from onnxfq.graph.walk import count_operators
from onnxfq.judging.work import ALLOWED, Work


def wide_and_narrow(size: int):
    """Return two layers, the first with three quarters of the multiply-adds."""
    text = f"""g (float[N,{size}] x) => (float[N,{size // 4}] y) {{
        [first] h = MatMul (x, w1)
        r = Relu (h)
        [second] y = MatMul (r, w2) }}"""
    return build(text, {"w1": weights(size, 3 * size // 4), "w2": weights(3 * size // 4, size // 4)})


@pytest.mark.whole
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


def test_one_branch_of_an_if_runs() -> None:
    """The longer branch counts, and constants do not, in branches and beside them."""
    proto = onnx.parser.parse_model("""<ir_version: 8, opset_import: ["" : 17]>
        g (bool c, float[4] x) => (float[4] y) {
            two = Constant <value_float = 2.0> ()
            a = Mul (x, two)
            b = If (c) <
                then_branch = t () => (float[4] d) { k = Constant <value_float = 1.0> () d = Add (a, k) },
                else_branch = e () => (float[4] f) { p = Relu (a) q = Neg (p) f = Abs (q) }>
            y = Relu (b) }""")
    assert count_operators(proto.graph) == 2 + 1 + 3


def test_low_outputs_allow_three_times_the_work() -> None:
    """Repair may take what `quantize` takes without it, thrice that for low outputs, and a floor."""
    large = Work(nodes=100, samples=64, elements=10**6, products={"conv": 10**11})
    assert large.allow(is_low=False) == large.base > large.runs(ALLOWED)
    assert large.allow(is_low=True) == 3 * large.base
    small = Work(nodes=10, samples=4, products={"conv": 10**6})
    assert small.allow(is_low=False) == small.runs(ALLOWED)
    assert small.allow(is_low=True) == 3 * small.runs(ALLOWED)
