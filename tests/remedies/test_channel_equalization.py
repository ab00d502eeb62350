"""Cross-layer equalization and smoothing: what scaled channels cost is won back, and the rest stays."""

from __future__ import annotations

import os
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from builders import build_used, weights, whole_recipe
from numpy.typing import NDArray

import onnxfq
from onnxfq.calibration.channel_factors import FactorFormat, FactorProduct, choose_factors
from onnxfq.cli.main import main
from onnxfq.data.replay import MOST_UNSEEN
from onnxfq.documents.plan import Plan
from onnxfq.documents.recipe import Recipe
from onnxfq.errors import DataError, RecipeError
from onnxfq.graph.channels import analyze_channels
from onnxfq.graph.io.load import load
from onnxfq.judging.samples import split_samples
from onnxfq.numerics.granularity import Granularity
from onnxfq.numerics.qtypes import qtype_by_name
from onnxfq.passes.equalize import fold_factors
from onnxfq.remedies.equalize_search import HARMFUL, UNLIKELY
from onnxfq.report.record import ResultRecord
from onnxfq.runtime.session import Session
from onnxfq.targets.recipes import RECIPES, load_recipe

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "models"))  # not an installed package

from networks.decoder import DecoderShape, random_tokens, write_decoder  # noqa: E402
from networks.transformers import small_encoder  # noqa: E402

CHAIN = """g (float[N,3,12,12] x) => (float[N,8,1,1] y) {
    c = Conv <pads = [1,1,1,1]> (x, w0, b) r = Relu (c)
    d = Conv <pads = [1,1,1,1]> (r, w1) q = Relu (d)
    e = Conv <pads = [1,1,1,1]> (q, w2) s = Add (e, r) t = Relu (s)
    p = GlobalAveragePool (t) y = Conv (p, w3) }"""
GATED = """g (float[N,9,16] x) => (float[N,9,8] y) {
    u = MatMul (x, m0) k = MatMul (x, m1) s = Sigmoid (k) a = Mul (k, s) h = Mul (u, a)
    y = MatMul (h, m2) }"""
ATTENTION = """g (float[N,9,16] x) => (float[N,9,16] y) {
    q0 = MatMul (x, m0) q1 = Reshape (q0, heads) q = Transpose <perm = [0,2,1,3]> (q1)
    k0 = MatMul (x, m1) k1 = Reshape (k0, heads) k = Transpose <perm = [0,2,3,1]> (k1)
    v0 = MatMul (x, m3) v1 = Reshape (v0, heads) v = Transpose <perm = [0,2,1,3]> (v1)
    l = MatMul (q, k) p = Softmax (l) o = MatMul (p, v)
    o1 = Transpose <perm = [0,2,1,3]> (o) o2 = Reshape (o1, whole) y = MatMul (o2, m4) }"""
PRE_NORM = """g (float[N,9,16] x) => (float[N,9,8] y) {
    n = LayerNormalization (x, g, gb) h = MatMul (n, m0) a = Relu (h) y = MatMul (a, m2) }"""
POST_NORM = """g (float[N,9,16] x) => (float[N,9,16] y) {
    n = LayerNormalization (x, g, gb) h = MatMul (n, m0) a = Relu (h) o = MatMul (a, m5) y = Add (n, o) }"""
BRANCHES = """g (float[N,9,16] x, bool c) => (float[N,9,8] y) {
    n = LayerNormalization (x, g, gb) h = MatMul (n, m0) a = Relu (h)
    y = If (c) <then_branch = yes () => (float[N,9,8] p) { p = MatMul (a, m2) },
                else_branch = no () => (float[N,9,8] q) { k = MatMul (n, m1) q = MatMul (k, m2) }> }"""
TWO_PRODUCTS = """g (float[N,9,16] x, float[N,9,16] u) => (float[N,9,8] s) {
    a = Mul (x, g) y = MatMul (a, m2) c = Mul (u, g2) z = MatMul (c, m6) s = Add (y, z) }"""
TERMS = """g (float[N,3,12,12] x) => (float[N,8,1,1] y) {
    c = Conv <pads = [1,1,1,1]> (x, w0, b) d = Conv <pads = [1,1,1,1]> (x, w4) s = Add (c, d) r = Relu (s)
    e = Conv <group = 8, pads = [1,1,1,1]> (r, w5) p = GlobalAveragePool (e) y = Conv (p, w3) }"""
