"""Which activations are equalized, and which are not."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from builders import build, planned, weights

import onnxfq
from onnxfq.calibration.calibrators.groups import choose_channel_ranges
from onnxfq.documents.encodings import Encoding
from onnxfq.documents.recipe import Recipe
from onnxfq.errors import RecipeError, SpecError
from onnxfq.graph.io.load import load
from onnxfq.numerics.granularity import CHANNELS, PER_TENSOR
from onnxfq.numerics.spec import QuantSpec
from onnxfq.targets.recipes import load_recipe

DEPTHWISE = "d = Conv <group = 4, pads = [1,1,1,1]> (h, w1)"


def network(rest: str = "", shape: str = "N,3,6,6", **more: object) -> onnx.ModelProto:
    """A pointwise convolution, Relu, and a depthwise one that reads `h`; `rest` comes behind."""
    text = f"""g (float[{shape}] x) => (float[a,b,c,d] y) {{
        [first] c = Conv (x, w0)
        [relu] h = Relu (c)
        [depth] {DEPTHWISE}
        {rest or "[last] y = Conv (d, w2)"} }}"""
    constants = {"w0": weights(4, 3, 1, 1), "w1": weights(4, 1, 3, 3), "w2": weights(2, 4, 1, 1)}
    return build(text, constants | more)


def alone(channels: str = "4", outputs: int = 4) -> onnx.ModelProto:
    """A depthwise convolution of the input, whose channels may be open, with one or two outputs of each."""
    text = f"g (float[N,{channels},6,6] h) => (float[] y) {{ {DEPTHWISE.replace('d =', 'y =')} }}"
    return build(text, {"w1": weights(outputs, 1, 3, 3)})


def spec_of(proto: onnx.ModelProto, tensor: str = "h", recipe: str | Recipe = "tensorrt-int8") -> QuantSpec:
    """How `tensor` is planned."""
    return next(p.spec for p in planned(proto, recipe).placements if p.tensor == tensor)


def test_input_of_a_depthwise_convolution() -> None:
    """It has the channels' scales, and says so; other inputs have one scale."""
    plan = planned(network(), "tensorrt-int8")
    equalized = [p for p in plan.placements if p.spec.equalized]
    assert [p.tensor for p in equalized] == ["h"]
    assert "equalized" in equalized[0].why and "equalized" in str(equalized[0].spec)


def test_node_units_take_no_mul() -> None:
    """Where an operator is fused with the pair behind it, no Mul may stand between them."""
    assert not any(p.spec.equalized for p in planned(network(), "onnxruntime-int8").placements)


def test_a_scale_for_each_channel_where_the_target_takes_it() -> None:
    """There no Mul is needed; a tensor that is read as a whole, or of unknown channels, has one scale."""
    spec = spec_of(network(), recipe="openvino-int8")
    assert str(spec) == "uint8 asymmetric per-axis 1" and not spec.equalized
    shared = network("[last] e = Conv (h, w2)\n y = Concat <axis = 1> (d, e)")
    assert spec_of(shared, recipe="openvino-int8").granularity == PER_TENSOR
    for proto in (alone("C"), alone(outputs=8)):
        assert spec_of(proto, recipe="openvino-int8").equalized


def test_channels_that_a_recipe_names() -> None:
    """A recipe may also give depthwise convolutions scales of channels, with a calibrator of its own."""
    named = onnxfq.Override(nodes=("depth",), activations={"granularity": "per_axis", "calibrator": "mse"})
    plan = planned(network(), load_recipe("openvino-int8").override(overrides=(named,)))
    made = next(p for p in plan.placements if p.tensor == "h")
    assert (made.spec.granularity, made.calibrator.name) == (CHANNELS, "mse")


@pytest.mark.parametrize(
    "proto",
    [
        network("[last] e = Conv (h, w2)\n y = Concat <axis = 1> (d, e)"),
        build(
            """g (float[N,4,6,6] h) => (float[a,b,c,d] y) { y = Conv <group = 2> (h, w1) }""",
            {"w1": weights(4, 2, 3, 3)},
        ),
        build(
            """g (float[N,4,6,6] h, float[4,1,3,3] w1) => (float[a,b,c,d] y) {
            y = Conv <group = 4> (h, w1) }"""
        ),
    ],
    ids=["another reader", "two channels a group", "computed weight"],
)
def test_one_scale(proto: onnx.ModelProto) -> None:
    """If a reader adds channels, or the weight cannot take up the factors, there is one scale as ever."""
    assert not spec_of(proto).equalized and spec_of(proto).granularity.axis is None


