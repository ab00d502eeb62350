"""Front ends of networks for sound: what makes a spectrum whose logarithm is taken stays in float."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from builders import build, plain_quantize, weights

from onnxfq.documents.recipe import Recipe
from onnxfq.graph.io.load import load
from onnxfq.judging.accuracy_target import AccuracyTarget
from onnxfq.quantizing.pipeline import quantize
from onnxfq.stages.observe import collect_statistics
from onnxfq.stages.plan import make_plan, observation_plan
from onnxfq.targets.recipes import RECIPES, load_recipe

SPECTRUM = """
    [re] a = MatMul (x, cos) [im] b = MatMul (x, sin) aa = Mul (a, a) bb = Mul (b, b) p = Add (aa, bb)
    [mel] m = MatMul (p, bank) f = Add (m, least) l = Log (f) [net] y = MatMul (l, w)
"""
BASES = {"cos": weights(32, 16), "sin": weights(32, 16, seed=1), "bank": np.abs(weights(16, 8))}
CONSTANTS = BASES | {"w": weights(8, 4), "least": np.array(1e-9, np.float32)}


def spectrum(body: str = SPECTRUM, **more: np.ndarray) -> onnx.ModelProto:
    """A model of frames of 32 samples."""
    return build(f"g (float[N,32] x) => (float[N,4] y) {{ {body} }}", CONSTANTS | more)


def tones(count: int) -> np.ndarray:
    """Frames of quiet noise, with a tone in every eighth."""
    frames = 1e-4 * np.random.default_rng(0).standard_normal((count, 32)).astype(np.float32)
    frames[::8] += np.sin(np.arange(32, dtype=np.float32))
    return frames


def in_float(proto: onnx.ModelProto, recipe: Recipe = RECIPES["tensorrt-int8"]) -> list[str]:
    """The products that the rule leaves in float."""
    plan = make_plan(load(proto), recipe)
    return [s.name for s in plan.skipped if s.kind == "node" and "a log spectrum" in s.why]


@pytest.mark.parametrize("name", ["tensorrt-int8", "onnxruntime-int8", "onnxruntime-uint8-dynamic"])
def test_the_products_of_a_spectrum_stay_in_float(name: str) -> None:
    """All up to the logarithm, and nothing behind it; the recipe may say otherwise."""
    recipe = load_recipe(name)
    assert in_float(spectrum(), recipe) == ["re", "im", "mel"]
    assert not in_float(spectrum(), recipe.model_copy(update={"log_spectra": "quantize"}))


@pytest.mark.parametrize("recipe", ["qnn-int8", "qnn-a16w8"])
def test_operators_of_a_spectrum_stay_in_float(recipe: str) -> None:
    """QNN's recipes have no pair in front of the logarithm, and one behind it."""
    plan = make_plan(load(spectrum()), load_recipe(recipe))
    assert {one.tensor for one in plan.placements} == {"l", "w", "y"}
    left = {s.op_type for s in plan.skipped if s.kind == "node" and "a log spectrum" in s.why}
    assert left == {"MatMul", "Mul", "Add", "Log"}
    rng = np.random.default_rng(0)
    frames = np.sin(np.arange(32)) * 10.0 ** rng.uniform(-4, 0, (64, 1)) + 1e-4 * rng.normal(size=(64, 32))
    db = {}
    for words in ("float", "quantize"):
        chosen = load_recipe(recipe).model_copy(update={"log_spectra": words})
        made = plain_quantize(spectrum(), {"x": frames.astype(np.float32)}, recipe=chosen)
        db[words] = made.evaluation.lowest_db
    assert db["float"] > db["quantize"] + 6


@pytest.mark.parametrize(
    ("body", "found"),
    [
        ("[re] a = MatMul (x, cos) b = Abs (a) c = Add (b, least) l = Log (c)", ["re"]),
        ("[re] a = MatMul (x, cos) b = Pow (a, two) s = Sqrt (b) c = Max (least, s) l = Log (c)", ["re"]),
        ("[re] a = MatMul (x, cos) b = Mul (a, a) s = Sqrt (b) c = Mul (s, s) l = Log (c)", ["re"]),
        ("[re] a = MatMul (x, cos) l = Log (a)", ["re"]),
        ("[re] a = MatMul (x, cos) t = Sin (two) u = Mul (a, t) b = Mul (u, u) l = Log (b)", ["re"]),
        # No spectra: the square of a function that is not linear, or the logarithm of a probability.
        ("[re] a = MatMul (x, cos) r = Relu (a) b = Mul (r, r) l = Log (b)", []),
        ("[re] a = MatMul (x, cos) b = Softmax (a) l = Log (b)", []),
        ("[re] a = MatMul (x, cos) e = Exp (a) c = Add (e, least) l = Log (c)", []),
        ("[re] a = MatMul (x, cos) s = Sigmoid (x) z = MatMul (s, sin) b = Mul (a, z) l = Log (b)", []),
        ("[re] a = MatMul (x, cos) l = Mul (a, a)", []),
    ],
)
def test_what_is_a_spectrum(body: str, found: list[str]) -> None:
    """Squares and magnitudes of what is linear in an input, sums of them, and a logarithm."""
    last = "[bank] m = MatMul (l, bank) [net] y = MatMul (m, w)"
    assert in_float(spectrum(f"{body} {last}", two=np.array(2, np.float32))) == found


