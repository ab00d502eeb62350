"""Concat and poolings between pairs on the real builder, and what it makes of pairs that plans leave out."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from builders import build, conv_transpose, feed_for, planned, weights, with_override
from engines import build_all, needs_builder, see_engines, unmeasured

import onnxfq
from onnxfq.errors import ModelError
from onnxfq.targets.recipes import load_recipe
from onnxfq.targets.target import BuildOptions
from onnxfq.targets.tensorrt.builder.layers import EngineLayer, parse_layers

pytestmark = needs_builder

INT8 = load_recipe("tensorrt-int8")
APART = with_override(op_types=["Concat", "MaxPool"], keep_float=True)
CONSTANTS = {"w": weights(32, 32, 3, 3), "k": weights(32, 32, 1, 1), "k2": weights(32, 64, 1, 1)}
POOL = "MaxPool <kernel_shape = [3,3], pads = [1,1,1,1]>"
INCEPTION = f"""g (float[1,32,16,16] x) => (float[] y) {{
    [c0] a0 = Conv <pads = [1,1,1,1]> (x, w) [r0] a = Relu (a0) [p1] b = {POOL} (a)
    [c1] c0 = Conv (b, k) [r1] c = Relu (c0) [p2] d = {POOL} (b) [c2] e0 = Conv (d, k) [r2] e = Relu (e0)
    [join] f = Concat <axis = 1> (c, e) [c3] y = Conv (f, k2) }}"""


def layers(folder: Path, qdq: onnx.ModelProto) -> tuple[EngineLayer, ...]:
    """Return the layers of the engine for SM89."""
    report = build_all(folder, {"one": qdq})["one"]["SM89"]
    assert report.built, report.errors
    return parse_layers(report.layers)


@pytest.mark.sample
def test_one_scale_spares_layers(tmp_path: Path) -> None:
    """A pooling that feeds another and a convolution runs once with one scale, and twice without it."""
    proto = build(INCEPTION, CONSTANTS)
    found = []
    for recipe in (INT8, APART):
        floats = onnxfq.FloatOptions("fp16")
        made = onnxfq.quantize(
            proto, [feed_for(proto)], recipe=recipe, options=onnxfq.QuantizeOptions(floats=floats)
        )
        assert not made.encodings.unshared
        found.append(layers(tmp_path, made.qdq))
    pools = [[layer.kind for layer in one].count("maxpool") for one in found]
    assert pools == [2, 3] and len(found[0]) < len(found[1])


@pytest.mark.grid
@pytest.mark.parametrize("kind", ["f", "count_include_pad = 1"])
@pytest.mark.parametrize(
    "attributes",
    [
        "kernel_shape = [2,2], strides = [2,2]",
        "kernel_shape = [3,3], pads = [1,1,1,1]",
        "kernel_shape = [3,3], pads = [0,0,1,1]",
        'kernel_shape = [3,3], auto_pad = "SAME_UPPER"',
        "kernel_shape = [3,3], strides = [2,2], ceil_mode = 1",
    ],
)
def test_average_pools(attributes: str, kind: str, tmp_path: Path) -> None:
    """An AveragePool that the policy calls a bridge runs in int8, and it is planned as one only then."""
    attributes += "" if kind == "f" else f", {kind}"
    text = f"""g (float[1,32,16,16] x) => (float[] y) {{
        [c0] a0 = Conv <pads = [1,1,1,1]> (x, w) [r0] a = Relu (a0) [pool] b = AveragePool <{attributes}> (a)
        [c1] y = Conv (b, k) }}"""
    proto = build(text, CONSTANTS)
    engine = layers(tmp_path, unmeasured(proto, INT8, "fp16"))
    (pool,) = (layer for layer in engine if "pool" in layer.nodes)
    assert pool.inputs[0].is_low == bool(planned(proto).bridges)


def test_float8(tmp_path: Path) -> None:
    """A pooling runs in half in a float8 engine, with pairs around it too: it gets none; a Concat does."""
    proto = build(INCEPTION, CONSTANTS)
    recipe = load_recipe("tensorrt-fp8").override(small_shapes="quantize")
    assert [bridge.node for bridge in planned(proto, recipe).bridges] == ["join"]
    pairs = unmeasured(proto, recipe, "fp16")
    pool = next(node for node in pairs.graph.node if node.name == "p2")
    maker = next(node for node in pairs.graph.node if node.name == "b/dq")
    pool.input[0] = maker.output[0]
    for qdq in (unmeasured(proto, recipe, "fp16"), pairs):
        pools = [layer for layer in layers(tmp_path, qdq) if layer.kind == "maxpool"]
        assert pools and not any(layer.inputs[0].is_low for layer in pools)


def test_conv_transpose(tmp_path: Path) -> None:
    """With pairs as without them a ConvTranspose runs in float, so that the default recipe gives it none."""
    with pytest.raises(ModelError, match="runs every ConvTranspose in float.*conv_transpose: quantize"):
        planned(conv_transpose(), load_recipe("tensorrt-int8"))
    recipe = load_recipe("tensorrt-int8").model_copy(update={"conv_transpose": "quantize"})
    proto = unmeasured(conv_transpose(), recipe)
    assert all(seen == {"up": "ConvTranspose float as low"} for seen in see_engines(tmp_path, proto))


def test_neighbours_of_float_depthwise(tmp_path: Path) -> None:
    """With depthwise convolutions in float the others still run in int8."""
    proto = build(
        """g (float[N,16,9,9] x) => (float[] y) {
            [one] a = Conv (x, w1) [deep] b = Conv <group = 32> (a, w2) [two] y = Conv (b, w3) }""",
        {"w1": weights(32, 16, 1, 1), "w2": weights(32, 1, 3, 3), "w3": weights(32, 32, 1, 1)},
    )
    recipe = load_recipe("tensorrt-int8").model_copy(update={"depthwise": "float"})
    proto = unmeasured(proto, recipe, "fp16")
    for seen in see_engines(tmp_path, proto):
        assert seen == {"one": "Conv low as low", "two": "Conv low as low"}


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
