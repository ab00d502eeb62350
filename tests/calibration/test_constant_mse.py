"""Least squared error of constants: against a brute-force search and the formulas."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from onnxruntime.quantization.neural_compressor.weight_only import quant_tensor_k_quant_cpu

from onnxfq.calibration.calibrators import MINMAX, MSE
from onnxfq.calibration.calibrators.constant_mse import least_error_scales
from onnxfq.calibration.calibrators.groups import group_ranges
from onnxfq.numerics.affine import fake_quantize
from onnxfq.numerics.block_scales import ScaleRule, choose_scales, element_grid
from onnxfq.numerics.granularity import Granularity
from onnxfq.numerics.layout import Layout
from onnxfq.numerics.metrics import ErrorSums
from onnxfq.numerics.qparams import choose_qparams
from onnxfq.numerics.qtypes import qtype_by_name
from onnxfq.numerics.spec import QuantSpec

RNG = np.random.default_rng(5)
DATA = {
    "normal": RNG.normal(size=(64, 128)),
    "laplace": RNG.laplace(size=(64, 128)),
    "uniform": RNG.uniform(-1, 1, (64, 128)),
    "positive": np.abs(RNG.normal(size=(64, 128))),
    "outlier": np.concatenate([RNG.normal(size=(64, 127)), np.full((64, 1), 30.0)], axis=1),
}


def errors(x, scale, qtype):
    """Return the squared error of each row on the grid of its scale."""
    y = fake_quantize(x, scale.astype(np.float32), qtype=qtype, granularity=Granularity(axis=0))
    return ((y.astype(np.float64) - x) ** 2).sum(axis=1)


@pytest.mark.grid
@pytest.mark.parametrize("data", DATA)
@pytest.mark.parametrize("name", ["int2", "int3", "int4", "int8", "float4e2m1"])
def test_no_scale_is_much_better(name, data):
    """Within 2% of the best of 2,000 scales of each row, and at most the error of min-max."""
    x, spec = DATA[data].astype(np.float32), QuantSpec(qtype=name, axis=0)
    full, _ = choose_qparams(*group_ranges(x, spec, MINMAX), spec.qtype, True)
    found, _ = choose_qparams(*group_ranges(x, spec, MSE), spec.qtype, True)
    tried = np.abs(x).max(axis=1) / spec.qtype.qmax * np.linspace(0.01, 1.0, 2000)[:, None]
    best = np.min([errors(x, scale, spec.qtype) for scale in tried], axis=0)
    assert errors(x, found, spec.qtype).sum() <= 1.02 * best.sum()
    if name != "int2":  # its min-max saturates by rule
        assert (errors(x, found, spec.qtype) <= errors(x, full, spec.qtype)).all()


@settings(max_examples=40)
@given(
    hnp.arrays(np.float32, (3, 20), elements=st.floats(-1e6, 1e6, width=32)),
    st.sampled_from(
        [("float4e2m1", "e4m3"), ("float4e2m1", "e8m0"), ("float8e4m3fn", "e8m0"), ("int8", "e8m0")]
    ),
)
def test_block_formats_are_never_worse(x, kind):
    """NVFP4 and MX: scales of their type, of at most the error of the published formula in every block.

    NVFP4's formula gets the same global scale: headroom makes the smallest scales coarser.
    """
    rule, blocks = ScaleRule(qtype_by_name(kind[0]), kind[1]), Granularity(1, 8)
    grid = element_grid(rule.qtype, rule.scale_type)
    layout = Layout(blocks, x.shape)
    noise = []
    least = least_error_scales(x, rule, blocks)
    formula = choose_scales(x, rule._replace(global_scale=least.global_scale), blocks)
    for scales in (formula, least):
        y = fake_quantize(x, scales.scale, qtype=grid, granularity=blocks)
        noise.append(layout.reduce(np.add, (y.astype(np.float64) - x) ** 2, 0.0))
    assert (noise[1] <= noise[0]).all()


@pytest.mark.parametrize("data", DATA)
def test_four_over_six_by_hand(data):
    """Each block of a weight has at most the error of the better of maxima 4 and 6, by ml_dtypes' casts."""
    x = DATA[data].astype(np.float32)
    blocks = x.reshape(-1, 16)
    amax = np.abs(blocks).max(axis=1, keepdims=True)
    shared = np.float32(2 * amax.max() / (448 * 6))

    def noise_of(scale):
        y = (blocks / scale).astype(ml_dtypes.float4_e2m1fn).astype(np.float32) * scale
        return ((y.astype(np.float64) - blocks) ** 2).sum(axis=1)

    by_hand = []
    for largest in (4, 6):
        stored = (amax / np.float32(largest) / shared).astype(ml_dtypes.float8_e4m3fn)
        assert (stored.astype(np.float32) > 0).all() and np.isfinite(stored.astype(np.float32)).all()
        by_hand.append(noise_of(stored.astype(np.float32) * shared))
    least = least_error_scales(x, ScaleRule(qtype_by_name("float4e2m1"), "e4m3"), Granularity(1, 16))
    assert least.global_scale == pytest.approx(shared, rel=1e-6)
    reached = noise_of(least.scale.reshape(-1, 1))
    assert (reached <= np.minimum(*by_hand) * (1 + 1e-5)).all()
    # Both maxima win somewhere, and the choice of either alone is worse.
    assert (by_hand[0] < by_hand[1]).any() and (by_hand[1] < by_hand[0]).any()
    assert reached.sum() < min(one.sum() for one in by_hand)