VECTOR = """g (float[N,3,12,12] x) => (float[N,8,1,1] y) {
    c = Conv <pads = [1,1,1,1]> (x, w0, b) h = HardSigmoid (c) m = Mul (c, h) v = Div (m, d8)
    d = Conv <pads = [1,1,1,1]> (v, w1) p = GlobalAveragePool (d) y = Conv (p, w3) }"""
NETWORKS = {"chain": CHAIN, "gated": GATED, "attention": ATTENTION}


def network(text: str, outliers: float = 1.0) -> onnx.ModelProto:
    """Return a network with normal weights; some channels of a normalization are larger by `outliers`."""
    scale = np.abs(weights(16, seed=5)) + 0.5
    scale[[3, 11]] *= outliers
    arrays = {
        "w0": weights(8, 3, 3, 3),
        "b": weights(8),
        "w1": weights(8, 8, 3, 3, seed=1) / 8,
        "w2": weights(8, 8, 3, 3, seed=2) / 8,
        "w3": weights(8, 8, 1, 1, seed=3),
        "w4": weights(8, 3, 3, 3, seed=4),
        "w5": weights(8, 1, 3, 3, seed=5),
        "d8": np.full((1, 8, 1, 1), 6, np.float32),
        "m0": weights(16, 16) / 4,
        "m1": weights(16, 16, seed=1) / 4,
        "m2": weights(16, 8, seed=2),
        "m3": weights(16, 16, seed=3),
        "m4": weights(16, 16, seed=4),
        "m5": weights(16, 16, seed=6) / 4,
        "m6": weights(16, 8, seed=8),
        "g": scale,
        "g2": scale,
        "gb": weights(16, seed=7) / 8,
        "heads": np.asarray([0, 0, 4, 4], np.int64),
        "whole": np.asarray([0, 0, 16], np.int64),
    }
    return build_used(text, arrays)


def feeds(proto: onnx.ModelProto, count: int = 24) -> list[dict[str, NDArray[np.float32]]]:
    """Return normal inputs."""
    rng = np.random.default_rng(1)
    shape = [dim.dim_value or 2 for dim in proto.graph.input[0].type.tensor_type.shape.dim]
    return [{"x": rng.standard_normal(shape, dtype=np.float32)} for _ in range(count)]


def recipe(equalize: str, smooth: str = "none", **weight: str) -> Recipe:
    """Return tensorrt-int8 with these methods."""
    base = RECIPES["tensorrt-int8"].override(activations={"equalize": equalize}, smooth=smooth)
    return base.model_copy(update={"weights": base.weights.model_copy(update=weight)})


def sqnr(proto: onnx.ModelProto, chosen: Recipe) -> float:
    """Return the SQNR of the output of the quantized model."""
    return output_db(quantize(proto, chosen))


def quantize(proto: onnx.ModelProto, chosen: Recipe) -> onnxfq.QuantizeResult:
    """Return the quantized model without unasked remedies, compared on all feeds."""
    return compared_on_all(proto, unrepaired(proto, feeds(proto), chosen))


def unrepaired(
    proto: onnx.ModelProto, data: object, chosen: Recipe, exact: bool = False
) -> onnxfq.QuantizeResult:
    """Return the quantized model without unasked remedies."""
    nothing, options = onnxfq.AccuracyTarget(repair=None), onnxfq.RunOptions(exact=exact)
    return onnxfq.quantize(proto, data, recipe=chosen, accuracy=nothing, options=options)


def compared_on_all(proto: onnx.ModelProto, result: onnxfq.QuantizeResult) -> onnxfq.QuantizeResult:
    """Return `result` with the scores of the written model on all feeds, also those that gave its ranges."""
    options = onnxfq.RunOptions(exact=True)
    return replace(
        result, evaluation=onnxfq.evaluate(proto, result.simulation, feeds(proto), options=options)
    )


def output_db(result: onnxfq.QuantizeResult) -> float:
    """Return the SQNR of the worst output."""
    return min(output.sqnr_db for output in result.evaluation.candidates[-1].outputs)


def scale_channels(proto: onnx.ModelProto, seed: int) -> onnx.ModelProto:
    """Return a model of the same function with random factors up to 2^11."""
    model = load(proto)
    analysis = analyze_channels(model)
    exponents = np.zeros(analysis.count, np.int64)
    rng = np.random.default_rng(seed)
    for group in analysis.groups:
        exponents[group.classes] = rng.integers(-11, 12, len(group.classes))
    return fold_factors(model, analysis, exponents).proto


