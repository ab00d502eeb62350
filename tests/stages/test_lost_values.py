"""Warnings of activations whose range loses the typical values: by name, in the log and in the report."""

from __future__ import annotations

import logging

import numpy as np
import pytest
from builders import build, conv_relu, feed_for, whole_recipe

import onnxfq
from onnxfq.choices import DEFAULT_RECIPE
from onnxfq.report.html import render_report
from onnxfq.stages.zeroed_values import find_zeroed_values, middle_sqnr_db


def feeds(largest: float) -> list[dict[str, np.ndarray]]:
    """Feeds of normal values, with a share of 5% near `largest`, which no range may cut."""
    made = [feed_for(conv_relu(), seed) for seed in range(2)]
    for feed in made:
        flat = feed["x"].reshape(-1)
        flat[::20] = largest
    return made


@pytest.mark.parametrize("calibrator", ["best_error", "minmax"])
def test_lost_values_are_named(calibrator: str, caplog: pytest.LogCaptureFixture) -> None:
    """No method keeps the middle half: the tensor, its figure and the remedy stand in log and report."""
    with caplog.at_level(logging.WARNING):
        result = onnxfq.quantize(
            conv_relu(),
            feeds(4000.0),
            recipe=onnxfq.load_recipe(DEFAULT_RECIPE).override(activations={"calibrator": calibrator}),
        )
    told = [record.getMessage() for record in caplog.records if "typical values" in record.getMessage()]
    assert len(told) == 1 and "'x' 0.0 dB" in told[0] and "leave them in float" in told[0]
    lost = find_zeroed_values(result.model, result.plan, result.statistics, result.encodings)
    assert list(lost) == ["x"] and lost["x"] == pytest.approx(0.0, abs=0.1)
    assert "Lost typical values" in render_report(result)


@pytest.mark.parametrize(("largest", "recipe"), [(4.0, "tensorrt-int8"), (4000.0, "tensorrt-fp8")])
def test_kept_values_are_not_named(largest: float, recipe: str, caplog: pytest.LogCaptureFixture) -> None:
    """Values that the grid reaches give no warning, and no line in the report; float8 has small ones too."""
    with caplog.at_level(logging.WARNING):
        result = onnxfq.quantize(conv_relu(), feeds(largest), recipe=whole_recipe(recipe))
    assert "typical values" not in caplog.text
    assert "Lost typical values" not in render_report(result)


def test_probabilities_lose_nothing(caplog: pytest.LogCaptureFixture) -> None:
    """Most probabilities of a peaked attention become 0 at no cost, and neither log nor report says so."""
    proto = build(
        """g (float[N,64,16] x) => (float[N,64,16] y) {
            t = Transpose <perm = [0, 2, 1]> (x) s = MatMul (x, t) p = Softmax (s) y = MatMul (p, x) }"""
    )
    x = np.random.default_rng(0).normal(size=(8, 64, 16)).astype(np.float32) * 2
    result = onnxfq.quantize(proto, {"x": x})
    (placement,) = [one for one in result.plan.activations if one.tensor == "p"]
    named = onnxfq.load(
        build("g (float[N,64,64] s) => (float[N,64,64] p) { p = Sigmoid (s) }")
    )  # the same ranges, of another operator
    made = (placement, result.statistics, result.encodings)
    assert (middle_sqnr_db(named, *made) or 0) < 1 and middle_sqnr_db(result.model, *made) is None
    assert find_zeroed_values(result.model, result.plan, *made[1:]) == {}
    assert "typical values" not in caplog.text and "Lost typical values" not in render_report(result)
