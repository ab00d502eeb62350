"""`sensitivity`: switches that do what they say, planted layers found, a remedy that is measured."""

from __future__ import annotations

import json
import math
import re
from pathlib import Path

import numpy as np
import onnx
import pytest
import yaml
from builders import BUILDERS, build, conv_relu, feed_for, plain_quantize, stage, weights, whole_recipe
from planted_chain import FACTOR, LAYERS, WIDTH, chain, with_modules

import onnxfq
from onnxfq.choices import DEFAULT_RECIPE
from onnxfq.cli.main import main
from onnxfq.data import sample_digest
from onnxfq.documents.sensitivity import MetricValues, Sensitivity
from onnxfq.errors import DataError, RecipeError
from onnxfq.execution.toggled_segments import SwitchedSegments, count_segments
from onnxfq.graph.normalize.shapes import with_shapes
from onnxfq.graph.patterns.logits import judge_outputs
from onnxfq.layers.round_weights import round_weights
from onnxfq.passes.insert_fake_quantize import ENABLED_INPUT, switch_weights, switched_tensors
from onnxfq.report.text import quantize_summary
from onnxfq.runtime.session import Session
from onnxfq.stages.insert import insert_fake_quantize
from onnxfq.stages.score import score_models


@pytest.mark.parametrize("name", sorted(BUILDERS))
def test_each_switch_by_itself(name: str) -> None:
    """All on is the model without switches, all off is the float model, to the bit, in bodies too."""
    proto = BUILDERS[name]()
    staged = stage(proto)
    whole = insert_fake_quantize(staged.model, staged.plan, staged.encodings)
    switched = insert_fake_quantize(staged.model, staged.plan, staged.encodings, switches="each")
    names = json.loads({p.key: p.value for p in switched.metadata_props}["onnxfq.switches"])
    assert names == [p.tensor for p in staged.plan.placements if p.role != "bias"]
    session, feed = Session(switched, 1, exact=True), feed_for(proto)
    off, on = (np.full(len(names), value) for value in (False, True))
    for enabled, reference in ((on, whole), (off, staged.model.proto)):
        expected = Session(reference, 1, exact=True).run(feed)
        for got, want in zip(session.run(feed | {ENABLED_INPUT: enabled}), expected, strict=True):
            np.testing.assert_array_equal(got, want)


@pytest.mark.share(2)
@pytest.mark.parametrize("name", sorted(BUILDERS))
def test_segments_compute_what_the_whole_computes(name: str) -> None:
    """In segments, from the start and from the trace of the float model: as onnxruntime in one session."""
    proto = BUILDERS[name]()
    staged, feed = stage(proto), feed_for(proto)
    switched = insert_fake_quantize(staged.model, staged.plan, staged.encodings, switches="each")
    outputs = [value.name for value in proto.graph.output]
    whole, cut = Session(switched, 1), SwitchedSegments(switched, outputs, parts=3)
    count = len(switched_tensors(staged.plan))
    trace = cut.trace(feed, np.zeros(count, bool))
    for state in (*np.eye(count, dtype=bool), np.ones(count, bool), np.zeros(count, bool)):
        start = cut.first(state)
        runs = cut.run(feed, state), cut.run(trace[start], state, start)
        for output, want in zip(outputs, whole.run(feed | {ENABLED_INPUT: state}, outputs), strict=True):
            # Float segments have constant weights, which onnxruntime may sum in another order.
            np.testing.assert_allclose(runs[0][output], want, rtol=1e-4, atol=1e-5)
            np.testing.assert_array_equal(runs[0][output], runs[1][output])


def test_outputs_that_are_constants_have_no_noise() -> None:
    """No segment computes a constant of the model; a measurement ends as if the output were not there."""
    body, consts = "y = MatMul (x, w)  k = Constant <value_floats = [1.0, 2.0]> ()", {"w": weights(4, 4)}
    plain = build("g (float[N,4] x) => (float[N,4] y) { y = MatMul (x, w) }", consts)
    more = build(f"g (float[N,4] x) => (float[N,4] y, float[2] k, float[4,4] w) {{ {body} }}", consts)
    found = [onnxfq.sensitivity(one, feed_for(plain)) for one in (plain, more)]
    assert [group.noise for group in found[0].groups] == [group.noise for group in found[1].groups] > [0]


@pytest.mark.parametrize("is_rounded", [False, True])
def test_a_run_begins_at_the_first_switch_that_is_on(is_rounded: bool) -> None:
    """Every segment of a long chain has its share of the switches, in the order of computation."""
    staged = stage(chain(layers=30))
    switched = insert_fake_quantize(staged.model, staged.plan, staged.encodings, switches="each")
    names = switched_tensors(staged.plan)
    if is_rounded:
        weights = {one.name: one for one in staged.model.proto.graph.initializer if one.name in names}
        assert len(weights) == 30
        switched = switch_weights(switched, weights, names)
    cut = SwitchedSegments(switched, ["y"], parts=5)
    firsts = {name: cut.first(np.array(names) == name) for name in names}
    assert sorted(firsts[f"w{n}"] for n in range(30)) == [firsts[f"w{n}"] for n in range(30)]
    assert [sum(first == part for first in firsts.values()) for part in range(5)] == [12] * 5
    assert cut.first(np.zeros(60, bool)) == 5 and len(cut.trace(feed_for(chain()), np.zeros(60, bool))) == 6


