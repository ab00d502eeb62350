"""Statistics and encodings: right numbers, pure functions, errors that name tensor and feed."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import onnx
import pytest
from builders import build, conv_relu, planned, same_tensor_twice, shared_weight, stage, weights, with_weights

from onnxfq.calibration.calibrators import observing_names
from onnxfq.calibration.statistics import HISTOGRAM, Statistics
from onnxfq.errors import PlanError, SpecError, StatisticsError
from onnxfq.graph.io.load import load
from onnxfq.numerics.qparams import choose_qparams
from onnxfq.numerics.qtypes import QTYPES
from onnxfq.stages.calibrate import Calibrated, calibrate
from onnxfq.stages.insert import insert_qdq
from onnxfq.stages.observe import collect_statistics


def test_activations_get_the_calibrated_range() -> None:
    """With minmax, scale is the larger of -min / 128 and max / 127."""
    staged = stage(conv_relu())
    encoding = calibrate(staged.model, staged.plan, staged.statistics, "minmax")["x"]
    low, high = (float(end) for end in (staged.feed["x"].min(), staged.feed["x"].max()))
    scale, _ = choose_qparams(low, high, QTYPES["int8"], True)
    assert encoding.scale == scale == np.float32(max(low / -128, high / 127))
    assert encoding.calibrator == "minmax"


def test_asymmetric_activations_hold_the_range_and_zero() -> None:
    """uint8 of a Relu's output: zero point 0, the whole range in 255 steps."""
    staged = stage(shared_weight(), "onnxruntime-int8")
    encoding = calibrate(staged.model, staged.plan, staged.statistics, "minmax")["r"]
    assert encoding.zero_point == (0,)
    assert encoding.scale == np.float32(staged.statistics["r"].rmax / 255)


def test_weights_are_scaled_by_channel() -> None:
    """Each channel's scale is the least that holds its own ends."""
    staged = stage(conv_relu())
    w = weights(4, 3, 3, 3).astype(np.float64).reshape(4, -1)
    want = np.maximum(w.max(axis=1) / 127, w.min(axis=1) / -128)
    np.testing.assert_array_equal(staged.encodings["w"].scale, want.astype(np.float32))


def test_weights_in_short_blocks() -> None:
    """Blocks of 3 on an axis of 4: the last block is short and has its own scale."""
    recipe = with_weights("onnxruntime-int8", granularity="blocked", block_size=3)
    staged = stage(shared_weight(), recipe)
    w = weights(4, 4).astype(np.float64)
    want = np.stack([np.maximum(part.max(0) / 127, part.min(0) / -128) for part in (w[:3], w[3:])])
    np.testing.assert_array_equal(staged.encodings["w"].scale, want.astype(np.float32))


@pytest.mark.parametrize("calibrator", [*observing_names(), "percentile:99.9", "range:0,0.1"])
def test_every_calibrator_serves_activations_and_weights(calibrator: str) -> None:
    """All calibrators give valid encodings from one set of statistics, twice the same."""
    staged = stage(conv_relu(), with_weights("tensorrt-int8", calibrator=calibrator))
    statistics = with_feed_ranges(staged.statistics)
    one, two = (calibrate(staged.model, staged.plan, statistics, calibrator) for _ in range(2))
    assert one == two
    assert one["w"].param_shape == (4,)
    assert one["x"].scale <= calibrate(staged.model, staged.plan, statistics, "minmax")["x"].scale


def with_feed_ranges(statistics: Statistics) -> Statistics:
    """Return statistics of one feed with its ranges, whether or not the observers recorded them."""
    tensors = {
        name: replace(one, feed_ranges=np.asarray([(one.rmin, one.rmax)], np.float32))
        for name, one in statistics.tensors.items()
    }
    return Statistics(statistics.model_sha256, statistics.feeds, HISTOGRAM.to_keys(tensors))


def test_statistics_without_feed_ranges_name_the_tensor() -> None:
    """A moving average that cannot be taken is refused with the tensor and the remedy."""
    staged = stage(conv_relu())
    bare = {
        name: replace(one, feed_ranges=np.zeros((0, 2), np.float32))
        for name, one in staged.statistics.tensors.items()
    }
    statistics = Statistics(staged.model.sha256, 1, HISTOGRAM.to_keys(bare))
    with pytest.raises(
        StatisticsError, match="tensor 'x': calibrator moving_average needs the range of each"
    ):
        calibrate(staged.model, staged.plan, statistics, "moving_average")


def softmax_then_matmul() -> onnx.ModelProto:
    """A Softmax whose outputs are far below 1, read by a MatMul."""
    return build(
        "g (float[N,4] x) => (float[N,4] y) { s = Softmax (x)\n y = MatMul (s, w) }", {"w": weights(4, 4)}
    )