def test_a_spectrum_in_a_body() -> None:
    """Bodies read inputs of the model from outside."""
    steps = "[re] a = MatMul (x, cos) b = Mul (a, a) [mel] m = MatMul (b, bank) l = Log (m)"
    branch = f"g () => (float[N,8] l) {{ {steps} }}"
    other = "h () => (float[N,8] l2) { [plain] l2 = MatMul (x, first) }"
    proto = build(
        "g (float[N,32] x, bool c) => (float[N,4] y) { l0 = If (c) "
        f"<then_branch: graph = {branch}, else_branch: graph = {other}> [net] y = MatMul (l0, w) }}",
        CONSTANTS | {"first": weights(32, 8)},
    )
    assert in_float(proto) == ["re", "mel"]


def test_token_numbers_are_no_signal() -> None:
    """An embedding is looked up, not linear in the numbers."""
    proto = build(
        """g (int64[N,4] x) => (float[N,4,4] y) {
            e = Gather (table, x) [re] a = MatMul (e, first) b = Mul (a, a) l = Log (b)
            [net] y = MatMul (l, w) }""",
        {"table": weights(16, 8), "first": weights(8, 8), "w": weights(8, 4)},
    )
    assert in_float(proto) == []


def test_formats_that_keep_small_powers() -> None:
    """Float8 has digits for small numbers, 16 bits have steps, and weights alone are not the signal."""
    proto = spectrum()
    sixteen = load_recipe("onnxruntime-int8").override(activations={"qtype": "uint16"})
    for recipe in (load_recipe("tensorrt-fp8"), load_recipe("tensorrt-int8-weights"), sixteen):
        assert in_float(proto, recipe) == []


def test_the_logarithm_is_that_of_the_float_model(tmp_path: Path) -> None:
    """For a tone above quiet noise, to the bit; in int8 the noise is gone."""
    proto = spectrum()
    proto.graph.output.append(onnx.helper.make_tensor_value_info("l", onnx.TensorProto.FLOAT, ["N", 8]))
    frames, usual = tones(64), load_recipe("tensorrt-int8")
    logs = []
    for recipe in (usual, usual.model_copy(update={"log_spectra": "quantize"})):
        quantize(proto, {"x": frames}, tmp_path / "q.onnx", recipe=recipe)
        models = (proto.SerializeToString(), str(tmp_path / "q.onnx"))
        sessions = [onnxruntime.InferenceSession(m, providers=["CPUExecutionProvider"]) for m in models]
        exact, found = (session.run(["l"], {"x": frames})[0] for session in sessions)
        logs.append((exact, found))
    np.testing.assert_array_equal(*logs[0])
    assert np.abs(logs[1][0] - logs[1][1]).mean() > 1


def test_repair_does_not_find_it() -> None:
    """The rule may go when this fails: a search that restores the logarithm is more general than a rule."""
    frames, usual = tones(96), load_recipe("tensorrt-int8")
    by_rule, by_search = (
        quantize(spectrum(), {"x": frames}, recipe=recipe, accuracy=AccuracyTarget(repair="thorough"))
        for recipe in (usual, usual.model_copy(update={"log_spectra": "quantize"}))
    )
    assert by_search.evaluation.lowest_db < by_rule.evaluation.lowest_db - 6


def test_statistics_serve_recipes_that_quantize_it() -> None:
    """Statistics gathered without a plan hold for float8 as well."""
    model = load(spectrum())
    statistics = collect_statistics(model, observation_plan(model), [{"x": weights(8, 32)}])
    recipe = load_recipe("tensorrt-fp8").override(small_shapes="quantize")
    wanted = make_plan(model, recipe).activations
    assert {"x", "p"} <= {placement.tensor for placement in wanted}
    assert all(placement.tensor in statistics for placement in wanted)