@pytest.mark.parametrize("layers", [2, 12, 30, 60])
def test_the_cost_of_measuring_groups_counts_what_runs(layers: int) -> None:
    """The estimate takes from each switch on to the end of a chain of equal layers: what the runs compute."""
    staged = stage(chain(layers=layers))
    switched = insert_fake_quantize(staged.model, staged.plan, staged.encodings, switches="each")
    cut, names = SwitchedSegments(switched, ["y"]), switched_tensors(staged.plan)
    segments = count_segments(len(names))
    runs = [1 - cut.first(np.array(names) == name) / segments for name in names]
    # Layers are whole, and a segment may have one more or less than another.
    assert np.mean(runs) == pytest.approx((segments + 1) / (2 * segments), abs=0.05)


@pytest.mark.sample
def test_one_switch_is_a_plan_of_one_tensor() -> None:
    """A single switch gives what a plan with that tensor alone gives."""
    staged = stage(conv_relu())
    switched = insert_fake_quantize(staged.model, staged.plan, staged.encodings, switches="each")
    session, feed = Session(switched, 1, exact=True), feed_for(conv_relu())
    for number, placement in enumerate(staged.plan.placements):
        alone = staged.plan.model_copy(update={"placements": (placement,)})
        encoding = staged.encodings.model_copy(update={"encodings": (staged.encodings[placement.tensor],)})
        expected = Session(insert_fake_quantize(staged.model, alone, encoding), 1, exact=True).run(feed)
        enabled = np.arange(len(staged.plan.placements)) == number
        np.testing.assert_array_equal(session.run(feed | {ENABLED_INPUT: enabled})[0], expected[0])


def test_rounded_weights_have_switches(data) -> None:
    """A weight is the rounded one where it is switched on and the float one elsewhere, to the bit."""
    recipe = onnxfq.load_recipe("tensorrt-int8").override(weights={"rounding": "gptq"})
    model, feeds = onnxfq.load(chain()), [{"x": feed["x"]} for feed in data]
    plan = onnxfq.make_plan(model, recipe)
    statistics = onnxfq.collect_statistics(model, plan, onnxfq.open_feeds(model.proto, feeds))
    rounding = round_weights(model, plan, onnxfq.calibrate(model, plan, statistics), feeds)
    whole = insert_fake_quantize(rounding.model, plan, rounding.encodings)
    switched = insert_fake_quantize(model, plan, rounding.encodings, switches="each")
    names = switched_tensors(plan)
    session = Session(switch_weights(switched, rounding.tensors, names), 1, exact=True)
    for on, reference in ((True, whole), (False, model.proto)):
        got = session.run(feeds[0] | {ENABLED_INPUT: np.full(len(names), on)})
        np.testing.assert_array_equal(got[0], Session(reference, 1, exact=True).run(feeds[0])[0])
    same = rounding.for_plan(model, plan, onnxfq.calibrate(model, plan, statistics))
    assert same.encodings == rounding.encodings and same.model.proto == rounding.model.proto


FIXED = onnxfq.load_recipe(DEFAULT_RECIPE).override(
    activations={"calibrator": "minmax", "equalize": "none"}, weights={"rounding": "nearest"}
)
"""The default recipe with methods by name, so that only groups of layers are left to change."""


@pytest.fixture(scope="module")
def data() -> list[dict[str, np.ndarray]]:
    """Sixteen samples."""
    rng = np.random.default_rng(1)
    return [{"x": rng.normal(size=(1, WIDTH)).astype(np.float32)} for _ in range(16)]


@pytest.mark.parametrize("planted", [(2,), (3, 6)])
def test_planted_layers_come_first(data, planted) -> None:
    """Two layers that are both fatal are first and second; the remedy is them alone, and it is measured."""
    found = onnxfq.sensitivity(chain(planted), data, samples=4, accuracy=onnxfq.AccuracyTarget(min_sqnr=20))
    assert {node for group in found.groups[: len(planted)] for node in group.nodes} == {
        f"m{n}" for n in planted
    }
    assert found.sqnr_db < 15 and found.outputs == ("y",)
    assert found.remedy is not None and len(found.remedy.kept) == len(planted) and found.remedy.is_kept
    assert found.remedy.multiplies == pytest.approx(len(planted) / LAYERS)
    recipe = onnxfq.load_recipe("tensorrt-int8")
    kept = recipe.model_copy(update={"overrides": (found.override(range(len(planted))),)})
    result = onnxfq.quantize(chain(planted), data, recipe=kept)
    assert {s.name for s in result.plan.skipped if s.kind == "node"} == {f"m{n}" for n in planted}
    sound = onnxfq.sensitivity(chain(), data, samples=4, accuracy=onnxfq.AccuracyTarget(min_sqnr=20))
    assert sound.remedy is not None and sound.remedy.kept == () and sound.sqnr_db > 20