def test_a_shared_weight() -> None:
    """Each depthwise convolution has its copy of a weight, so that its input may have factors."""
    proto = network("[more] e = Conv <group = 4, pads = [1,1,1,1]> (d, w1)\n [last] y = Conv (e, w2)")
    assert spec_of(proto).equalized
    model = load(proto)
    read = [node.input[1] for node in model.proto.graph.node if node.op_type == "Conv"]
    assert len(set(read)) == len(read)
    assert any("copied 1 time" in note for note in model.notes)


def test_channels_of_the_weight() -> None:
    """The weight tells the number of channels where the input does not, also with several outputs of each."""
    assert spec_of(alone("C")).equalized and spec_of(alone(outputs=8)).equalized


@pytest.mark.parametrize(
    "changes", [{"equalize": "none"}, {"calibrator": "range:-1,1"}, {"granularity": "per_axis"}], ids=str
)
def test_recipes_that_do_not(changes: dict) -> None:
    """`none`, a given range and several scales are not overruled."""
    base = load_recipe("onnxruntime-int8" if "granularity" in changes else "tensorrt-int8")
    made = base.activations.model_copy(
        update={"qtype": QuantSpec(qtype="int8").qtype, "symmetric": True} | changes
    )
    assert not spec_of(network(), recipe=base.model_copy(update={"activations": made})).equalized


def test_weights_with_one_scale() -> None:
    """A weight with one scale for all channels cannot take up their factors."""
    base = load_recipe("tensorrt-int8")
    recipe = base.override(weights={"granularity": "per_tensor"})
    assert not spec_of(network(), recipe=recipe).equalized


def test_override_equalize() -> None:
    """The option changes the recipe, and recipes without one constant scale refuse it."""
    one_scale = load_recipe("tensorrt-int8").override(activations={"equalize": "none"})
    assert not spec_of(network(), recipe=one_scale).equalized
    for name in ("tensorrt-int4", "onnxruntime-uint8-dynamic"):
        with pytest.raises(RecipeError, match="omit --equalize"):
            load_recipe(name).override(activations={"equalize": "depthwise"})


@pytest.mark.parametrize("changes", [{"axis": None}, {"block_size": 2}, {"dynamic": True}], ids=str)
def test_specs_that_make_no_sense(changes: dict) -> None:
    """Equalized channels are static and along one axis."""
    with pytest.raises(SpecError, match="equalized"):
        QuantSpec(**{"qtype": "int8", "axis": 1, "equalized": True} | changes)


def test_depthwise_in_float() -> None:
    """A recipe may leave them in float, by name of the field; its neighbours keep their pairs."""
    recipe = load_recipe("tensorrt-int8").model_copy(update={"depthwise": "float"})
    plan = planned(network(), recipe)
    assert {s.name: s.rule for s in plan.skipped if s.kind == "node"} == {"depth": "depthwise"}
    assert {p.tensor for p in plan.activations} == {"x", "d"}


def by_channel(x: np.ndarray) -> Encoding:
    """The encoding for OpenVINO of `x`, the input of a depthwise convolution with ten samples."""
    model = load(alone())
    plan = onnxfq.make_plan(model, load_recipe("openvino-int8"))
    statistics = onnxfq.collect_statistics(model, plan, [{"h": x}])
    assert statistics.groups == {}  # ranges alone, so that statistics stay small
    changed = onnxfq.calibrate(model, plan, statistics, "mse")["h"]
    made = onnxfq.calibrate(model, plan, statistics)["h"]
    assert changed == made  # no calibrator changes them
    return made


def test_ranges_of_channels_leave_room() -> None:
    """For what twice the samples would give, within the whole tensor; a dead channel has the whole range."""
    x = np.zeros((10, 4, 6, 6), np.float32)
    x[0, 0, 0], x[1, 1, 0], x[2, 2, 0] = 8.0, 1.0, -0.5
    scale, zero_point = (np.asarray(one) for one in (by_channel(x).scale, by_channel(x).zero_point))
    growth = np.sum(1 / np.arange(1, 21)) / np.sum(1 / np.arange(1, 11))
    # Channel 2 has the least number of all, so its range cannot grow.
    np.testing.assert_allclose(scale * 255, [8.0, growth, 0.5, 8.5], rtol=1e-5)
    np.testing.assert_array_equal(zero_point, [0, 0, 255, 15])


@pytest.mark.parametrize("count", [2, 8, 64])
def test_growth_is_that_of_exponential_tails(count: int) -> None:
    """On average the largest of twice as many draws has the chosen range."""
    drawn = np.random.default_rng(count).exponential(size=(40_000, 2 * count))
    observed, later = drawn[:, :count].max(1).mean(), drawn.max(1).mean()
    ranges = np.array([[0, observed], [0, 1e6]], np.float32)
    np.testing.assert_allclose(
        choose_channel_ranges(ranges, count)[1][0], later, rtol=0.01
    )  # of random draws
