"""Rounding `auto`: nearest weights, unless measured outputs tell that weights make the noise."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from builders import BUILDERS, build, feed_for, plain_quantize, stage, weights, whole_recipe

from onnxfq import FloatOptions, Recipe, evaluate, insert_fake_quantize, quantize
from onnxfq.data import Feed, sample_digest
from onnxfq.data.options import DataOptions
from onnxfq.documents.rounding import AUTO, NEAREST
from onnxfq.judging import combinations, work
from onnxfq.judging.accuracy_target import AccuracyTarget
from onnxfq.judging.judge import Gain, Judge
from onnxfq.passes.insert_fake_quantize import ENABLED_INPUT, switch_activations
from onnxfq.remedies import rounding_search
from onnxfq.runtime.session import Session
from onnxfq.stages.options import QuantizeOptions, RunOptions
from onnxfq.targets.recipes import RECIPES


def layers() -> onnx.ModelProto:
    """Two products with 4-bit weights in the recipes below, and activations that follow few directions."""
    return build(
        """g (float[N,48] x) => (float[N,6] y, float[N,48] z) {
            [mm1] z = MatMul (x, w1)
            [relu] r = Relu (z)
            [mm2] y = MatMul (r, w2) }""",
        {"w1": weights(48, 48), "w2": weights(48, 6, seed=1)},
    )


def feeds(count: int = 48) -> list[Feed]:
    """Inputs of rank 6, to which the errors of weights add up."""
    rng = np.random.default_rng(0)
    mixing = rng.normal(size=(6, 48)) + 0.5
    return [{"x": (rng.normal(size=(2, 6)) @ mixing + 1.0).astype(np.float32)} for _ in range(count)]


def recipe(bits: int, **weight_fields: object) -> Recipe:
    """Int8 activations, and weights of `bits` bits for ONNX Runtime."""
    return Recipe.model_validate(
        {
            "name": f"w{bits}a8",
            "target": "onnxruntime",
            "activations": {"qtype": "int8", "calibrator": "minmax"},
            "weights": {"qtype": f"int{bits}"} | weight_fields,
        }
    )


@pytest.mark.grid
@pytest.mark.parametrize("model", sorted(set(BUILDERS) - {"attention", "same_tensor_twice"}))
@pytest.mark.parametrize("kind", ["tensorrt-int8", "mxint8"])
def test_a_switch_changes_no_bit_and_leaves_weights_quantized(model: str, kind: str) -> None:
    """On: the bits of the simulation. Off: the figures of a simulation of the weights alone."""
    staged = stage(BUILDERS[model](), kind)
    simulation = insert_fake_quantize(staged.model, staged.plan, staged.encodings)
    switched = switch_activations(simulation)
    if all(placement.role == "weight" for placement in staged.plan.placements):
        assert switched is None
        return
    part = staged.plan.model_copy(update={"placements": staged.plan.weights, "bridges": ()})
    alone = insert_fake_quantize(staged.model, part, staged.encodings)
    session = Session(switched, 1, exact=True)
    off = {ENABLED_INPUT: np.asarray(False)}
    for proto, given in ((simulation, {}), (alone, off)):
        expected = Session(proto, 1, exact=True).run(staged.feed)
        found = session.run({**staged.feed, **given})
        assert all(a.tobytes() == b.tobytes() for a, b in zip(expected, found, strict=True))


def test_the_share_is_that_of_two_evaluations() -> None:
    """Noise of weights alone over the whole noise, on two feeds."""
    data, options = [{"x": feed["x"][:1]} for feed in feeds(2)], RunOptions(exact=True)
    result = plain_quantize(layers(), data, recipe=recipe(4, rounding="nearest"), options=options)
    part = result.plan.model_copy(update={"placements": result.plan.weights})
    alone = insert_fake_quantize(result.model, part, result.encodings)
    models = {"all": result.simulation, "weights": alone}
    whole, weights_alone, *_ = evaluate(layers(), models, data, options=options).candidates
    pairs = zip(whole.outputs, weights_alone.outputs, strict=True)
    shares = {one.output: 10 ** ((one.sqnr_db - other.sqnr_db) / 10) for one, other in pairs}
    found = result.evaluation.candidates[0].weight_shares
    assert found == pytest.approx(shares, rel=1e-9)  # dB are logarithms


@pytest.mark.sample
def test_weights_that_make_the_noise_are_rounded(tmp_path: Path) -> None:
    """Feeds that gave no moments confirm the gain, and so do feeds that `quantize` has not seen."""
    result = quantize(layers(), feeds(), tmp_path / "auto.onnx", recipe=recipe(4))
    trial = result.trial("rounding")
    assert trial.is_kept and trial.after > trial.before + 3
    assert result.recipe.weights.rounding == result.encodings.rounding
    assert result.encodings.rounding in rounding_search.ROUNDINGS
    nearest = plain_quantize(layers(), feeds(), recipe=recipe(4, rounding="nearest")).qdq
    compared = {"auto": tmp_path / "auto.onnx", "nearest": nearest}
    auto, plain, *_ = evaluate(layers(), compared, feeds(80)[48:]).candidates
    for one, other in zip(auto.outputs, plain.outputs, strict=True):
        assert one.sqnr_db > other.sqnr_db + 3


def test_the_gain_is_that_of_samples_without_moments() -> None:
    """Few samples give moments, which fit them well; the figures are of others, and so is the report."""
    rng = np.random.default_rng(12)
    data = [{"x": rng.normal(size=(1, 48)).astype(np.float32)} for _ in range(64)]
    data.sort(key=sample_digest)
    asked = recipe(4, rounding="gptq")
    result = plain_quantize(layers(), data, recipe=asked)
    seen, unseen = (
        evaluate(layers(), result.simulation, part).candidates[0].outputs for part in (data[16:], data[:16])
    )
    reported = result.evaluation.candidates[0].outputs
    for own, other, told in zip(seen, unseen, reported, strict=True):
        assert own.sqnr_db > other.sqnr_db
        assert told.sqnr_db == pytest.approx(other.sqnr_db, abs=0.5)  # ranges of all samples differ little


@pytest.mark.parametrize(
    "options",
    [
        {"recipe": recipe(4, rounding="nearest")},
        {"recipe": recipe(4), "options": RunOptions(data=DataOptions(nonfinite="skip"))},
    ],
    ids=["asked for", "values that are skipped"],
)
def test_all_weights_are_nearest(options: dict) -> None:
    """Then nothing is tried."""
    result = quantize(layers(), feeds(), **options)
    assert not result.trial("rounding").is_needed and result.encodings.rounding == ""


def test_an_override_keeps_its_rounding() -> None:
    """Only weights whose rounding is `auto` are rounded."""
    kept = recipe(4).model_dump() | {"overrides": [{"nodes": ["mm2"], "weights": {"rounding": "nearest"}}]}
    result = quantize(layers(), feeds(), recipe=Recipe.model_validate(kept))
    assert result.trial("rounding").is_kept
    roundings = {p.tensor: p.rounding for p in result.plan.weights}
    assert roundings == {"w1": result.encodings.rounding, "w2": NEAREST}


def test_long_work_is_only_suggested(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rounding beyond the budget is left to the user, and its trial says how to ask for it."""
    monkeypatch.setattr(work, "ALLOWED", 0.0)
    monkeypatch.setattr(work, "SEARCHED", 1e12)
    assert quantize(layers(), feeds(), recipe=recipe(4)).trial("rounding").is_kept  # few bits have no budget
    # Of outputs that are low the first remedy would not be cut.
    result = quantize(layers(), feeds(), recipe=recipe(5), accuracy=AccuracyTarget(repair=10.0))
    trial = result.trial("rounding")
    assert trial.is_needed and not trial.is_kept and result.encodings.rounding == ""
    assert "beyond the budget; --repair thorough tries it" in trial.why
    thorough = quantize(layers(), feeds(), recipe=recipe(5), accuracy=AccuracyTarget(repair="thorough"))
    assert thorough.trial("rounding").is_kept


