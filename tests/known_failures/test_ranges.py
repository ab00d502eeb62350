"""Faults of other quantizers about ranges: their dependences, and values that are not numbers."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from builders import Arrays, build, constants, linear, square, weights
from numpy.typing import NDArray
from onnxruntime.quantization import CalibrationMethod
from ort_quantizer import MEASURED, by_ort

from onnxfq.choices import DEFAULT_RECIPE
from onnxfq.documents.cast_plan import FloatOptions
from onnxfq.errors import DataError
from onnxfq.judging.accuracy_target import AccuracyTarget
from onnxfq.quantizing.pipeline import QuantizeResult, quantize
from onnxfq.stages.options import QuantizeOptions, RunOptions
from onnxfq.targets.recipes import load_recipe

METHODS = ["minmax", "percentile", "entropy", "mse"]
ONE_BY_ONE = RunOptions(batch=1)
pytestmark = pytest.mark.filterwarnings("ignore")  # ONNX Runtime's quantizer is not under test


def feeds_of(samples: NDArray[np.float32], size: int = 1) -> list[Arrays]:
    """Return `samples` in feeds of `size`."""
    return [{"x": samples[at : at + size]} for at in range(0, len(samples), size)]


def calibrated(proto: onnx.ModelProto, data: object, method: str, **more: Any) -> QuantizeResult:
    """Quantize with a method for the ranges of activations."""
    recipe = load_recipe(DEFAULT_RECIPE).override(activations={"calibrator": method})
    return quantize(proto, data, recipe=recipe, **more)


def scale(result: QuantizeResult) -> float:
    """The scale of the input."""
    return float(result.encodings["x"].scale)


def scale_by_ort(feeds: list[Arrays], folder: Path, method: str = "MinMax", **options: object) -> float:
    """The scale that ONNX Runtime gives the input of a product, symmetric."""
    how = {"calibrate_method": CalibrationMethod[method]}
    how["extra_options"] = {"ActivationSymmetric": True, **options}
    return float(constants(by_ort(linear(feeds[0]["x"].shape[-1], 4), feeds, folder, **how))["x_scale"])


def outlier() -> NDArray[np.float32]:
    """64 samples of normal values, one of which is 40."""
    values = np.random.default_rng(0).standard_normal((64, 1000)).astype(np.float32)
    values[40, 500] = 40
    return values


def test_entropy_looks_for_a_range(tmp_path: Path) -> None:
    """ONNX Runtime 1.31.1 puts all data in 128 bins for 128 steps: its entropy is minmax, outlier and all."""
    plain = AccuracyTarget(repair=None)  # remedies would leave the outlier out
    entropy, widest = (
        scale(calibrated(linear(1000, 4), {"x": outlier()}, method, accuracy=plain))
        for method in ("entropy", "minmax")
    )
    assert entropy < widest / 5
    if MEASURED:
        theirs = [scale_by_ort(feeds_of(outlier()), tmp_path, method) for method in ("Entropy", "MinMax")]
        assert theirs[0] == pytest.approx(theirs[1])


@pytest.mark.parametrize("method", METHODS)
def test_samples_of_different_shapes(method: str) -> None:
    """ONNX Runtime's histograms raise ValueError when two samples differ in shape.

    https://github.com/microsoft/onnxruntime/issues/18792, https://github.com/microsoft/onnxruntime/pull/32514
    """
    rows, options = weights(9, 4), RunOptions(batch=0)
    apart, whole = (
        scale(calibrated(linear(4, 4), [{"x": part} for part in parts], method, options=options))
        for parts in ((rows[:2], rows[2:]), (rows,))
    )
    assert apart == whole


@pytest.mark.parametrize("method", METHODS)
def test_a_tensor_that_one_sample_makes_empty(method: str, tmp_path: Path) -> None:
    """ONNX Runtime's histograms raise ValueError when a tensor is empty for one of the samples (1.31.1)."""
    proto = build(
        "g (float[8,4] x, int64[M] i) => (float[K,4] y) { h = Gather <axis = 0> (x, i) y = MatMul (h, w) }",
        {"w": weights(4, 4)},
    )
    rows = weights(8, 4)
    feeds = [{"x": rows, "i": np.int64(chosen)} for chosen in ([0, 5], [])]
    options = RunOptions(batch=0)
    both, first = (calibrated(proto, given, method, options=options) for given in (feeds, feeds[:1]))
    np.testing.assert_array_equal(both.encodings["h"].scale, first.encodings["h"].scale)
    if MEASURED and method == "entropy":
        with pytest.raises(ValueError, match="inhomogeneous shape"):
            by_ort(proto, feeds, tmp_path, calibrate_method=CalibrationMethod.Entropy)


@pytest.mark.parametrize("value", [np.inf, -np.inf, np.nan])
def test_what_is_not_finite_is_named(value: float, tmp_path: Path) -> None:
    """ONNX Runtime writes infinite scales and leaves NaN out, silently; ModelOpt names no tensor or sample.

    Measured with 1.31.1 and 0.47.0; https://github.com/NVIDIA/TensorRT/issues/2628 ends in NaN scales.
    """
    samples = weights(6, 4)
    samples[4, 1] = value
    with pytest.raises(DataError, match=r"x.*(sample|feed) 4"):
        quantize(linear(4, 4), {"x": samples}, tmp_path / "q.onnx", options=ONE_BY_ONE)
    assert not list(tmp_path.iterdir())
    if MEASURED:
        assert np.isfinite(scale_by_ort(feeds_of(samples), tmp_path)) == np.isnan(value)


def test_all_samples_count_for_the_type(tmp_path: Path) -> None:
    """ModelOpt's casts look at one sample: https://github.com/NVIDIA/Model-Optimizer/issues/2337."""
    arrays = {"w": np.eye(4, dtype=np.float32), "big": np.float32(1000)}
    proto = square("h = MatMul (x, w) [far] b = Mul (h, big) y = MatMul (b, w)", arrays)
    rows = np.ones((3, 4), np.float32)
    rows[2] = 90  # 90,000 behind Mul, beyond float16
    options = replace(QuantizeOptions.of(ONE_BY_ONE), floats=FloatOptions(name="fp16"))
    for samples, stays in ((rows[:2], False), (rows, True)):
        found = quantize(proto, {"x": samples}, options=options)
        assert found.floats is not None
        assert ("far" in {node.name for node in found.floats.nodes}) == stays


def test_no_data_is_no_random_data() -> None:
    """ModelOpt 0.47.0 calibrates on random numbers when it gets no data, and says so at INFO level only."""
    with pytest.raises(DataError, match="needs data to observe 1 activations"):
        quantize(linear(4, 4), None)
