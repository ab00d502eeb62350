"""Rounding of weights by moments: against brute force, and the grid."""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import numpy as np
import pytest

from onnxfq.calibration.calibrators import MSE
from onnxfq.calibration.calibrators.groups import group_ranges
from onnxfq.calibration.weights import InputMoments, MatrixView, RoundingJob, round_weight
from onnxfq.calibration.weights.gptq import factorize, round_columns
from onnxfq.calibration.weights.grid import WeightGrid
from onnxfq.calibration.weights.qronos import find_change
from onnxfq.numerics.affine import fake_quantize
from onnxfq.numerics.block_scales import ScaleRule, Scales, choose_scales
from onnxfq.numerics.qparams import choose_qparams
from onnxfq.numerics.qtypes import qtype_by_name
from onnxfq.numerics.spec import QuantSpec


def layer(rng: np.random.Generator, inputs: int = 8, outputs: int = 1) -> tuple[np.ndarray, np.ndarray]:
    """Return weights [1, outputs, inputs] and the moments of correlated inputs."""
    mixed = rng.normal(size=(64, inputs)) @ rng.normal(size=(inputs, inputs))
    return rng.normal(size=(1, outputs, inputs)).astype(np.float32), (mixed.T @ mixed)[None]


def error(weights, rounded, moments):
    """Return the squared error of the outputs."""
    return float(np.einsum("gnk,gkl,gnl->", weights - rounded, moments, weights - rounded))


def test_against_every_rounding():
    """Over 200 layers of 8 inputs GPTQ closes 60% of the gap between nearest and the optimum on average."""
    rng, qtype, closed = np.random.default_rng(0), qtype_by_name("int2"), []
    numbers = np.stack(list(product((-2.0, -1.0, 0.0, 1.0), repeat=8)))
    for _ in range(200):
        weights, moments = layer(rng)
        scale = np.full(weights.shape, np.abs(weights).max() / 2, np.float32)
        grid = WeightGrid(qtype, scale, np.zeros_like(scale))
        lost = weights[0] - numbers * scale[0]
        best = ((lost @ moments[0]) * lost).sum(axis=1).min()
        nearest = error(weights, grid.round(weights), moments)
        found, _ = round_columns(weights, grid, factorize(moments))
        reached = min(nearest, error(weights, found, moments))
        if nearest - best > 1e-9 * nearest:  # otherwise nearest is the optimum, and the gap is noise
            closed.append((nearest - reached) / (nearest - best))
    assert len(closed) > 150
    assert np.mean(closed) >= 0.6


def published_gptq(weights, grid, moments):
    """Return the rounded weights by algorithm 1 of the paper with act-order: an inverse, by columns."""
    damped = moments[0] + 0.01 * np.trace(moments[0]) / len(moments[0]) * np.eye(len(moments[0]))
    order = np.argsort(-np.diag(damped), kind="stable")
    factor = np.linalg.cholesky(np.linalg.inv(damped[np.ix_(order, order)])).T
    left, rounded, scale = weights[0][:, order].copy(), np.empty(weights.shape), grid.scale[0][:, order]
    for j, at in enumerate(order):
        rounded[0, :, at] = np.clip(np.rint(left[:, j] / scale[:, j]), -8, 7) * scale[:, j]
        lost = (left[:, j] - rounded[0, :, at]) / factor[j, j]
        left[:, j:] -= np.outer(lost, factor[j, j:])
    return rounded


def test_against_the_published_algorithm(monkeypatch):
    """The form without an inverse rounds every weight as the paper does, also in parts of the outputs."""
    rng = np.random.default_rng(4)
    weights, moments = layer(rng, 200, 30)
    scale = rng.choice(
        np.float32([0.25, 0.5, 1.0]), weights.shape
    )  # powers of two: no rounding but the grid's
    grid = WeightGrid(qtype_by_name("int4"), scale, np.zeros_like(scale))
    found, power = round_columns(weights, grid, factorize(moments))
    assert (found == published_gptq(weights, grid, moments)).all()
    residual = InputMoments(moments, 64).residual(weights)
    errors = residual.errors(weights - found)
    assert errors.sum() == pytest.approx(error(weights, found, moments), rel=1e-9)  # another order of sums
    assert power == pytest.approx(errors, rel=1e-5)  # sums of float32 decide what is rounded
    monkeypatch.setattr("onnxfq.calibration.weights.grid.AT_ONCE", 1400)  # 7 outputs
    assert (round_columns(weights, grid, factorize(moments))[0] == found).all()
    assert residual.errors(weights - found) == pytest.approx(errors, rel=1e-9)


CASES = {
    "int8 per axis": (QuantSpec(qtype="int8", axis=1), MatrixView("MatMul", (0, 1))),
    "int4 blocks": (QuantSpec(qtype="int4", axis=0, block_size=16), MatrixView("MatMul", (0, 1))),
    "int4 short blocks": (QuantSpec(qtype="int4", axis=0, block_size=20), MatrixView("MatMul", (0, 1))),
    "int3 per tensor": (QuantSpec(qtype="int3"), MatrixView("Gemm", (0, 1), outputs_first=True)),
    "transposed": (QuantSpec(qtype="int4", axis=0), MatrixView("MatMul", (1, 0))),
    "uint4 asymmetric": (QuantSpec(qtype="uint4", symmetric=False, axis=1), MatrixView("MatMul", (0, 1))),
    "float8": (QuantSpec(qtype="float8e4m3fn", axis=1), MatrixView("MatMul", (0, 1))),
    "mxfp4": (
        QuantSpec(qtype="float4e2m1", scale_type="e8m0", axis=0, block_size=16),
        MatrixView("MatMul", (0, 1)),
    ),
    "nvfp4": (
        QuantSpec(qtype="float4e2m1", scale_type="e4m3", axis=0, block_size=16),
        MatrixView("MatMul", (0, 1)),
    ),
    "mxint8": (
        QuantSpec(qtype="int8", scale_type="e8m0", axis=0, block_size=16),
        MatrixView("MatMul", (0, 1)),
    ),
    "conv": (QuantSpec(qtype="int4", axis=0), MatrixView("Conv", (0, 1, 2, 3), group=2)),
    "transposed conv": (QuantSpec(qtype="int4", axis=1), MatrixView("ConvTranspose", (0, 1, 2, 3), group=1)),
}