def test_groups_share_readers() -> None:
    """Tensors of one node, and of nodes with a common tensor, are switched together."""
    proto = build(
        """g (float[N,8] x) => (float[N,8] y) { [q] a = MatMul (x, w0) [k] b = MatMul (x, w1)
            c = Mul (a, b) [o] y = MatMul (c, w2) }""",
        {f"w{number}": weights(8, 8) for number in range(3)},
    )
    found = onnxfq.sensitivity(proto, [feed_for(proto, seed) for seed in range(4)])
    assert {group.nodes for group in found.groups} == {("q", "k"), ("o",)}
    assert sum(group.multiplies or 0 for group in found.groups) == pytest.approx(1)
    assert sum(group.weight_bytes for group in found.groups) == pytest.approx(1)


def test_logits_in_front_of_saturation() -> None:
    """Logits are what a final softmax or sigmoid reads, before all that moves elements; both decide.

    The logits of an image or a sound, which ends in Tanh, do not, and features have none.
    """
    proto = build(
        """g (float[2,8] x) => (float[8,2] y, float[2,8] z, float[2,8] t) { a = MatMul (x, w)
            v = Reshape (a, to) b = Sigmoid (v) y = Transpose (b) z = Relu (x) c = Neg (a) t = Tanh (c) }""",
        {"w": weights(8, 8), "to": np.asarray([2, 8])},
    )
    found = judge_outputs(with_shapes(proto))
    assert found.logits == {"a": "y", "c": "t"} and found.deciding == ("y", "z", "t", "a")
    kept = found.within({"c"})
    assert kept.logits == {"c": "t"} and kept.deciding == ("y", "z", "t")


def test_the_command(tmp_path: Path, data, capfd: pytest.CaptureFixture[str]) -> None:
    """It prints the worst layers by node, and writes all groups and a recipe that `quantize` takes."""
    onnx.save(chain((3, 6)), tmp_path / "m.onnx")
    np.savez(tmp_path / "d.npz", x=np.concatenate([feed["x"] for feed in data]))
    files = [str(tmp_path / "m.onnx"), "--data", str(tmp_path / "d.npz")]
    written = ["-o", str(tmp_path / "s.json"), "--recipe-out", str(tmp_path / "fix.yaml")]
    assert main(["sensitivity", *files, *written, "--samples", "4", "--recipe", "int8"]) == 0
    text = capfd.readouterr().out
    assert (
        "all quantized:" in text and "remedy     2 of 8 groups in float, 25.0% of the multiply-adds" in text
    )
    found = Sensitivity.model_validate_json((tmp_path / "s.json").read_text())
    assert len(found.groups) == LAYERS and found.groups[0].rest is not None
    recipe = yaml.safe_load((tmp_path / "fix.yaml").read_text())
    assert set(recipe["overrides"][0]["nodes"]) == {"m3", "m6"}
    line = ["quantize", *files, "--recipe", str(tmp_path / "fix.yaml"), "-o", str(tmp_path / "q.onnx")]
    assert main(line) == 0 and "MatMul 6/8" in capfd.readouterr().out
    other = ["--recipe-out", str(tmp_path / "other.yaml")]
    assert main(["sensitivity", *files, "--recipe", str(tmp_path / "fix.yaml"), *other]) == 1
    assert "--recipe-out changes a built-in recipe" in capfd.readouterr().err


def test_module_paths(data) -> None:
    """Rows have the module paths of torch's exporter, and overrides take modules with all inside them."""
    proto = with_modules(chain((3, 6)))
    found = onnxfq.sensitivity(proto, data, samples=4)
    assert {path for group in found.groups[:2] for path in group.modules} == {"blocks.0.fc3", "blocks.1.fc6"}
    assert "blocks.0.fc3" in found.table()
    (axes,) = onnxfq.plot.sensitivity(found, shown=3).axes
    assert [one.get_text() for one in axes.get_yticklabels()][0] in ("blocks.0.fc3", "blocks.1.fc6")
    assert [bar.get_width() for bar in axes.patches] == [group.alone_db for group in found.groups[:3]]
    recipe = onnxfq.load_recipe("tensorrt-int8")
    for modules, float_nodes in (
        (("blocks.1",), {"m4", "m5", "m6", "m7"}),
        (("blocks.*.fc3", "*.fc6"), {"m3", "m6"}),
    ):
        override = onnxfq.Override(modules=modules, keep_float=True)
        plan = onnxfq.make_plan(onnxfq.load(proto), recipe.model_copy(update={"overrides": (override,)}))
        assert {s.name for s in plan.skipped if s.kind == "node"} == float_nodes
    override = onnxfq.Override(modules=("blocks.0.fc33",), keep_float=True)
    with pytest.raises(RecipeError, match=r"module 'blocks.0.fc33', which the model lacks; .*blocks.0.fc3"):
        onnxfq.make_plan(onnxfq.load(proto), recipe.model_copy(update={"overrides": (override,)}))
    with pytest.raises(RecipeError, match="its nodes have no module paths"):
        onnxfq.make_plan(onnxfq.load(chain()), recipe.model_copy(update={"overrides": (override,)}))