@pytest.mark.parametrize(
    ("kind", "formula", "least"),
    [(("float4e2m1", "e4m3", 16), 20.5, 21.6), (("float4e2m1", "e8m0", 32), 18.8, 19.0)],
    ids=["NVFP4", "MXFP4"],
)
def test_figures_of_the_docs(kind, formula, least):
    """SQNR in dB of a normal weight, by the formula and by least error (docs/llm.md)."""
    x = np.random.default_rng(0).normal(size=(512, 1024)).astype(np.float32)
    rule, blocks = ScaleRule(qtype_by_name(kind[0]), kind[1]), Granularity(1, kind[2])

    def sqnr_db(scale):
        return ErrorSums.from_arrays(x, fake_quantize(x, scale, qtype=rule.qtype, granularity=blocks)).sqnr_db

    assert sqnr_db(choose_scales(x, rule, blocks).scale) < formula
    assert sqnr_db(least_error_scales(x, rule, blocks).scale) > least


@pytest.mark.parametrize(
    "blocks", [{"axis": 0}, {"axis": 0, "block_size": 3}, {"axis": 1, "block_size": 9}], ids=str
)
def test_parts_change_nothing(blocks, monkeypatch):
    """A large constant is searched in parts, with the ranges of the whole."""
    x, spec = RNG.normal(size=(20, 24)).astype(np.float32), QuantSpec(qtype="int4", **blocks)
    whole = group_ranges(x, spec, MSE)
    monkeypatch.setattr("onnxfq.calibration.calibrators.constant_mse._AT_ONCE", 50)
    np.testing.assert_array_equal(group_ranges(x, spec, MSE), whole)


@pytest.mark.parametrize(
    "blocks", [{}, {"axis": 1}, {"axis": 2, "block_size": 3}, {"block_shape": (4, -1, 3)}]
)
def test_rows_are_the_groups(blocks):
    """Each row holds one block of `split`, and zeros where a block is short."""
    x = RNG.normal(size=(6, 5, 7)).astype(np.float32)
    layout = Layout(QuantSpec(qtype="int8", **blocks).granularity, x.shape)
    for row, block in zip(layout.to_rows(x), layout.split(x), strict=True):
        assert sorted(row[row != 0]) == sorted(block.ravel())
        assert row.size >= block.size


@pytest.mark.parametrize(("calibrator", "least", "most"), [(MINMAX, 0.98, 1.02), (MSE, 0.70, 0.85)], ids=str)
def test_least_error_makes_layers_smaller(calibrator, least, most):
    """20 int4 layers without normalization keep their gain by minmax and lose a fifth of it by mse.

    Saturation makes weights smaller, so all layers lose gain in the same direction; errors of rounding have
    both signs (docs/accuracy.md).
    """
    rng, size = np.random.default_rng(0), 256
    x = exact = rng.normal(size=(size, 64)).astype(np.float32)
    spec = QuantSpec(qtype="int4", axis=0)
    for _ in range(20):
        w = (rng.normal(size=(size, size)) / np.sqrt(size)).astype(np.float32)
        scale, _ = choose_qparams(*group_ranges(w, spec, calibrator), spec.qtype, True)
        exact = w @ exact
        x = fake_quantize(w, scale, qtype=spec.qtype, granularity=spec.granularity) @ x
    gain = float((x * exact).sum() / (exact * exact).sum())
    assert least < gain < most


@pytest.mark.grid
@pytest.mark.parametrize("data", DATA)
@pytest.mark.parametrize("name", ["uint2", "uint4", "uint8"])
def test_no_asymmetric_range_is_much_better(name, data):
    """Within 3% of the best of 1,600 pairs of ends, and at most the error of min-max in each row."""
    x, spec = DATA[data].astype(np.float32), QuantSpec(qtype=name, symmetric=False, axis=0)
    granularity = Granularity(axis=0)

    def error_of(rmin, rmax):
        scale, zero = choose_qparams(rmin, rmax, spec.qtype, False)
        y = fake_quantize(x, scale, zero, qtype=spec.qtype, granularity=granularity)
        return ((y.astype(np.float64) - x) ** 2).sum(axis=1)

    found, (low, high) = error_of(*group_ranges(x, spec, MSE)), group_ranges(x, spec, MINMAX)
    shares = np.linspace(0.025, 1.0, 40)
    best = np.min([error_of(low * one, high * other) for one in shares for other in shares], axis=0)
    assert found.sum() <= 1.03 * best.sum()
    assert (found <= error_of(low, high)).all()


@pytest.mark.parametrize("data", DATA)
def test_blocks_beat_k_quants(data):
    """The k-quants of ONNX Runtime, which GenAI's builder calls, have a larger error on the same grids."""
    x, spec = DATA[data].astype(np.float32), QuantSpec(qtype="uint4", symmetric=False, axis=1, block_size=32)
    numbers, scale, zero = quant_tensor_k_quant_cpu(x, 4, 32)
    theirs = (scale * (numbers - zero)).reshape(x.shape)
    ours = fake_quantize(
        x,
        *choose_qparams(*group_ranges(x, spec, MSE), spec.qtype, False),
        qtype=spec.qtype,
        granularity=spec.granularity,
    )
    assert np.square(ours - x).sum() < 0.97 * np.square(theirs - x).sum()
