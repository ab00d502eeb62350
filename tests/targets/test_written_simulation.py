"""`quantize` for target simulation: the fake-quant model is the file that it writes."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from builders import build, conv_relu, feed_for, linear, plain_quantize, weights

import onnxfq
from onnxfq.documents.recipe import Recipe
from onnxfq.errors import RecipeError
from onnxfq.report.html import render_report
from onnxfq.report.text import quantize_summary

MODES = (
    {},
    {"rounding": "half_away"},
    {"rounding": "half_up", "arithmetic": "reciprocal"},
    {"rounding": "floor"},
)


def run_file(path: Path, feed: dict[str, np.ndarray]) -> np.ndarray:
    """Return the first output of a file in ONNX Runtime with the custom-op library alone."""
    options = onnxruntime.SessionOptions()
    options.register_custom_ops_library(onnxfq.custom_ops_path())
    session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    return session.run(None, feed)[0]


def modes_recipe(qtype: str, modes: dict[str, object]) -> Recipe:
    """Return a simulation recipe of one format that rounds by `modes`."""
    scheme = {"qtype": qtype}
    fields = {"activations": scheme | {"calibrator": "minmax"}, "weights": scheme, "simulation": modes}
    return Recipe.model_validate({"name": "modes", "target": "simulation", **fields})


@pytest.mark.parametrize("recipe", ["mxfp8", "mxfp6", "mxfp4", "mxint8", "nvfp4"])
@pytest.mark.parametrize("proto", [linear(64, 6), conv_relu()], ids=["linear", "conv"])
def test_the_file_is_the_simulation(recipe: str, proto: onnx.ModelProto, tmp_path: Path) -> None:
    """The written file runs, has the bits of the stages' fake-quant model, and all reports show it."""
    feeds = [feed_for(proto, seed) for seed in range(3)]
    chosen = onnxfq.load_recipe(recipe)
    nearest = chosen.weights.model_copy(update={"rounding": "nearest"})
    result = plain_quantize(
        proto, feeds, tmp_path / "m.onnx", recipe=chosen.model_copy(update={"weights": nearest})
    )
    written = onnx.load(tmp_path / "m.onnx")
    onnx.checker.check_model(written)
    assert {node.op_type for node in written.graph.node if node.domain == "onnxfq"} == {"DynamicFakeQuantize"}
    staged = onnxfq.insert_fake_quantize(result.model, result.plan, result.encodings)
    onnx.save(staged, tmp_path / "staged.onnx")
    for feed in feeds:
        y, other = (run_file(tmp_path / name, feed) for name in ("m.onnx", "staged.onnx"))
        assert np.isfinite(y).all() and y.tobytes() == other.tobytes()
    assert [one.candidate for one in result.evaluation.candidates] == ["simulated"]
    assert "simulated" in quantize_summary(result) and recipe in render_report(result)


@pytest.mark.parametrize(
    ("bits", "modes"),
    [
        *((bits, modes) for bits in ("int4", "int8", "float8e4m3fn") for modes in MODES),
        ("float8e4m3fn", {"saturate": False}),  # integers saturate always
    ],
    ids=str,
)
def test_modes_of_rounding(bits: str, modes: dict[str, object], tmp_path: Path) -> None:
    """The file rounds as the recipe says: by its figures, its attributes, and NumPy's arithmetic."""
    proto = linear(64, 6)
    feeds = [feed_for(proto, seed) for seed in range(4)]
    result = plain_quantize(proto, feeds, tmp_path / "m.onnx", recipe=modes_recipe(bits, modes))
    (node,) = [n for n in onnx.load(tmp_path / "m.onnx").graph.node if n.domain == "onnxfq"]
    names = {a.name for a in node.attribute}
    assert set(modes) <= names and not names & ({"rounding", "arithmetic", "saturate"} - set(modes))
    encoding = result.encodings["x"]
    options = {"qtype": bits, **modes}
    x = onnxfq.fake_quantize(feeds[0]["x"], encoding.scale, encoding.zero_point, **options)
    w = result.encodings["w"]
    axis = w.spec.granularity.axis
    values = onnx.numpy_helper.to_array(result.model.proto.graph.initializer[0])
    rounded = onnxfq.fake_quantize(values, w.scale, w.zero_point, axis=axis, **options)
    if result.rounding is not None and result.rounding.tensors:
        assert modes.get("rounding", "half_even").startswith("half_")
        return  # moved by moments
    # Sums of 64 products go in another order.
    np.testing.assert_allclose(run_file(tmp_path / "m.onnx", feeds[0]), x @ rounded, rtol=1e-4, atol=1e-4)


def test_a_half_type_is_refused() -> None:
    """A fake-quant model keeps the float types of the given one: one line says so before anything runs."""
    options = onnxfq.QuantizeOptions(floats=onnxfq.FloatOptions("fp16"))
    with pytest.raises(RecipeError) as caught:
        onnxfq.quantize(linear(64, 6), [feed_for(linear(64, 6))], recipe="nvfp4", options=options)
    assert str(caught.value) == (
        "recipe nvfp4: target simulation is written as a fake-quant model in the float types of the given "
        "one, not in fp16; use fp32, or choose another target"
    )


def test_pairs_round_in_one_way() -> None:
    """A Q/DQ model has none of the modes: the error names the target that has."""
    recipe = modes_recipe("int8", {"rounding": "half_up"}).model_copy(update={"target": "tensorrt"})
    with pytest.raises(RecipeError) as caught:
        onnxfq.quantize(linear(64, 6), [feed_for(linear(64, 6))], recipe=recipe)
    assert str(caught.value) == (
        "recipe modes: simulation.rounding is half_up, and QuantizeLinear has half_even only; remove it, or "
        "use target simulation"
    )


def test_a_promise_holds_for_the_file(tmp_path: Path) -> None:
    """Layers that a promise leaves in float have no node in the fake-quant model."""
    proto = build(
        """g (float[N,64] x) => (float[N,64] y) {
            [one] a = MatMul (x, w) [r] b = Relu (a) [two] y = MatMul (b, v) }""",
        {"w": weights(64, 64), "v": weights(64, 64, seed=1)},
    )
    feeds = [feed_for(proto, seed) for seed in range(8)]
    target = onnxfq.AccuracyTarget(min_sqnr=13.5)
    result = onnxfq.quantize(proto, feeds, tmp_path / "m.onnx", recipe="mxfp4", accuracy=target)
    nodes = [node for node in onnx.load(tmp_path / "m.onnx").graph.node if node.domain == "onnxfq"]
    assert len(nodes) == len(result.plan.activations) + len(result.plan.unobserved) == 1
    assert result.evaluation.candidates[0].outputs[0].sqnr_db >= 13.5


def test_check_says_what_it_is(tmp_path: Path) -> None:
    """TensorRT has none of the operators: one finding for each, with the remedy."""
    proto = linear(64, 6)
    plain_quantize(proto, [feed_for(proto)], tmp_path / "m.onnx", recipe="nvfp4")
    (finding,) = onnxfq.check(tmp_path / "m.onnx").findings
    assert finding.severity == "refused" and "a recipe for TensorRT; both write Q/DQ" in finding.message