@pytest.mark.parametrize("calibrator", [None, "minmax", "mse"])
def test_fixed_ranges_stay(calibrator: str | None) -> None:
    """float8 for TensorRT: a Softmax has the scale 1/448, whatever it was and whatever is asked for."""
    staged = stage(softmax_then_matmul(), "tensorrt-fp8")
    encoding = calibrate(staged.model, staged.plan, staged.statistics, calibrator)["s"]
    assert staged.statistics["s"].rmax < 0.95
    assert encoding.scale == np.float32(1 / 448)
    assert encoding.calibrator == "known:Softmax"


def test_dead_channels_get_a_scale(caplog) -> None:
    """Channels of zeros have scale 1, not 0, and a line gives their numbers."""
    values = weights(4, 4)
    values[:, [1, 3]] = 0
    staged = stage(build("g (float[N,4] x) => (float[N,4] y) { y = MatMul (x, w) }", {"w": values}))
    assert staged.encodings["w"].scale[[1, 3]].tolist() == [1, 1]
    assert "weight 'w': 2 of 4 channels are all zero (1, 3); their scale is 1" in caplog.text


@pytest.mark.parametrize(
    ("value", "found"), [(np.nan, "1 NaN and 0 infinite"), (-np.inf, "0 NaN and 1 infinite")]
)
def test_bad_values_name_tensor_and_feed(value: float, found: str) -> None:
    """NaN or infinity in the data is refused at once, with the tensor, the count and the feed."""
    model, plan = load(conv_relu()), planned(conv_relu())
    good = np.ones((1, 3, 6, 6), np.float32)
    bad = good.copy()
    bad[0, 1, 2, 3] = value
    with pytest.raises(StatisticsError, match=f"tensor 'x' has {found} values at feed 2"):
        collect_statistics(model, plan, [{"x": good}, {"x": good}, {"x": bad}, {"x": good}])


def test_what_no_run_reached_stays_in_float(caplog) -> None:
    """A tensor without a value has no range: its readers stay in float, and a line says so."""
    proto = build(
        """g (float[N,4] x, float[M,4] z) => (float[N,4] y, float[M,4] u) {
            y = MatMul (x, w) u = MatMul (z, w) }""",
        {"w": weights(4, 4)},
    )
    model, plan = load(proto), planned(proto)
    feed = {"x": np.ones((2, 4), np.float32), "z": np.ones((0, 4), np.float32)}
    encodings = calibrate(model, plan, collect_statistics(model, plan, [feed]))
    assert encodings.without_values == ("z",)
    assert [e.tensor for e in encodings.encodings] == ["x", "w"]
    assert "gave no finite value to tensor 'z'; nodes that need it stay in float" in caplog.text
    part = Calibrated.of(plan, encodings).plan
    assert [str(row) for row in part.coverage()] == ["MatMul 1/2"]
    assert {s.name for s in part.skipped} >= {"u", "z"}
    written = [n.op_type for n in insert_qdq(model, plan, encodings).graph.node]
    assert written.count("DequantizeLinear") == 2


def test_nothing_was_reached() -> None:
    """When no run gave any planned tensor a value, that is an error and no empty model."""
    model, plan = load(conv_relu()), planned(conv_relu())
    statistics = collect_statistics(model, plan, [{"x": np.ones((0, 3, 6, 6), np.float32)}])
    with pytest.raises(StatisticsError, match="gave tensor 'x' no value, and without it nothing is left"):
        calibrate(model, plan, statistics)


def test_weights_with_nan_are_refused() -> None:
    """A broken weight is named instead of poisoning its scale."""
    for value in (np.nan, np.inf):
        values = weights(4, 4)
        values[1, 2] = value
        with pytest.raises(PlanError, match="weight 'w' holds NaN or infinities"):
            stage(build("g (float[N,4] x) => (float[N,4] y) { y = MatMul (x, w) }", {"w": values}))


def test_what_does_not_belong_together() -> None:
    """Plan and statistics of another model are refused, and statistics that lack a tensor."""
    staged, other = stage(conv_relu()), stage(same_tensor_twice())
    with pytest.raises(PlanError, match="the plan was made for a model with SHA-256"):
        calibrate(other.model, staged.plan, staged.statistics)
    with pytest.raises(StatisticsError):
        calibrate(staged.model, staged.plan, other.statistics)
    with pytest.raises(SpecError, match="unknown calibrator 'minimax'; nearest: minmax"):
        calibrate(staged.model, staged.plan, staged.statistics, "minimax")