@pytest.fixture(scope="module")
def rows() -> np.ndarray:
    """As many samples as make the interval of a promise narrow enough."""
    return np.random.default_rng(1).normal(size=(160, WIDTH)).astype(np.float32)


def test_a_promised_sqnr_is_kept(rows) -> None:
    """The planted layers stay in float, and for more dB of the logits one more; other feeds prove it."""

    def quantize(proto: onnx.ModelProto, **accuracy: object) -> onnxfq.QuantizeResult:
        return onnxfq.quantize(proto, rows, recipe=FIXED, accuracy=onnxfq.AccuracyTarget(**accuracy))

    broken = quantize(chain((3, 6)), repair=None)
    for promised, floats in ((20, {"m3", "m6"}), (27, {"m3", "m6", "m7"})):
        kept = quantize(chain((3, 6)), min_sqnr=promised)
        assert broken.sensitivity is None and kept.sensitivity is not None
        assert {s.name for s in kept.plan.skipped if s.kind == "node"} == floats
        assert kept.recipe.overrides[-1].keep_float and kept.sensitivity.remedy.reached >= promised
        assert output_db(kept) > output_db(broken)
    sound = quantize(chain(), min_sqnr=20)
    assert sound.qdq == quantize(chain()).qdq and sound.sensitivity is None


def output_db(result: onnxfq.QuantizeResult) -> float:
    """Return the SQNR of the output of the Q/DQ model, or of the last form that runs."""
    return result.evaluation.candidates[-1].outputs[0].sqnr_db


def test_a_promise_that_cannot_be_kept(tmp_path: Path, data, capfd: pytest.CaptureFixture[str]) -> None:
    """One line with the best that was reached, and nothing is written."""
    onnx.save(chain(), tmp_path / "m.onnx")
    np.savez(tmp_path / "d.npz", x=np.concatenate([feed["x"] for feed in data]))
    line = ["quantize", str(tmp_path / "m.onnx"), "--data", str(tmp_path / "d.npz")]
    assert main([*line, "-o", str(tmp_path / "q.onnx"), "--min-sqnr", "200"]) == 1
    text = capfd.readouterr().err
    assert "cannot keep 200 dB" in text and "8 of 8 groups" in text and not (tmp_path / "q.onnx").exists()
    named = ["--calibrator", "minmax", "--equalize", "none", "--rounding", "nearest"]
    assert main([*line, *named, "-o", str(tmp_path / "q.onnx"), "--min-sqnr", "15"]) == 0
    assert re.search(r"^promised +kept", capfd.readouterr().out, re.MULTILINE)


def test_protected_by_default(data) -> None:
    """Two fatal layers of thirty stay in float without any option; none of a sound network does."""
    broken = plain_quantize(chain((9, 20), 30), data)
    kept = onnxfq.quantize(chain((9, 20), 30), iter(data), recipe=FIXED)  # read only once
    assert output_db(broken) < 20 < output_db(kept)
    assert {s.name for s in kept.plan.skipped if s.kind == "node"} == {"m9", "m20"}
    summary = quantize_summary(kept)
    assert "2 of 30 groups in float, 6.7% of the multiply-adds" in " ".join(summary.split())
    assert "MatMul m9" in summary
    sound = onnxfq.quantize(chain(), data)
    assert not sound.trial("protected").is_kept and not any(s.kind == "node" for s in sound.plan.skipped)
    assert output_db(sound) >= output_db(plain_quantize(chain(), data))  # 16 samples make few gains sure


@pytest.mark.parametrize("accuracy", [onnxfq.AccuracyTarget(), onnxfq.AccuracyTarget(min_sqnr=15)])
def test_the_reason_names_repair(rows, accuracy: onnxfq.AccuracyTarget) -> None:
    """Layers that repair left in float have their group's figure; an override of the user keeps its words."""
    given = onnxfq.Override(nodes=("m5",), keep_float=True)
    recipe = FIXED.model_copy(update={"overrides": (given,)})
    result = onnxfq.quantize(chain((9, 20), 30), rows, recipe=recipe, accuracy=accuracy)
    groups = {node: group for group in result.sensitivity.groups for node in group.nodes}
    whys = {one.name: one.why for one in result.plan.skipped if one.kind == "node"}
    assert {"m5", "m9", "m20"} <= set(whys)
    assert whys.pop("m5") == f"kept in float by an override of recipe {DEFAULT_RECIPE}"
    for node, why in whys.items():
        assert why == f"kept in float by repair: alone {groups[node].alone_db:.1f} dB"
    assert "kept in float by repair: alone " in quantize_summary(result)