def test_weights_that_cannot_be_rounded_are_told() -> None:
    """A weight in a branch keeps the nearest numbers, and a line says so."""
    proto = build(
        """g (float[N,4] x, bool cond) => (float[N,4] y) {
            [choose] y = If (cond) <
                then_branch = yes () => (float[N,4] t) { [inside] t = MatMul (x, inner) },
                else_branch = no () => (float[N,4] e) { [plain] e = Relu (x) }> }""",
        {"inner": weights(4, 4)},
    )
    data = [feed_for(proto, seed) for seed in range(8)]
    result = quantize(proto, data, recipe=recipe(4))
    assert result.trial("rounding").why == "no weight can be rounded by moments"
    assert result.encodings.rounding == ""


def test_how_it_is_compared_changes_no_weight() -> None:
    """An exact comparison writes the same model; a float16 part leaves the choice as it is."""
    usual, exact, half = (
        quantize(layers(), feeds(), recipe=recipe(4), options=options)
        for options in (None, RunOptions(exact=True), QuantizeOptions(floats=FloatOptions("fp16")))
    )
    assert half.trial("rounding").is_kept and exact.trial("rounding").is_kept
    assert exact.qdq.graph == usual.qdq.graph


def test_auto_is_a_word_of_recipes_alone() -> None:
    """Every built-in recipe has it; a plan has what is done."""
    assert {recipe.weights.rounding for recipe in RECIPES.values()} == {AUTO}
    staged = stage(layers(), whole_recipe("tensorrt-int8"))
    assert {p.rounding for p in staged.plan.weights} == {NEAREST}


