"""Ranges of a constant's groups: each is what its own elements give."""

from __future__ import annotations

import numpy as np
import pytest

from onnxfq.calibration.calibrators import Calibrator, observing_names
from onnxfq.calibration.calibrators.groups import group_ranges
from onnxfq.calibration.statistics import TensorStatistics
from onnxfq.numerics.layout import Layout, expand_params
from onnxfq.numerics.spec import QuantSpec

W = (np.random.default_rng(0).normal(size=(6, 5, 7)) * np.linspace(0.1, 3, 6)[:, None, None]).astype(
    np.float32
)
GROUPS = [
    {},
    {"axis": 0},
    {"axis": -1},
    {"axis": 1, "block_size": 2},
    {"axis": 2, "block_size": 7},
    {"axis": 0, "block_size": 100},
    {"block_shape": (4, -1, 3)},
    {"block_shape": (-1, -1, -1)},
    {"block_shape": (1, 1, 1)},
]


@pytest.mark.grid
@pytest.mark.parametrize("name", [*observing_names(), "range:-1,2"])
@pytest.mark.parametrize("blocks", GROUPS, ids=str)
def test_each_group_is_calibrated_by_itself(name, blocks):
    """The groups are those that `expand_params` gives the same scale, in the shape of a scale."""
    spec = QuantSpec(qtype="int4", **blocks)
    shape = Layout(spec.granularity, W.shape).scale_shape
    ids = expand_params(np.arange(np.prod(shape, dtype=int)).reshape(shape), W.shape, spec.granularity)
    rmin, rmax = group_ranges(W, spec, Calibrator.parse(name))
    assert rmin.shape == rmax.shape == shape and rmin.dtype == rmax.dtype == np.float64
    # A constant is the same in every feed: its moving average is its range.
    if name == "mse":
        return  # it searches the values themselves: test_constant_mse.py
    method = Calibrator.parse("minmax" if name == "moving_average" else name)
    for at in range(rmin.size):
        wanted = method(TensorStatistics.from_array(W[ids == at]), spec)
        assert (rmin.ravel()[at], rmax.ravel()[at]) == wanted


@pytest.mark.parametrize("name", ["minmax", "mse"])
@pytest.mark.parametrize(("shape", "blocks"), [((0, 3), {"axis": 0}), ((0,), {}), ((), {})], ids=str)
def test_empty_and_scalar_constants(name, shape, blocks):
    """No group, a group of nothing, a group of one element."""
    values = np.full(shape, 2.0, np.float32)
    rmin, rmax = group_ranges(values, QuantSpec(qtype="int8", **blocks), Calibrator.parse(name))
    wanted = (np.inf, -np.inf) if shape == (0,) else (2.0, 2.0) if name == "minmax" else (0.0, 2.0)
    assert rmin.shape == ((0,) if blocks else ())
    if not blocks:
        assert (float(rmin), float(rmax)) == pytest.approx(wanted)