@pytest.mark.parametrize("name", CASES)
def test_result_lies_on_its_grid_and_is_never_worse(name):
    """Rounding the result once more changes no bit; the expected error is at most the error of nearest."""
    spec, view = CASES[name]
    rng = np.random.default_rng(3)
    shape = (8, 6, 3, 3) if "conv" in name else (48, 40)
    values = rng.normal(size=shape).astype(np.float32)
    weights = view.fold(values)
    assert (view.unfold(weights, shape) == values).all()
    groups, _, inputs = weights.shape
    x = rng.normal(size=(groups, 200, inputs)) @ rng.normal(size=(groups, inputs, inputs))
    moments = InputMoments(np.swapaxes(x, 1, 2) @ x, 200)
    if spec.scale_type == "float32":
        ends = group_ranges(values, spec, MSE)
        nearest = Scales(*choose_qparams(*ends, spec.qtype, spec.symmetric), None)
    else:
        nearest = choose_scales(values, ScaleRule(spec.qtype, spec.scale_type), spec.granularity)
    made = round_weight(RoundingJob(values, spec, nearest, view, moments, "gptq"))
    again = fake_quantize(
        made.values, made.scales.scale, made.scales.zero_point, qtype=spec.grid, granularity=spec.granularity
    )
    assert again.tobytes() == made.values.tobytes()
    assert made.scales.scale.shape == nearest.scale.shape
    lost = view.fold(values).astype(np.float64) - view.fold(made.values)
    outputs = lost @ np.swapaxes(x, 1, 2)
    assert made.after == pytest.approx((outputs**2).sum(), rel=1e-6)  # sums in another order
    assert made.after < made.before


def test_inputs_that_are_always_zero():
    """They make the moments singular; the others round as they would without them."""
    rng = np.random.default_rng(1)
    weights, moments = layer(rng, 8, 4)
    moments[:, 5:, :] = moments[:, :, 5:] = 0
    scale = np.full(weights.shape, 0.5, np.float32)
    grid = WeightGrid(qtype_by_name("int4"), scale, np.zeros_like(scale))
    rounded, _ = round_columns(weights, grid, factorize(moments))
    assert (rounded[..., 5:] == grid.round(weights)[..., 5:]).all()
    nothing, _ = round_columns(weights, grid, factorize(np.zeros_like(moments)))
    assert (nothing == grid.round(weights)).all()


def test_correction_is_least_squares():
    """Without damping the corrected weights would be the least-squares solution for the quantized inputs."""
    rng = np.random.default_rng(2)
    x = rng.normal(size=(500, 6))
    z = x + 0.05 * rng.normal(size=x.shape)
    weights = rng.normal(size=(1, 3, 6))
    moments = InputMoments((x.T @ x)[None], 500, (z.T @ z)[None], (x.T @ z)[None])
    residual = moments.residual(weights)
    change = find_change(weights, moments, residual)
    assert change is not None
    found = (weights + change)[0]
    wanted = np.linalg.lstsq(z, x @ weights[0].T, rcond=None)[0].T
    # The damping of 1% keeps 1% of the distance to the given weights.
    assert np.abs(found - wanted).max() < 0.02 * np.abs(weights[0] - wanted).max() + 1e-9
    for near, far in product((0.0, 0.1), repeat=2):
        rounded = found + near * rng.normal(size=found.shape)
        reached = residual.after(change + far).errors(found + far - rounded[None])
        assert reached[0] == pytest.approx(np.square(x @ weights[0].T - z @ rounded.T).sum(axis=0), rel=1e-9)


@pytest.mark.parametrize(("rows", "is_lost"), [(24, False), (24, True), (4000, False), (4000, True)])
def test_corrections_hold_on_unseen_rows(rows: int, is_lost: bool) -> None:
    """Noise alone is not followed on few rows, and a tenth that inputs have lost is given back on many."""
    rng = np.random.default_rng(rows)
    x = rng.normal(size=(rows + 4000, 20)) @ rng.normal(size=(20, 20))
    z = (0.9 if is_lost else 1.0) * x + 0.2 * rng.normal(size=x.shape)
    weights = rng.normal(size=(1, 3, 20))

    def sum_moments(at: slice) -> tuple[np.ndarray, np.ndarray]:
        return (z[at].T @ z[at])[None], (x[at].T @ z[at])[None]

    def measure_error(found: np.ndarray) -> float:
        return float(np.square(x[rows:] @ weights[0].T - z[rows:] @ found[0].T).sum())

    moments = InputMoments((x.T @ x)[None], rows, *sum_moments(slice(rows)))
    first, second = sum_moments(slice(rows // 2))
    halves = replace(moments, half=(lambda: first, lambda: second))
    changes = [find_change(weights, one, one.residual(weights)) for one in (halves, moments)]
    same, reached, full = (measure_error(weights + change) for change in (0.0, *changes))
    assert reached < (0.5 if is_lost else 1.01) * same
    assert reached < (0.9 if rows == 24 else 1.01) * full
