"""Several recipes in one call: one pass over the data, and for each recipe what it gives alone."""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest
from builders import build, conv_relu, downsample, plain_quantize, two_branch, weights

from onnxfq.documents.recipe import Recipe
from onnxfq.errors import DataError, ModelError, OutputError, RecipeError
from onnxfq.graph.model import Model
from onnxfq.graph.normalize.shapes import add_shapes
from onnxfq.judging.candidate import Sources
from onnxfq.quantizing.pipeline import QuantizeResult, RecipeOutcome, quantize
from onnxfq.targets import target as targets
from onnxfq.targets.recipes import load_recipe

BOTH: list[str | Path | Recipe] = ["tensorrt-int8", "onnxruntime-int8"]
FLOAT8 = load_recipe("tensorrt-fp8").model_copy(update={"small_shapes": "quantize"})
SAMPLES = np.random.default_rng(0).normal(size=(40, 4, 6, 6)).astype(np.float32)


class Passes:
    """Data that counts how often it is read from its start."""

    def __init__(self) -> None:
        self.count = 0

    def __iter__(self) -> Iterator[dict[str, np.ndarray]]:
        """Yield the samples."""
        self.count += 1
        for sample in SAMPLES:
            yield {"x": sample[None]}


def pooled() -> onnx.ModelProto:
    """An AveragePool without padding, which TensorRT's preparation changes."""
    return build(
        """g (float[N,4,6,6] x) => (float[N,4,4,4] y) {
            [conv1] c = Conv <pads = [1,1,1,1]> (x, w1)
            [pool] p = AveragePool <kernel_shape = [3,3]> (c)
            [conv2] y = Conv <pads = [1,1,1,1]> (p, w2) }""",
        {"w1": weights(4, 4, 3, 3, seed=1), "w2": weights(4, 4, 3, 3, seed=2)},
    )


def rename(model: Model) -> Model:
    """Return `model` with another name for each inner tensor."""
    proto = onnx.ModelProto()
    proto.CopyFrom(model.proto)
    inner = {name for node in proto.graph.node for name in node.output} - {o.name for o in proto.graph.output}
    for node in proto.graph.node:
        node.input[:] = [f"{name}/own" if name in inner else name for name in node.input]
        node.output[:] = [f"{name}/own" if name in inner else name for name in node.output]
    del proto.graph.value_info[:]
    add_shapes(proto)
    return replace(model, proto=proto)


@functools.cache
def quantize_alone(content: bytes, recipe: Recipe) -> QuantizeResult:
    """Return the result of a call with one recipe."""
    return plain_quantize(onnx.load_from_string(content), {"x": SAMPLES}, recipe=recipe)


def assert_same_as_alone(outcome: RecipeOutcome, recipe: str | Path | Recipe, proto: onnx.ModelProto) -> None:
    """The model, the statistics and the scores are those of a call with this recipe alone, to the bit."""
    alone, shared = quantize_alone(proto.SerializeToString(), load_recipe(recipe)), outcome.unwrap()
    assert shared.qdq.SerializeToString(deterministic=True) == alone.qdq.SerializeToString(deterministic=True)
    assert shared.encodings == alone.encodings
    assert shared.statistics.data == alone.statistics.data
    assert list(shared.statistics.values) == list(alone.statistics.values)
    assert shared.evaluation == alone.evaluation


@pytest.mark.sample
def test_the_data_is_read_once() -> None:
    """Four recipes read the data no more often than one."""
    for recipes in (BOTH[:1], [*BOTH, FLOAT8, "mxfp8"]):
        data = Passes()
        outcomes = plain_quantize(downsample(), data, recipe=recipes)
        assert [outcome.error for outcome in outcomes] == [None] * len(recipes)
        assert data.count == 1


def test_each_recipe_gives_what_it_gives_alone() -> None:
    """Formats, targets and dynamic scales in one call change no bit of each other; a generator is enough."""
    recipes = [*BOTH, FLOAT8, "mxfp8"]
    outcomes = plain_quantize(downsample(), iter(Passes()), recipe=recipes)
    for outcome, recipe in zip(outcomes, recipes, strict=True):
        assert_same_as_alone(outcome, recipe, downsample())