def test_another_calibrator_first() -> None:
    """A rare value that no output depends on: the outputs tell what no statistics can."""
    rng, size = np.random.default_rng(0), 2048
    weight = rng.normal(size=(size, 8)).astype(np.float32)
    weight[0] = 0
    model = build(f"g (float[1,{size}] x) => (float[1,8] y) {{ [mm] y = MatMul (x, w) }}", {"w": weight})
    data = [{"x": rng.normal(size=(1, size)).astype(np.float32)} for _ in range(32)]
    for feed in data:
        feed["x"][0, 0] = 60
    nearest = onnxfq.load_recipe(DEFAULT_RECIPE).override(weights={"rounding": "nearest"})
    asked = onnxfq.quantize(model, data, recipe=nearest.override(activations={"calibrator": "mse"}))
    assert not asked.trial("calibrator").is_needed and output_db(asked) < 20
    chosen = onnxfq.quantize(model, iter(data), recipe=nearest)  # read only once
    assert chosen.trial("calibrator").is_kept and output_db(chosen) > 30
    assert chosen.recipe.activations.calibrator.name == "entropy" and not chosen.recipe.overrides
    entropy = nearest.override(activations={"calibrator": "entropy"})
    assert chosen.encodings == onnxfq.quantize(model, data, recipe=entropy).encodings
    assert "activations are calibrated by entropy" in quantize_summary(chosen)
    assert chosen.trial("calibrator").after > 35
    promise = onnxfq.AccuracyTarget(min_sqnr=25)
    promised = onnxfq.quantize(model, data, recipe=nearest, accuracy=promise)
    assert promised.qdq == chosen.qdq and promised.sensitivity is None
    sound = plain_quantize(model, data, recipe=nearest)
    assert not sound.trial("calibrator").is_needed and output_db(sound) < 20


def test_protection_that_does_not_help(data) -> None:
    """Where each layer is more than a tenth of the network, all stay quantized, and the summary says so."""
    result = onnxfq.quantize(chain(), data, recipe=FIXED, accuracy=onnxfq.AccuracyTarget(repair=40))
    assert not result.recipe.overrides and not result.trial("protected").is_kept
    assert result.trial("protected").is_needed and "protected" in quantize_summary(result)


@pytest.fixture(scope="module")
def labels(data) -> np.ndarray:
    """The classes that the float model finds."""
    session = Session(chain(), 1)
    return np.array([session.run(feed)[0].argmax() for feed in data])


def share_right(outputs, labels) -> float:
    """A metric of the user: the share of right classes."""
    return float(np.mean([made["y"].argmax() == label for made, label in zip(outputs, labels, strict=True)]))


def mean_maximum(outputs, feeds) -> float:
    """A metric of the user without labels; it gets the feeds."""
    return float(
        np.mean([made["y"].max() + 0 * f["x"][0, 0] for made, f in zip(outputs, feeds, strict=True)])
    )


def test_a_promised_drop_is_kept(data, labels) -> None:
    """The metric, or top-1 of the labels, falls by at most the promise on the half that proves."""
    broken = plain_quantize(chain((3, 6)), data, recipe=FIXED)
    right = score_models(chain(), {"int8": broken.simulation}, data, labels=labels)
    assert right.accuracy == 1 and right.candidates[0].accuracy < 0.9
    for promise in (
        onnxfq.AccuracyTarget(max_drop=0, labels=labels),
        onnxfq.AccuracyTarget(max_drop=0, labels=labels, metric=share_right),
        onnxfq.AccuracyTarget(max_drop=0.01, metric=mean_maximum),
    ):
        kept = onnxfq.quantize(chain((3, 6)), data, recipe=FIXED, accuracy=promise)
        assert {"m3", "m6"} & {s.name for s in kept.plan.skipped if s.kind == "node"}
        assert kept.sensitivity.remedy.before < kept.sensitivity.remedy.reached >= -promise.max_drop
    sound = onnxfq.quantize(
        chain(), data, recipe=FIXED, accuracy=onnxfq.AccuracyTarget(max_drop=0, labels=labels)
    )
    assert sound.sensitivity is None


def two_branches() -> onnx.ModelProto:
    """A large output with little relative noise next to a tiny one that int8 ruins."""
    rng = np.random.default_rng(5)
    large, tiny = rng.normal(size=(2, WIDTH, WIDTH)).astype(np.float32)
    tiny[3] /= FACTOR
    text = f"""g (float[N,{WIDTH}] x, float[N,{WIDTH}] z) => (float[N,{2 * WIDTH}] y) {{
        [large] a = MatMul (x, w0) [tiny] b = MatMul (z, w1) c = Concat <axis = 1> (a, b) y = Relu (c) }}"""
    return build(text, {"w0": large * 1000, "w1": tiny})