@pytest.mark.parametrize("name", NETWORKS)
def test_function_preserving_factors_cost_nothing(name: str) -> None:
    """Random factors ruin int8; cross-layer equalization is back within 0.5 dB in the mean of two draws."""
    proto = network(NETWORKS[name])
    plain = sqnr(proto, recipe("none"))
    draws = [scale_channels(proto, seed) for seed in range(2)]
    assert max(sqnr(scaled, recipe("none")) for scaled in draws) < plain - 6
    assert np.mean([sqnr(scaled, recipe("cross_layer")) for scaled in draws]) > plain - 0.5
    one_scale = {"granularity": "per_tensor"}
    if name != "chain":  # whose last weights have rows of other sizes, which no factor makes even
        assert np.mean([sqnr(scaled, recipe("cross_layer", **one_scale)) for scaled in draws]) > plain - 1


@pytest.mark.parametrize("text", [TERMS, VECTOR], ids=["terms of a sum", "a vector that is there"])
def test_the_default_finds_what_factors_cost(text: str) -> None:
    """A term of a sum has one scale though its reader has one for each channel; a divisor takes factors."""
    proto = network(text)
    plain, scaled = sqnr(proto, recipe("none")), scale_channels(proto, 0)
    given = {"x": np.concatenate([feed["x"] for feed in feeds(proto, 48)])}
    lost, cured = (
        onnxfq.quantize(scaled, given, recipe="tensorrt-int8", accuracy=onnxfq.AccuracyTarget(repair=way))
        for way in (None, "auto")
    )
    assert output_db(compared_on_all(proto, lost)) < plain - 6
    assert output_db(compared_on_all(proto, cured)) > plain - 0.5
    assert len(cured.model.proto.graph.node) == len(load(scaled).proto.graph.node)
    assert cured.trial("equalize").is_kept and not cured.trial("protected").is_kept


def test_factors_of_little_expected_gain_are_not_measured() -> None:
    """The group that would gain makes little of the noise. A recipe that asks has them measured."""
    proto = network(PRE_NORM)
    trial = onnxfq.quantize(proto, feeds(proto), recipe="tensorrt-int8").trial("equalize")
    assert trial.why == UNLIKELY and not trial.evidence.trials
    assert UNLIKELY in [group.why for group in trial.evidence.groups]
    asked = onnxfq.quantize(proto, feeds(proto), recipe=recipe("auto")).trial("equalize")
    assert asked.evidence.trials and UNLIKELY not in [group.why for group in asked.evidence.groups]


@pytest.mark.sample
def test_scores_of_equalized_tensors_are_doubted() -> None:
    """Inner tensors of a model with factors are scaled; only with them does the comparison say so."""
    proto = network(CHAIN)
    for equalize, is_doubted in (("cross_layer", True), ("none", False)):
        given = unrepaired(proto, feeds(proto, 8), recipe(equalize)).qdq
        found = onnxfq.evaluate(proto, given, feeds(proto, 8), per_tensor=True)
        assert any("channels were equalized" in note for note in found.notes) is is_doubted
        assert not onnxfq.evaluate(proto, given, feeds(proto, 8)).notes


@pytest.mark.skipif("ONNXFQ_MODELS" not in os.environ, reason="no trained networks at hand")
def test_factors_cost_a_trained_network_nothing() -> None:
    """The digit classifier is back at the SQNR without factors, where random ones leave nothing."""
    folder = Path(os.environ["ONNXFQ_MODELS"]) / "s01_mnist_cnn"
    images = np.load(folder / "mnist_t10k.npz")["images"][:32].astype(np.float32)
    proto, data = onnx.load(folder / "mnist_op8.onnx"), [{"Input3": image[None]} for image in images]
    found = [
        output_db(unrepaired(model, data, recipe(way)))
        for model in (onnxfq.load(proto).proto, scale_channels(onnxfq.load(proto).proto, 0))
        for way in ("none", "cross_layer")
    ]
    assert found[2] < 10 and min(found[1], found[3]) > found[0] - 0.5, found


