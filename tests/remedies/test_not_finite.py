"""A quantized model that divides by 0 has an SQNR of -inf; the summary tells it, and repair cures it."""

from __future__ import annotations

import math

import numpy as np
import pytest
from builders import build, plain_quantize, weights

import onnxfq
from onnxfq.report.text import quantize_summary

# A normalization by the root mean square in single operators; a row in ten is 40 times as large.
LAYERS = " ".join(f"[m{n}] a{n} = MatMul (h{n}, w{n}) h{n + 1} = Relu (a{n})" for n in range(12))
NORMALIZED = build(
    f"""g (float[N,16] x) => (float[N,16] y) {{ [first] a = MatMul (x, w) [square] s = Mul (a, a)
        [mean] m = ReduceMean <axes = [-1]> (s) [eps] e = Add (m, small) [root] r = Sqrt (e)
        [divide] h0 = Div (a, r) {LAYERS} [last] y = MatMul (h12, v) }}""",
    {"small": np.float32(1e-9), "w": weights(16, 16), "v": weights(16, 16, seed=99)}
    | {f"w{n}": weights(16, 16, seed=n + 1) for n in range(12)},
)


@pytest.fixture(scope="module")
def data() -> dict[str, np.ndarray]:
    """Forty rows."""
    rows = np.random.default_rng(0).normal(size=(40, 16)).astype(np.float32)
    rows[::10] *= 40
    return {"x": rows}


def test_infinity_and_nan_are_told(data: dict[str, np.ndarray]) -> None:
    """Without repair the summary says that the output is not finite, and the SQNR is the lowest."""
    result = plain_quantize(NORMALIZED, data, recipe="qnn-int8")
    (candidate,) = result.evaluation.candidates
    assert candidate.lowest_db == -math.inf and candidate.broken == ("y",)
    lines = quantize_summary(result).splitlines()
    assert lines[0].startswith("SQNR       -inf dB at 'y'")
    assert any(line.startswith("not finite 'y': infinity or NaN, unlike") for line in lines)
    assert any(line.startswith("low SQNR   1 of 1 output") for line in lines)


@pytest.mark.parametrize("remedy, formats", [("widened", {}), ("protected", {"qtype": "uint8"})])
def test_repair_cures_it(remedy: str, formats: dict[str, str], data: dict[str, np.ndarray]) -> None:
    """All activations get 16 bits; where the recipe names a format, some layers stay in float."""
    recipe = onnxfq.load_recipe("qnn-int8")
    if formats:
        recipe = recipe.override(overrides=[{"nodes": ["last"], "activations": formats}])
    result = onnxfq.quantize(NORMALIZED, data, recipe=recipe)
    (candidate,) = result.evaluation.candidates
    assert candidate.broken == () and result.trial(remedy).is_kept and candidate.lowest_db > 10
    assert not any(line.startswith("not finite") for line in quantize_summary(result).splitlines())
