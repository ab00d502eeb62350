"""Operators that plans leave in float by default: what TensorRT for RTX makes of their pairs."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from builders import build, conv_transpose, planned, weights
from engines import build_all, unmeasured, verdicts

import onnxfq
from onnxfq.errors import ModelError
from onnxfq.targets.reading.context import read
from onnxfq.targets.recipes import load_recipe
from onnxfq.targets.target import BuildOptions
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


@pytest.mark.parametrize("target", ["tensorrt", "onnxruntime", "openvino", "qnn"])
def test_what_constants_alone_compute_stays_in_float(target: str) -> None:
    """A runtime computes learned queries and their projection once: no engine keeps a promise of them."""
    constants = {"queries": weights(1, 8), "shape": np.asarray([2, 8]), "rank": np.asarray([2])}
    proto = build(
        "g (float[2,8] x) => (float[2,8] y) { o = ConstantOfShape <value = int64[1] {1}> (rank) "
        "s = Mul (shape, o) q = Expand (queries, s) [once] a = MatMul (q, w) [each] b = MatMul (x, v) "
        "y = Add (a, b) }",
        constants | {"w": weights(8, 8), "v": weights(8, 8)},
    )
    feeds = [{"x": weights(2, 8, seed=seed)} for seed in range(4)]
    result = onnxfq.quantize(proto, feeds, recipe=f"{target}-int8")
    assert [one.why for one in result.plan.skipped if one.name == "once"] == ["computed from constants, once"]
    assert any(use.node == "each" for placed in result.plan.placements for use in placed.uses)
    if target != "qnn":
        engine = onnxfq.check(result.qdq, target, build=BuildOptions()).engine
        assert {(one.node, one.verdict) for one in engine if one.op_type == "MatMul"} == {("each", "low")}
