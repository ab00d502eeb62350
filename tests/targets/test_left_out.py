"""Operators that plans leave in float by default: what TensorRT for RTX makes of their pairs."""

from __future__ import annotations

from pathlib import Path

import pytest
from builders import build, conv_transpose, planned, weights
from engines import build_all, unmeasured, verdicts

from onnxfq.errors import ModelError
from onnxfq.targets.reading.context import read
from onnxfq.targets.recipes import load_recipe
from onnxfq.targets.tensorrt.builder.jobs import builder_installed
from onnxfq.targets.tensorrt.rules.structure import EXTRA

pytestmark = pytest.mark.skipif(not builder_installed(), reason="TensorRT for RTX is not installed")


def test_conv_transpose(tmp_path: Path) -> None:
    """With pairs as without them a ConvTranspose runs in float, so that the default recipe gives it none."""
    with pytest.raises(ModelError, match="runs every ConvTranspose in float.*conv_transpose: quantize"):
        planned(conv_transpose(), load_recipe("tensorrt-int8"))
    recipe = load_recipe("tensorrt-int8").model_copy(update={"conv_transpose": "quantize"})
    proto = unmeasured(conv_transpose(), recipe)
    for report in build_all(tmp_path, {"one": proto})["one"].values():
        assert verdicts(read(proto, EXTRA), report) == {"up": "ConvTranspose float as low"}


def test_neighbours_of_float_depthwise(tmp_path: Path) -> None:
    """With depthwise convolutions in float the others still run in int8."""
    proto = build(
        """g (float[N,16,9,9] x) => (float[] y) {
            [one] a = Conv (x, w1) [deep] b = Conv <group = 32> (a, w2) [two] y = Conv (b, w3) }""",
        {"w1": weights(32, 16, 1, 1), "w2": weights(32, 1, 3, 3), "w3": weights(32, 32, 1, 1)},
    )
    recipe = load_recipe("tensorrt-int8").model_copy(update={"depthwise": "float"})
    proto = unmeasured(proto, recipe, "fp16")
    for report in build_all(tmp_path, {"one": proto})["one"].values():
        assert verdicts(read(proto, EXTRA), report) == {"one": "Conv low as low", "two": "Conv low as low"}