def test_smoothing_wins_back_what_outliers_cost() -> None:
    """Channels 50 times as large cost int8 4 dB; a normalization takes them up, without a new node."""
    proto = network(PRE_NORM, 50.0)
    outliers = sqnr(proto, recipe("none"))
    result = quantize(proto, recipe("none", "auto"))
    assert output_db(result) > outliers + 3
    assert len(result.model.proto.graph.node) == len(load(proto).proto.graph.node)
    done = result.equalization
    assert done is not None and [group.method for group in done.groups if not group.why] == ["smooth"]
    assert "smooth 'n'" in done.lines()[2]


def vit() -> tuple[onnx.ModelProto, list[dict[str, NDArray[Any]]]]:
    """Return a small pre-norm transformer, with data."""
    x = np.random.default_rng(1).standard_normal((24, 1, 16, 64), dtype=np.float32)
    return small_encoder("N", layers=2), [{"x": one} for one in x]


def llama(folder: Path) -> tuple[onnx.ModelProto, list[dict[str, NDArray[Any]]]]:
    """Return a small decoder with RMSNorm and gates, with data."""
    shape = DecoderShape(width=64, layers=2, heads=4, key_heads=2, hidden=128, words=200, tokens=24)
    return onnx.load(write_decoder(folder, shape)), [
        {"input_ids": one[None]} for one in random_tokens(shape, 24)
    ]


@pytest.mark.parametrize("name", ["vit", "llama"])
def test_outliers_of_normalizations_cost_little(name: str, tmp_path: Path) -> None:
    """Two channels of a normalization or a GELU 64 times as large: smoothing gains 6 dB without a node."""
    proto, data = vit() if name == "vit" else llama(tmp_path)
    model = load(proto)
    analysis = analyze_channels(model)
    exponents = np.zeros(analysis.count, np.int64)
    rng = np.random.default_rng(0)
    planted = 0
    for group in analysis.groups:
        if {fold.op_type for fold in group.writers} <= {"LayerNormalization", "Mul"}:
            exponents[rng.choice(group.classes, 2, replace=False)] = 6
            planted += 1
    # Two normalizations in each of two layers, the last one, and the ends of GELU.
    assert planted == {"vit": 7, "llama": 5}[name]
    damaged = fold_factors(model, analysis, exponents).proto
    plain, smooth = (unrepaired(damaged, data, recipe("none", how)) for how in ("none", "auto"))
    assert output_db(smooth) > output_db(plain) + 6
    assert len(smooth.model.proto.graph.node) == len(model.proto.graph.node)


def test_what_a_body_reads_keeps_its_size() -> None:
    """A branch of If reads the normalized tensor too: a Mul scales it for its other reader alone."""
    proto = network(BRANCHES, 50.0)
    data = [{**feed, "c": np.asarray(at % 2 == 0)} for at, feed in enumerate(feeds(proto))]
    plain, smooth = (
        unrepaired(proto, data, recipe(*how), exact=True)
        for how in (("none", "none"), ("cross_layer", "0.7"))
    )
    found = {group.tensor: group.readers for group in smooth.equalization.groups if not group.why}
    assert found == {"n": ("m0",)} and output_db(smooth) > output_db(plain) + 0.5
    for feed in data[:2]:
        want, got = (Session(r.model.proto, 1, exact=True).run(feed) for r in (plain, smooth))
        np.testing.assert_array_equal(got[0], want[0])


def test_low_outputs_are_smoothed() -> None:
    """Outputs below what `protect` asks for are smoothed before a layer stays in float."""
    proto = network(PRE_NORM, 50.0)
    many = feeds(proto, 48)  # 4 samples that prove leave its gain open
    named = {"activations": {"calibrator": "minmax"}, "weights": {"rounding": "nearest"}}
    chosen = recipe("none").override(**named)
    plain = unrepaired(proto, many, chosen)
    plain_db = output_db(plain)

    def repair(data: object, aim_db: float) -> onnxfq.QuantizeResult:
        return onnxfq.quantize(proto, data, recipe=chosen, accuracy=onnxfq.AccuracyTarget(repair=aim_db))

    repaired = repair(many, plain_db + 3)
    assert repaired.equalization is not None and repaired.equalization.changed
    assert repaired.trial("smooth").is_kept and not repaired.recipe.overrides
    # The comparison of the plain result has all unseen samples.
    assert output_db(compared_on_all(proto, repaired)) > output_db(compared_on_all(proto, plain)) + 2.5
    good = repair(many, plain_db - 3)
    assert good.equalization is None and good.qdq == plain.qdq
    assert repair(iter(many), plain_db + 3).equalization is None


