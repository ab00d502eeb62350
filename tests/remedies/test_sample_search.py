"""One sample of other magnitude spoils no range, unless all others lose by its absence."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from builders import build, weights

import onnxfq
from onnxfq.report.text import quantize_summary

RELU = "g (float[N,16] x) => (float[N,4] y) { [m] a = MatMul (x, w) [r] b = Relu (a) [n] y = MatMul (b, v) }"


def network() -> onnx.ModelProto:
    """Return two layers."""
    return build(RELU, {"w": weights(16, 16), "v": weights(16, 4, seed=1)})


def samples(count: int, factor: float, at: int) -> np.ndarray:
    """Return samples, one of which is larger."""
    x = np.random.default_rng(0).normal(size=(count, 16)).astype(np.float32)
    x[at] *= factor
    return x


def quantize(x: np.ndarray, calibrator: str = "minmax", **accuracy: object) -> onnxfq.QuantizeResult:
    """Return the result of ranges that hold every value, of all channels, with weights at nearest."""
    recipe = onnxfq.load_recipe("tensorrt-int8").override(
        activations={"calibrator": calibrator, "equalize": "none"}, weights={"rounding": "nearest"}
    )
    return onnxfq.quantize(network(), {"x": x}, recipe=recipe, accuracy=onnxfq.AccuracyTarget(**accuracy))


def true_db(result: onnxfq.QuantizeResult) -> float:
    """Return the SQNR on new samples of the usual size."""
    x = np.random.default_rng(9).normal(size=(500, 16)).astype(np.float32)
    return onnxfq.evaluate(network(), result.simulation, {"x": x}).lowest_db


@pytest.mark.parametrize(("count", "at"), [(6, 0), (40, 39), (200, 77)])
def test_one_large_sample_is_left_out(count: int, at: int) -> None:
    """The default has the accuracy of the data without it, and the summary names it; off keeps the damage."""
    x = samples(count, 100.0, at)
    result, clean = quantize(x), quantize(np.delete(x, at, axis=0), repair=None)
    assert true_db(quantize(x, repair=None)) < 5 < 15 < true_db(clean) - 0.5 < true_db(result)
    trial = result.trial("samples")
    assert trial.is_kept and trial.details[0].startswith(f"left out: sample {at} reaches ")
    assert f"sample {at} reaches" in " ".join(quantize_summary(result).split())


def test_a_sound_sample_stays() -> None:
    """A larger sample that costs the others little is not left out; a kind of sample is not even tried."""
    x = samples(16, 30.0, 2)
    trial = quantize(x, calibrator="percentile:90").trial("samples")
    assert trial.is_needed and not trial.is_kept and "the others gain" in trial.why
    x[3] *= 30.0
    trial = quantize(x).trial("samples")
    assert not trial.is_needed and trial.why == "no sample stands apart"


def test_data_that_is_read_once_keeps_all() -> None:
    """Its samples cannot be observed again."""
    feeds = ({"x": row[None]} for row in samples(40, 100.0, 3))
    trial = onnxfq.quantize(network(), feeds, recipe="tensorrt-int8").trial("samples")
    assert not trial.is_kept and trial.why == "the data cannot be read again"