def tiny_class(outputs, labels) -> float:
    """A metric of the user: the share of right classes of the tiny output."""
    made = [one["y"][:, WIDTH:].argmax(1) for one in outputs]
    return float(np.mean(np.concatenate(made) == labels))


def test_ranked_by_a_metric(tmp_path: Path, data, capfd: pytest.CaptureFixture[str]) -> None:
    """The metric of each group measures a model with it alone, or all but it; it goes before the SQNR."""
    proto, session = two_branches(), Session(two_branches(), 1)
    feeds = [{"x": feed["x"], "z": feed["x"] * np.where(np.arange(WIDTH) == 3, FACTOR, 1)} for feed in data]
    feeds = [{name: array.astype(np.float32) for name, array in feed.items()} for feed in feeds]
    labels = np.array([session.run(feed)[0][0, WIDTH:].argmax() for feed in feeds])
    options = onnxfq.RunOptions(batch=1)
    found = onnxfq.sensitivity(proto, feeds, metric=tiny_class, labels=labels, options=options)
    assert [group.nodes for group in found.groups] == [("tiny",), ("large",)]
    assert found.groups[0].noise < found.groups[1].noise and found.by_gain() == [0, 1]
    assert found.metric is not None and found.metric.reference == 1
    mine = sorted(sorted(range(len(feeds)), key=lambda at: sample_digest(feeds[at]))[::2])
    half, truth = [feeds[at] for at in mine], labels[mine]
    for group in found.groups:
        for value, nodes in (
            (group.metric_rest, group.nodes),
            (group.metric, {"tiny", "large"} - {*group.nodes}),
        ):
            override = onnxfq.Override(nodes=tuple(nodes), keep_float=True)
            recipe = onnxfq.load_recipe("tensorrt-int8").model_copy(update={"overrides": (override,)})
            made = Session(plain_quantize(proto, feeds, recipe=recipe, options=options).simulation)
            outputs = ({"y": made.run(feed)[0]} for feed in half)
            assert value == pytest.approx(tiny_class(outputs, truth))
    same = onnxfq.sensitivity(proto, feeds, metric=lambda outputs, feeds: len([*outputs]), options=options)
    assert [group.nodes for group in same.groups] == [("large",), ("tiny",)]
    with pytest.raises(DataError, match="the promise has a metric already"):
        promise = onnxfq.AccuracyTarget(max_drop=1, labels=labels)
        onnxfq.sensitivity(proto, feeds, accuracy=promise, labels=labels)

    onnx.save(proto, tmp_path / "m.onnx")
    np.savez(tmp_path / "d.npz", **{n: np.concatenate([feed[n] for feed in feeds]) for n in "xz"})
    np.save(tmp_path / "l.npy", labels)
    line = ["sensitivity", str(tmp_path / "m.onnx"), "--data", str(tmp_path / "d.npz"), "--batch", "1"]
    named = ["--labels", str(tmp_path / "l.npy"), "--metric", f"{__name__}:tiny_class"]
    assert main([*line, *named, "-o", str(tmp_path / "s.json")]) == 0
    text = capfd.readouterr().out
    assert f"metric {__name__}:tiny_class: float 1, all quantized" in text and "1 of 2 groups drop" in text
    document = json.loads((tmp_path / "s.json").read_text())
    assert [g["metric"] for g in document["groups"]] == [g.metric for g in found.groups]
    assert Sensitivity.model_validate(document).metric.quantized == found.metric.quantized
    assert main([*line, *named, "--max-drop", "0.1", "--json"]) == 0
    assert json.loads(capfd.readouterr().out)["remedy"]["kept"] == [0]
    assert main([*line, "--metric", "no:where"]) == 1 and "cannot import 'no'" in capfd.readouterr().err


def test_a_rise_of_the_metric_is_chance() -> None:
    """Drops up to the largest rise rank nothing."""
    values = MetricValues(name="m", reference=0.8, quantized=0.7, chance=0.02)
    assert [values.clear_drop(v) > 0 for v in (None, 0.82, 0.8, 0.781, 0.77)] == [False] * 4 + [True]