def test_ranges_of_channels_are_part_of_their_statistics() -> None:
    """Recipes that scale and that equalize the channels of one tensor share a pass, in any order."""
    text = """g (float[N,4,6,6] x) => (float[] y) {
        [conv1] c = Conv (x, w1) [depth] d = Conv <group = 4> (c, w2) [conv2] y = Conv (d, w3) }"""
    proto = build(text, {"w1": weights(4, 4, 1, 1), "w2": weights(4, 1, 3, 3), "w3": weights(2, 4, 1, 1)})
    recipes = ["tensorrt-int8", "openvino-int8", "onnxruntime-int8"]
    for order in (recipes, recipes[::-1]):
        data = Passes()
        outcomes = plain_quantize(proto, data, recipe=order)
        assert data.count == 1
        for outcome, recipe in zip(outcomes, order, strict=True):
            assert_same_as_alone(outcome, recipe, proto)


def test_repair_is_the_same_too() -> None:
    """Remedies read the same samples as after a pass for one recipe."""
    for outcome in quantize(downsample(), {"x": SAMPLES}, recipe=BOTH)[1:]:
        alone = quantize(downsample(), {"x": SAMPLES}, recipe=outcome.recipe)
        assert outcome.unwrap().qdq.SerializeToString() == alone.qdq.SerializeToString()
        kept = [(trial.remedy, trial.is_kept, trial.before, trial.after) for trial in alone.trials]
        assert [(t.remedy, t.is_kept, t.before, t.after) for t in outcome.unwrap().trials] == kept


def test_what_cannot_share_is_observed_alone(caplog: pytest.LogCaptureFixture) -> None:
    """A calibrator that depends on order, and an equalized model, have another pass and a note."""
    base = load_recipe("onnxruntime-int8")
    recipes: list[str | Path | Recipe] = [
        base,
        base.override(activations={"calibrator": "moving_average"}).model_copy(update={"name": "ordered"}),
        base.override(activations={"equalize": "cross_layer"}).model_copy(update={"name": "equalized"}),
        base.override(activations={"equalize": "none"}).model_copy(update={"name": "plain"}),
    ]
    with caplog.at_level(logging.WARNING):
        outcomes = plain_quantize(downsample(), {"x": SAMPLES}, recipe=recipes)
    alone = [line for line in caplog.messages if "needs another pass" in line]
    assert [line.split()[1] for line in alone] == ["ordered", "equalized"]
    for outcome, recipe in zip(outcomes, recipes, strict=True):
        assert_same_as_alone(outcome, recipe, downsample())


@pytest.mark.grid
@pytest.mark.parametrize("model", [pooled, two_branch])
@pytest.mark.parametrize("recipes", [BOTH, BOTH[::-1]], ids=["first", "second"])
def test_targets_that_prepare_the_model_in_two_forms(
    model: Callable[[], onnx.ModelProto], recipes: list[str | Path | Recipe], caplog: pytest.LogCaptureFixture
) -> None:
    """One pass serves both forms: each recipe has its own plan, and its scales up to a rounding."""
    data = Passes()
    outcomes = plain_quantize(model(), data, recipe=recipes)
    assert data.count == 1 and not [line for line in caplog.messages if "another pass" in line]
    for outcome in outcomes:
        alone = plain_quantize(model(), {"x": SAMPLES}, recipe=outcome.recipe)
        shared = outcome.unwrap()
        assert shared.plan == alone.plan
        for own, other in zip(shared.encodings.encodings, alone.encodings.encodings, strict=True):
            # Ranges are exact sums of two forms of one function in float32, which round at other places.
            assert np.allclose(own.scale, other.scale, rtol=1e-5) and own.tensor == other.tensor