@pytest.mark.parametrize(
    "gain, kept",
    [
        (Gain(19.7, 20.0, (-0.1, 0.7)), 1),
        (Gain(19.5, 20.0, (0.1, 0.9)), 0),
    ],
)
def test_an_earlier_method_must_be_surely_better(
    gain: Gain, kept: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The interval of its gain over the later one is above zero."""
    monkeypatch.setattr(Judge, "measure_gain", lambda *_: gain)
    monkeypatch.setattr(combinations, "PROVEN", 1)  # the other method would follow one that is not proven
    result = quantize(layers(), feeds(), recipe=recipe(4, rounding=AUTO))
    found = rounding_search.ROUNDINGS[kept]
    assert any(found in text for text in result.trial("rounding").details)


def test_weights_are_rounded_again_beside_layers_in_float() -> None:
    """A promise that leaves a layer in float has the bits of a recipe that leaves it so from the start."""
    proto = build(
        """g (float[N,48] x) => (float[N,48] y) {
            [m0] a = MatMul (x, w0)
            [r0] b = Relu (a)
            [m1] c = MatMul (b, w1)
            [r1] d = Relu (c)
            [m2] e = MatMul (d, w2)
            [r2] f = Relu (e)
            [m3] y = MatMul (f, w3) }""",
        {f"w{at}": weights(48, 48, seed=at) for at in range(1, 4)}
        | {"w0": weights(48, 48) * np.where(np.arange(48)[:, None] % 8, 1, 9).astype(np.float32)},
    )
    start = recipe(4, rounding="qronos")
    plain = plain_quantize(proto, feeds(), recipe=start)
    aim = AccuracyTarget(min_sqnr=plain.evaluation.lowest_db + 0.5, repair=None)
    kept = quantize(proto, feeds(), recipe=start, accuracy=aim)
    again = plain_quantize(proto, feeds(), recipe=kept.recipe)
    left = [name for one in kept.recipe.overrides for name in one.nodes]
    assert "m0" in left and len(left) < 4
    assert kept.qdq.graph == again.qdq.graph != plain.qdq.graph
