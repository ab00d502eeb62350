"""A target from outside: its own policy, operators that the others do not place, and int32 biases."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import onnx
import pytest
from builders import build, constants, feed_for, weights
from onnxruntime.quantization import QuantFormat, QuantType, quantize_static
from ort_quantizer import Reader

import onnxfq
from onnxfq.errors import RecipeError
from onnxfq.runtime.session import Session
from onnxfq.targets import Slots, Target, TargetPolicy, register_target
from onnxfq.targets.recipes import RECIPES
from onnxfq.targets.target import TARGETS

RECIPE = onnxfq.Recipe.model_validate(
    {
        "name": "toy-int8",
        "target": "toy",
        "activations": {"qtype": "uint8", "symmetric": False, "calibrator": "minmax"},
        "weights": {"qtype": "int8[-127,127]", "granularity": "per_axis"},  # onnxruntime's grid
    }
)
PLACED = {
    "Conv": Slots(outputs=(0,)),
    "GlobalAveragePool": Slots(inputs=(0,), outputs=(0,)),
    "Softmax": Slots(outputs=(0,)),
}
TOY = Target("toy", TargetPolicy(operators=PLACED, bias_qtype="int32"), recipes=(RECIPE,))


@pytest.fixture(autouse=True)
def registered() -> Iterator[None]:
    """Register the target for one test."""
    register_target(TOY)
    yield
    del TARGETS["toy"], RECIPES["toy-int8"]


def network() -> onnx.ModelProto:
    """A convolution with bias, a pool, a product with bias, and a Softmax that is the output."""
    return build(
        """g (float[N,3,8,8] x) => (float[N,5] y) {
            [conv] c = Conv (x, w, b) [pool] p = GlobalAveragePool (c) [flat] f = Flatten (p)
            [gemm] l = Gemm (f, v, d) [soft] y = Softmax <axis = -1> (l) }""",
        {"w": weights(4, 3, 3, 3), "b": weights(4), "v": weights(4, 5), "d": weights(5)},
    )


def dequantized(proto: onnx.ModelProto, op: str, slot: int) -> tuple[np.ndarray, np.ndarray]:
    """Return (integers, scale) of the constant that input `slot` of the first `op` reads."""
    makers = {name: node for node in proto.graph.node for name in node.output}
    node = next(node for node in proto.graph.node if node.op_type == op)
    values, found = constants(proto), makers[node.input[slot]]
    return values[found.input[0]], values[found.input[1]]


def test_numbers_of_onnxruntimes_quantizer(tmp_path: Path) -> None:
    """Bias integers and scales, and the outputs of the model, equal onnxruntime.quantization's."""
    proto = network()
    feeds = [feed_for(proto, seed) for seed in range(3)]
    ours = onnxfq.quantize(proto, feeds, recipe=RECIPE)
    onnx.save(proto, tmp_path / "float.onnx")
    quantize_static(
        tmp_path / "float.onnx",
        tmp_path / "theirs.onnx",
        Reader(feeds),
        quant_format=QuantFormat.QDQ,
        per_channel=True,
        activation_type=QuantType.QUInt8,
        weight_type=QuantType.QInt8,
        op_types_to_quantize=["Conv", "GlobalAveragePool", "Gemm", "Softmax"],
        extra_options={"WeightSymmetric": True},
    )
    theirs = onnx.load(tmp_path / "theirs.onnx")
    integers, scale = dequantized(ours.qdq, "Conv", 2)
    wanted, of_theirs = dequantized(theirs, "Conv", 2)
    assert integers.dtype == wanted.dtype == np.int32
    np.testing.assert_allclose(scale, of_theirs, rtol=1e-6)  # theirs divides in another order
    np.testing.assert_allclose(integers, wanted, atol=1)
    got, base = (Session(one, 1, exact=True).run(feeds[0])[0] for one in (ours.qdq, theirs))
    np.testing.assert_allclose(got, base, atol=2 / 255)


def test_every_slot_by_numpy() -> None:
    """The scale of a bias is its products' scale, its integers are the quotients; outputs are on a grid."""
    proto = network()
    feeds = [feed_for(proto, seed) for seed in range(3)]
    model = onnxfq.load(proto)
    plan = onnxfq.make_plan(model, onnxfq.load_recipe("toy-int8"))
    assert {(p.tensor, p.role) for p in plan.placements} == {
        *((name, "activation") for name in ("x", "c", "p", "f", "y")),
        *((name, "weight") for name in "wv"),
        *((name, "bias") for name in "bd"),
    }
    statistics = onnxfq.collect_statistics(model, plan, feeds)
    encodings = onnxfq.calibrate(model, plan, statistics)
    written = onnxfq.insert_qdq(model, plan, encodings)
    onnx.checker.check_model(written, full_check=True)
    for op, operands, bias in (("Conv", "xw", "b"), ("Gemm", "fv", "d")):
        product = np.multiply(*(encodings[name].scale for name in operands))
        integers, scale = dequantized(written, op, 2)
        np.testing.assert_array_equal(scale, product)
        np.testing.assert_array_equal(integers, np.rint(constants(proto)[bias] / product))
    got = Session(written, 1, exact=True).run(feeds[0])[0]
    steps = got / encodings["y"].scale
    np.testing.assert_allclose(steps, np.rint(steps), atol=1e-4)
    simulated = onnxfq.insert_fake_quantize(model, plan, encodings)
    np.testing.assert_array_equal(Session(simulated, 1, exact=True).run(feeds[0])[0], got)
    assert [value.name for value in written.graph.output] == ["y"]


def test_biases_that_stay_float() -> None:
    """A bias that an override keeps, or that two nodes read, has no integers; the reason is in the plan."""
    proto = build(
        """g (float[N,4] x) => (float[N,4] y) {
            [one] h = Gemm (x, w, b) [two] i = Gemm (h, w, b) [three] y = Gemm (i, w, d) }""",
        {"w": weights(4, 4), "b": weights(4), "d": weights(4)},
    )
    kept = RECIPE.model_copy(update={"overrides": (onnxfq.Override(tensors=("d",), keep_float=True),)})
    plan = onnxfq.make_plan(onnxfq.load(proto), kept)
    assert not plan.biases
    assert {s.name for s in plan.skipped if s.why == "bias: added in float"} == {"b", "d"}


def test_unknown_and_taken_names() -> None:
    """A name that nothing has is refused with the nearest, one that another has too."""
    unknown = RECIPE.model_copy(update={"target": "tpy"})
    with pytest.raises(RecipeError, match="unknown target 'tpy': .*; nearest: toy"):
        onnxfq.make_plan(onnxfq.load(network()), unknown)
    with pytest.raises(RecipeError, match="another target is called 'toy'"):
        register_target(Target("toy"))
    register_target(TOY)  # the same record again changes nothing