def test_a_form_with_tensors_that_no_other_has(caplog: pytest.LogCaptureFixture) -> None:
    """A target whose form has tensors of its own observes them itself, and a note names one."""
    doubled = replace(targets.target_by_name("onnxruntime"), name="doubled", recipes=(), prepare=rename)
    targets.register_target(doubled)
    recipes: list[str | Path | Recipe] = [
        BOTH[0],
        load_recipe("onnxruntime-int8").model_copy(update={"name": "doubled", "target": "doubled"}),
    ]
    try:
        outcomes = plain_quantize(downsample(), {"x": SAMPLES}, recipe=recipes)
        assert any("recipe doubled needs another pass" in line for line in caplog.messages)
        for outcome, recipe in zip(outcomes, recipes, strict=True):
            assert_same_as_alone(outcome, recipe, downsample())
    finally:
        del targets.TARGETS["doubled"]


def test_one_error_leaves_the_others_alone(tmp_path: Path) -> None:
    """A recipe that fails has its error, and the others their files."""
    onnx.save(downsample(), tmp_path / "m.onnx")
    bad = load_recipe("tensorrt-int8").model_copy(update={"name": "bad", "target": "nowhere"})
    recipes = ["nothing", BOTH[0], bad, BOTH[1]]
    outcomes = plain_quantize(tmp_path / "m.onnx", {"x": SAMPLES}, tmp_path / "out", recipe=recipes)
    assert [outcome.recipe for outcome in outcomes] == ["nothing", "tensorrt-int8", "bad", "onnxruntime-int8"]
    assert [outcome.result is None for outcome in outcomes] == [True, False, True, False]
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == [
        "m.onnxruntime-int8.onnx",
        "m.tensorrt-int8.onnx",
    ]
    for outcome in outcomes[1::2]:
        assert outcome.output is not None and outcome.output.stat().st_size == outcome.bytes
        onnx.checker.check_model(outcome.output, full_check=True)
    with pytest.raises(RecipeError, match="unknown recipe 'nothing'"):
        outcomes[0].unwrap()
    with pytest.raises(RecipeError, match="unknown target 'nowhere'"):
        outcomes[2].unwrap()


def test_faults_of_the_call_are_raised(tmp_path: Path) -> None:
    """What concerns all recipes is one error, and leaves no folder."""
    out = tmp_path / "out"
    with pytest.raises(RecipeError, match="two recipes are called tensorrt-int8"):
        quantize(conv_relu(), {"x": SAMPLES}, out, recipe=["int8", "tensorrt-int8"])
    with pytest.raises(DataError):
        quantize(downsample(), {"z": SAMPLES}, out, recipe=BOTH)
    with pytest.raises(ModelError):
        quantize(tmp_path / "none.onnx", {"x": SAMPLES}, out, recipe=BOTH)
    assert not out.exists()
    with pytest.raises(OutputError, match="into a folder"):
        quantize(downsample(), {"x": SAMPLES}, tmp_path / "out.onnx", recipe=BOTH)
    (tmp_path / "file").touch()
    with pytest.raises(OutputError, match="it is a file; give a folder"):
        quantize(downsample(), {"x": SAMPLES}, tmp_path / "file", recipe=BOTH)


def test_no_input_is_overwritten(tmp_path: Path) -> None:
    """A recipe whose file would replace the model fails, and the model stays as it was."""
    model = tmp_path / "m.onnx"
    onnx.save(downsample(), model)
    (tmp_path / "m.tensorrt-int8.onnx").symlink_to(model)
    before = model.read_bytes()
    failed, written = plain_quantize(model, {"x": SAMPLES}, tmp_path, recipe=BOTH)
    assert isinstance(failed.error, OutputError) and written.output is not None
    assert model.read_bytes() == before


def test_given_statistics_serve_all(tmp_path: Path) -> None:
    """With recorded statistics nothing is observed, as for one recipe."""
    statistics = plain_quantize(downsample(), {"x": SAMPLES}, recipe=BOTH[0]).statistics
    sources = Sources(statistics=statistics)
    for outcome in plain_quantize(downsample(), None, recipe=BOTH[:1], sources=sources):
        alone = plain_quantize(downsample(), None, recipe=outcome.recipe, sources=sources)
        assert outcome.unwrap().qdq.SerializeToString() == alone.qdq.SerializeToString()