@pytest.mark.parametrize("fallback", ["weights", "int16"])
def test_fallbacks(rows, fallback) -> None:
    """Groups outside the recipe get quantized weights alone, or the wider format."""
    promise = onnxfq.AccuracyTarget(min_sqnr=10, fallback=fallback)
    recipe = onnxfq.load_recipe("onnxruntime-int8").override(
        activations={"calibrator": "minmax", "equalize": "none"}, weights={"rounding": "gptq"}
    )
    kept = onnxfq.quantize(chain((3, 6)), rows, recipe=recipe, accuracy=promise)
    readers = {use.node: p for p in kept.plan.activations for use in p.uses}
    weights_of = {use.node for p in kept.plan.weights for use in p.uses}
    assert {"m3", "m6"} <= weights_of and output_db(kept) >= 10
    assert kept.sensitivity is not None and kept.sensitivity.remedy is not None
    changed = {node for at in kept.sensitivity.remedy.kept for node in kept.sensitivity.groups[at].nodes}
    assert changed and changed & {"m3", "m6"}
    if fallback == "weights":
        assert not changed & readers.keys()
    else:
        assert {readers[name].spec.qtype.name for name in changed} == {"int16"}


def eight_layers(turned: int | None = None) -> onnx.ModelProto:
    """Return eight MatMul, the third with a weight of heavy tails; one behind a Transpose."""
    rng = np.random.default_rng(3)
    names = [f"w{n}" for n in range(8)]
    values = {n: rng.normal(0, 0.1, (256, 256)).astype(np.float32) for n in names}
    values["w2"][rng.random((256, 256)) < 0.01] *= 60  # a weight of heavy tails loses most
    lines = " ".join(f"[m{n}] h{n + 1} = MatMul (h{n}, {'v' if n == turned else 'w'}{n})" for n in range(8))
    lines = f"h0 = Identity (x) {lines} y = Identity (h8)"
    if turned is not None:
        lines = f"v{turned} = Transpose <perm = [1, 0]> (w{turned}) {lines}"
    return build(f"g (float[N,256] x) => (float[N,256] y) {{ {lines} }}", values)


@pytest.mark.parametrize(
    ("recipe", "fallback", "wide", "turned", "limits"),
    [
        ("tensorrt-int4", "tensorrt-int8-weights", "int8", 5, {4: 0, 5: 2, 8: 8}),
        ("tensorrt-nvfp4", "tensorrt-fp8", "float8e4m3fn", None, {5: 2}),
    ],
)
def test_an_average_of_bits(recipe, fallback, wide, turned, limits) -> None:
    """The layers with the most noise get the wider recipe, as many as the average allows.

    A weight behind a Transpose, as of layer `turned`, belongs to its MatMul.
    """
    rng = np.random.default_rng(4)
    feeds = [{"x": rng.normal(size=(1, 256)).astype(np.float32)} for _ in range(4)]
    # Other methods would learn four samples by heart.
    recipe = whole_recipe(recipe).override(weights={"rounding": "nearest"})
    plain = plain_quantize(eight_layers(turned), feeds, recipe=recipe)
    for limit, widened in limits.items():
        promise = onnxfq.AccuracyTarget(weight_bits=limit, fallback=fallback)
        mixed = onnxfq.quantize(eight_layers(turned), feeds, recipe=recipe, accuracy=promise)
        formats = {p.uses[0].node: p.spec.qtype.name for p in mixed.plan.weights}
        wider = {node for node, qtype in formats.items() if qtype == wide}
        assert len(wider) == widened and len(formats) == 8
        assert mixed.trial("promised").promised.value == limit
        if widened:
            assert mixed.sensitivity.groups[0].nodes[0] in wider
            assert "m2" in wider or wide != "int8"  # blocks of 16 contain a tail
            assert output_db(mixed) > output_db(plain)
        else:
            assert output_db(mixed) == output_db(plain)
    with pytest.raises(RecipeError, match="gives weights 4 bits on average, and at most 3 were promised"):
        promise = onnxfq.AccuracyTarget(weight_bits=3, fallback=fallback)
        onnxfq.quantize(eight_layers(turned), feeds, recipe=recipe, accuracy=promise)