def test_only_the_group_that_does_harm_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    """A channel of one group is small in the samples that give factors, and large in those that judge."""
    proto = network(TWO_PRODUCTS, 50.0)
    samples = [
        {name: feed["x"][row : row + 1] for name in "xu"} for feed in feeds(proto) for row in range(2)
    ] * 6
    samples = [{"x": one["x"] + np.float32(n) / 1024, "u": one["u"].copy()} for n, one in enumerate(samples)]
    count = len(samples)
    split = split_samples(range(min(max(count // 4, 16), MOST_UNSEEN, count // 2)))
    for number in (*split.choosing, *split.proving):
        samples[number]["u"][..., 0] *= 60.0
    assert len(split.unused) >= 4
    numbers = {sample["x"].tobytes(): number for number, sample in enumerate(samples)}
    monkeypatch.setattr("onnxfq.data.digest.sample_digest", lambda sample: numbers[sample["x"].tobytes()])
    plain, smooth = (unrepaired(proto, samples, recipe("none", way), exact=True) for way in ("none", "auto"))
    left = {group.tensor: group.why for group in smooth.equalization.groups if group.why}
    assert left == {"c": HARMFUL}
    assert smooth.trial("equalize").is_kept
    trials = [(t.methods, t.left) for t in smooth.equalization.trials]
    assert trials[:2] == [((), ()), (("smooth",), ())] and (("smooth",), ("c",)) in trials
    assert output_db(smooth) > output_db(plain) + 6
    assert "smooth without 1 group" in "".join(smooth.equalization.lines())


def test_a_new_mul_smooths_what_a_sum_reads_too() -> None:
    """A tensor that a residual sum reads keeps its size; a Mul scales it for its other reader."""
    proto = network(POST_NORM, 50.0)
    result = quantize(proto, recipe("none", "0.7"))
    assert output_db(result) > sqnr(proto, recipe("none")) + 4
    added = [node for node in result.model.proto.graph.node if node.op_type == "Mul"]
    assert [(node.input[0], node.output[0]) for node in added] == [("n", "n/scaled")]
    assert [node.input[0] for node in result.model.proto.graph.node if node.op_type == "Add"] == ["n"]
    plain = unrepaired(network(POST_NORM), feeds(proto), recipe("none", "0.7"))
    assert not any(node.op_type == "Mul" for node in plain.model.proto.graph.node)


def test_a_new_mul_where_only_a_run_finds_the_rank() -> None:
    """Behind a Reshape to a shape that is an input."""
    text = POST_NORM.replace("float[N,9,16] x)", "float[N,144] u, int64[R] s)")
    text = text.replace("{", "{ x = Reshape (u, s)", 1)
    proto = network(text, 50.0)
    data = [{"u": f["x"].reshape(-1, 144), "s": np.asarray([-1, 9, 16])} for f in feeds(network(POST_NORM))]
    options = onnxfq.RunOptions(exact=True)
    found = [unrepaired(proto, data, recipe("none", way), exact=True) for way in ("none", "0.7")]
    scores = onnxfq.evaluate(
        proto, {str(at): one.simulation for at, one in enumerate(found)}, data, options=options
    )
    plain_db, smooth_db = (one.outputs[0].sqnr_db for one in scores.candidates)
    assert smooth_db > plain_db + 4
    assert [node.op_type for node in found[1].model.proto.graph.node].count("Mul") == 1


@pytest.mark.parametrize("name", ["tensorrt-fp8", "tensorrt-nvfp4", "tensorrt-int8-weights"])
def test_other_formats_take_the_methods_too(name: str) -> None:
    """Under every recipe the outputs do not lose 0.5 dB by the methods, and the float model is the same."""
    proto = network(PRE_NORM, 50.0)
    base = whole = whole_recipe(name)
    if base.activations is not None and not base.activations.dynamic:
        base = base.override(activations={"equalize": "auto"})
    plain, smooth = (unrepaired(proto, feeds(proto), r) for r in (whole, base.override(smooth="auto")))
    assert output_db(smooth) > output_db(plain) - 0.5


def test_the_least_expected_error_is_a_search_over_the_grid() -> None:
    """No step of a channel lowers the expected error of the choice, by the formula in NumPy."""
    rng = np.random.default_rng(0)
    x = np.abs(rng.normal(size=16)) * 2.0 ** rng.integers(-5, 6, 16)
    w = rng.normal(size=(16, 8))
    ids, live = np.arange(1, 17), rng.uniform(0.2, 1, 16)
    int8 = qtype_by_name("int8")
    one = FactorProduct(
        ids,
        x,
        np.square(x / 3),
        live,
        FactorFormat(int8),
        w,
        np.arange(16)[:, None],
        np.zeros((1, 1), int),
        FactorFormat(int8, Granularity(1)),
    )
    choice = choose_factors(ids, [one], [], np.zeros(16), 20, steps=True)

    def noise(exponents: NDArray[np.int64]) -> float:
        up = np.ldexp(1.0, exponents)[:, None]
        step = (x * up[:, 0]).max() / 127
        column = np.abs(w / up).max(axis=0) / 127
        lost = np.minimum(live * (step / up[:, 0]) ** 2 / 12, np.square(x / 3))
        own = (lost[:, None] * np.square(w)).sum()
        own += (column**2 / 12 * np.square(x[:, None] / 3 * up)).sum()
        return own / (np.square(x / 3) @ np.square(w)).sum()

    np.testing.assert_allclose(choice.after_db, -10 * np.log10(noise(choice.exponents)))
    np.testing.assert_allclose(choice.before_db, -10 * np.log10(noise(np.zeros(16, int))))
    assert choice.after_db > choice.before_db + 3
    for step in (*np.eye(16, dtype=int), *-np.eye(16, dtype=int)):
        assert noise(choice.exponents + step) >= noise(choice.exponents)
    assert choose_factors(ids, [one], [], np.zeros(16), 20).after_db <= choice.after_db


def test_artifacts_belong_together(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The plan says what was done, and plan and encodings are for the equalized float model."""
    onnx.save(network(PRE_NORM, 50.0), tmp_path / "m.onnx")
    np.savez(tmp_path / "d.npz", x=np.concatenate([feed["x"] for feed in feeds(network(PRE_NORM))]))
    folder = tmp_path / "a"
    line = f"quantize {tmp_path}/m.onnx --data {tmp_path}/d.npz -o {tmp_path}/q.onnx"
    assert main(f"{line} --smooth auto --equalize auto --artifacts {folder}".split()) == 0
    assert "equalized" in capsys.readouterr().out
    plan = Plan.load(folder / "m.plan.json")
    record = ResultRecord.model_validate_json((folder / "m.result.json").read_text())
    assert record.equalization is not None and record.equalization.trials
    plan.check_model(load(folder / "m.equalized.onnx").sha256)
    line = f"insert {folder}/m.equalized.onnx --plan {folder}/m.plan.json -o {tmp_path}/i.onnx"
    assert main(f"{line} --encodings {folder}/m.encodings.json".split()) == 0


def test_what_lacks_data_is_refused_or_said() -> None:
    """Smoothing by name needs data; a share beyond 1 is refused."""
    proto = network(PRE_NORM)
    with pytest.raises(DataError, match="needs data"):
        onnxfq.quantize(proto, None, recipe=RECIPES["tensorrt-int8-weights"].override(smooth="0.5"))
    with pytest.raises(DataError, match="statistics or encodings of the model"):
        onnxfq.quantize(
            proto,
            feeds(proto),
            recipe=recipe("cross_layer"),
            sources=onnxfq.Sources(encodings={"x": {"scale": 1.0}}),
        )
    result = onnxfq.quantize(proto, None, recipe=RECIPES["tensorrt-int8-weights"].override(smooth="auto"))
    assert result.trial("equalize").why == "no data was given"
    with pytest.raises(RecipeError, match="smooth"):
        recipe("none", "1.5")
    with pytest.raises(RecipeError, match="smooth"):
        recipe("none", "often")


def test_a_recipe_file_names_the_methods(tmp_path: Path) -> None:
    """A file has the fields of the recipe."""
    path = tmp_path / "r.yaml"
    path.write_text("smooth: 0.7\nactivations: {equalize: cross_layer}\n")
    methods = load_recipe(path).channel_methods
    assert (methods.cross_layer, methods.smooth, methods.alpha, methods.confirmed) == (
        True,
        True,
        0.7,
        frozenset(),
    )
    path.write_text("smooth: auto\n")
    assert load_recipe(path).channel_methods.confirmed == {"smooth"}
