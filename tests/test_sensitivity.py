"""`sensitivity`: switches that do what they say, planted layers found, a remedy that is measured."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import onnx
import pytest
import yaml
from builders import BUILDERS, build, conv_relu, feed_for, stage, weights

import onnxfq
from onnxfq.cli.main import main
from onnxfq.documents.sensitivity import Sensitivity
from onnxfq.errors import DataError
from onnxfq.graph.patterns.logits import find_logits
from onnxfq.passes.insert_fake_quantize import ENABLED_INPUT
from onnxfq.runtime.session import Session
from onnxfq.stages.insert import insert_fake_quantize

LAYERS, WIDTH, FACTOR = 8, 24, 2000.0


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


def chain(planted: tuple[int, ...] = ()) -> onnx.ModelProto:
    """Eight MatMul with Relu between; planted layers read a channel times 2000, the function is the same."""
    rng = np.random.default_rng(5)
    made = [rng.normal(0, 1.4 / np.sqrt(WIDTH), (WIDTH, WIDTH)).astype(np.float32) for _ in range(LAYERS)]
    for layer in planted:
        made[layer - 1][:, 3] *= FACTOR
        made[layer][3] /= FACTOR
    lines = ["h0 = Identity (x)"]
    for layer in range(LAYERS):
        lines += [f"[m{layer}] a{layer} = MatMul (h{layer}, w{layer})", f"h{layer + 1} = Relu (a{layer})"]
    text = (
        f"g (float[N,{WIDTH}] x) => (float[N,{WIDTH}] y) {{ {' '.join(lines)} y = Softmax (a{LAYERS - 1}) }}"
    )
    return build(text, {f"w{layer}": made[layer] for layer in range(LAYERS)})


@pytest.fixture(scope="module")
def data() -> list[dict[str, np.ndarray]]:
    """Sixteen samples."""
    rng = np.random.default_rng(1)
    return [{"x": rng.normal(size=(1, WIDTH)).astype(np.float32)} for _ in range(16)]


@pytest.mark.parametrize("planted", [(2,), (3, 6)])
def test_planted_layers_come_first(data, planted) -> None:
    """Two layers that are both fatal are first and second; the remedy is them alone, and it is measured."""
    found = onnxfq.sensitivity(chain(planted), data, samples=4, min_sqnr=20)
    assert {node for group in found.groups[: len(planted)] for node in group.nodes} == {
        f"m{n}" for n in planted
    }
    assert found.sqnr_db < 15 and found.outputs == (f"a{LAYERS - 1}",)
    assert found.remedy is not None and found.remedy.groups == len(planted) and found.remedy.reached
    assert found.remedy.multiplies == pytest.approx(len(planted) / LAYERS)
    recipe = onnxfq.load_recipe("tensorrt-int8")
    kept = recipe.model_copy(update={"overrides": (found.override(len(planted)),)})
    result = onnxfq.quantize(chain(planted), data, recipe=kept)
    assert {s.name for s in result.plan.skipped if s.kind == "node"} == {f"m{n}" for n in planted}
    sound = onnxfq.sensitivity(chain(), data, samples=4, min_sqnr=20)
    assert sound.remedy is not None and sound.remedy.groups == 0 and sound.sqnr_db > 20


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
    """The measured tensor is what a final softmax or sigmoid reads, behind operators that move elements."""
    proto = build(
        """g (float[2,8] x) => (float[8,2] y, float[2,8] z) { a = Neg (x) b = Sigmoid (a)
            y = Transpose (b) z = Relu (x) }"""
    )
    assert find_logits(proto.graph) == ["a", "z"]


def test_the_command(tmp_path: Path, data, capfd: pytest.CaptureFixture[str]) -> None:
    """It prints the worst layers by node, and writes all groups and a recipe that `quantize` takes."""
    onnx.save(chain((3, 6)), tmp_path / "m.onnx")
    np.savez(tmp_path / "d.npz", x=np.concatenate([feed["x"] for feed in data]))
    files = [str(tmp_path / "m.onnx"), "--data", str(tmp_path / "d.npz")]
    written = ["-o", str(tmp_path / "s.json"), "--recipe-out", str(tmp_path / "fix.yaml")]
    assert main(["sensitivity", *files, *written, "--samples", "4"]) == 0
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


def test_bad_samples(data) -> None:
    """Fewer than one sample is an error."""
    with pytest.raises(DataError, match="samples is 0; give at least 1"):
        onnxfq.sensitivity(chain(), data, samples=0)


def test_a_promised_sqnr_is_kept(data) -> None:
    """The planted layers alone stay in float; other feeds than the choosing ones prove it."""
    broken = onnxfq.quantize(chain((3, 6)), data)
    kept = onnxfq.quantize(chain((3, 6)), data, min_sqnr=25)
    assert broken.sensitivity is None and kept.sensitivity is not None
    assert {s.name for s in kept.plan.skipped if s.kind == "node"} == {"m3", "m6"}
    assert kept.recipe.overrides[-1].keep_float and kept.sensitivity.remedy.reached_db >= 25
    assert (
        kept.evaluation.candidates[-1].outputs[0].sqnr_db
        > broken.evaluation.candidates[-1].outputs[0].sqnr_db
    )
    sound = onnxfq.quantize(chain(), data, min_sqnr=20)
    assert sound.qdq == onnxfq.quantize(chain(), data).qdq and sound.sensitivity is None


def test_a_promise_that_cannot_be_kept(tmp_path: Path, data, capfd: pytest.CaptureFixture[str]) -> None:
    """One line with the best that was reached, and nothing is written."""
    onnx.save(chain(), tmp_path / "m.onnx")
    np.savez(tmp_path / "d.npz", x=np.concatenate([feed["x"] for feed in data]))
    line = ["quantize", str(tmp_path / "m.onnx"), "--data", str(tmp_path / "d.npz")]
    assert main([*line, "-o", str(tmp_path / "q.onnx"), "--min-sqnr", "200"]) == 1
    text = capfd.readouterr().err
    assert "cannot keep 200 dB" in text and "8 of 8 groups" in text and not (tmp_path / "q.onnx").exists()
    assert main([*line, "-o", str(tmp_path / "q.onnx"), "--min-sqnr", "45"]) == 0
    assert "protected  " in capfd.readouterr().out