def test_a_size_of_the_file(tmp_path: Path) -> None:
    """The file is as large as was promised at most, and not much smaller; more formats give more dB."""
    rng, output = np.random.default_rng(4), tmp_path / "q.onnx"
    feeds = [{"x": rng.normal(size=(1, 256)).astype(np.float32)} for _ in range(4)]
    recipe = onnxfq.load_recipe("tensorrt-int4").override(weights={"rounding": "nearest"})
    reached, limit = [], 600_000
    for fallback in ("float", "tensorrt-int8-weights,float"):
        promise = onnxfq.AccuracyTarget(max_bytes=limit, fallback=fallback)
        made = onnxfq.quantize(eight_layers(), feeds, output, recipe=recipe, accuracy=promise)
        size = output.stat().st_size
        assert limit - 4 * 256 * 256 < size <= limit
        assert made.trial("promised").promised.value == pytest.approx(size / 1e6, rel=1e-3)
        reached.append(output_db(made))
        assert "a file of 0.5" in made.sensitivity.remedy_text()
    assert reached[1] > reached[0] + 1
    everything = onnxfq.AccuracyTarget(max_bytes=10**9)
    made = onnxfq.quantize(eight_layers(), feeds, recipe=recipe, accuracy=everything)
    assert len(made.plan.weights) == 1  # one stays, else nothing would be quantized
    with pytest.raises(RecipeError, match=r"gives a file of 0.2807 MB, and at most 0.1 were promised"):
        promise = onnxfq.AccuracyTarget(max_bytes=100_000)
        onnxfq.quantize(eight_layers(), feeds, recipe=recipe, accuracy=promise)


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"max_drop": -1, "labels": np.zeros(2)}, "max_drop is -1; give a number of at least 0"),
        ({"max_drop": 1, "metric": "share right"}, "must be package.module:function"),
        ({"weight_bits": 4.5}, "weight_bits needs the wider format of some layers; give fallback"),
        ({"weight_bits": 4.5, "fallback": "int8,float"}, "weight_bits needs the wider format"),
        ({"min_sqnr": 20, "fallback": "int61"}, "unknown qtype 'int61'"),
        ({"min_sqnr": 20, "fallback": "float, int61"}, "unknown qtype 'int61'"),
        (
            {"fallback": "float8e4m3fn, weights"},
            "repair gives layers one format, and fallback names",
        ),
        ({"max_bytes": -5}, "max_bytes is -5; give a number of at least 1"),
        ({"min_sqnr": math.nan}, "min_sqnr is nan; give a number of at least 0"),
        ({"max_bytes": 9, "weight_bits": 4.5}, "a promise is min_sqnr, max_drop, weight_bits or max_bytes"),
    ],
)
def test_promises_that_make_no_sense(fields, words) -> None:
    """One line each, before anything runs."""
    with pytest.raises(onnxfq.OnnxfqError, match=words):
        onnxfq.AccuracyTarget(**fields)


def test_what_does_not_fit(data) -> None:
    """No sample, a number of labels other than the rows, and labels of data that is read once are errors."""
    with pytest.raises(DataError, match="samples is 0; give at least 1"):
        onnxfq.sensitivity(chain(), data, samples=0)
    with pytest.raises(DataError, match="15 labels for at least 16 rows"):
        onnxfq.quantize(chain(), data, accuracy=onnxfq.AccuracyTarget(max_drop=1, labels=np.zeros(15, int)))
    with pytest.raises(DataError, match="can be read only once"):
        onnxfq.quantize(
            chain(), iter(data), accuracy=onnxfq.AccuracyTarget(max_drop=1, labels=np.zeros(16, int))
        )


def test_a_drop_on_the_command_line(tmp_path: Path, data, labels, capfd: pytest.CaptureFixture[str]) -> None:
    """Labels and limits are read; the summary names the layers; options that do nothing are errors."""
    onnx.save(chain((3, 6)), tmp_path / "m.onnx")
    np.savez(tmp_path / "d.npz", x=np.concatenate([feed["x"] for feed in data]))
    np.save(tmp_path / "l.npy", labels)
    line = ["quantize", str(tmp_path / "m.onnx"), "--data", str(tmp_path / "d.npz")]
    line += ["-o", str(tmp_path / "q.onnx")]
    promise = ["--max-drop", "0.5", "--labels", str(tmp_path / "l.npy")]
    named = ["--calibrator", "minmax", "--equalize", "none", "--rounding", "nearest"]
    assert main([*line, *named, *promise, "--limit", "12"]) == 0
    printed = " ".join(capfd.readouterr().out.split())
    assert "points of top-1 against float, wanted at least -0.5" in printed
    assert main([*line, "--fallback", "weights"]) == 2
    assert "--fallback has no effect without a promise" in capfd.readouterr().err
    assert main([*line, "--repair", "some"]) == 2
    assert "--repair takes off, auto, thorough or a number of dB, got 'some'" in capfd.readouterr().err
    assert main([*line, "--repair", "off"]) == 0
    assert "protected" not in capfd.readouterr().out


def test_weights_alone_are_protected_on_request(data) -> None:
    """Few bits of weights alone make noise in all layers: no layer is looked for unless dB are asked for."""
    weights = {"qtype": "int4", "granularity": "per_tensor"}
    recipe = onnxfq.Recipe.model_validate(
        {"name": "w4", "target": "onnxruntime", "activations": None, "weights": weights}
    )
    for protect, ranked in (("auto", False), (20.0, True)):
        found = onnxfq.quantize(
            chain((3,)), data, recipe=recipe, accuracy=onnxfq.AccuracyTarget(repair=protect)
        )
        assert found.evaluation is not None and found.evaluation.candidates[0].outputs[0].sqnr_db < 20
        assert (found.sensitivity is not None) == ranked
    with pytest.raises(DataError, match="repair is 'always'; give dB, None, 'auto' or 'thorough'"):
        onnxfq.quantize(chain(()), data, accuracy=onnxfq.AccuracyTarget(repair="always"))  # type: ignore[arg-type]
