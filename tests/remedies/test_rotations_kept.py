"""The remedy `rotate`: asked for, named, tried for a loss, and refused with a reason."""

from __future__ import annotations

import re
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest
from builders import build, plain_quantize, weights, with_constants
from transformer_families import WIDTH, WORDS, build_family, draw_feed

import onnxfq
from onnxfq.errors import DataError, ModelError
from onnxfq.execution.same_outputs import largest_difference
from onnxfq.graph.io.load import load
from onnxfq.passes.rotate import Rotated, rotate
from onnxfq.remedies.rotate import EXACT
from onnxfq.targets.recipes import load_recipe

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "models"))  # not an installed package

from networks.decoder import DecoderShape  # noqa: E402
from networks.genai_decoder import write_genai_decoder  # noqa: E402

INT8 = load_recipe("tensorrt-int8").override(
    weights={"rounding": "nearest"}, activations={"calibrator": "minmax"}
)
FEEDS = [draw_feed("GPT-2 written out", seed) for seed in range(40)]


def decoder(layers: int = 2) -> onnx.ModelProto:
    """Return a decoder whose words have one channel of 150 times the others, which products read less of."""

    def change(name: str, array: np.ndarray) -> np.ndarray:
        values = array.copy()
        if values.shape == (WORDS, WIDTH):
            values[:, 3] *= 150
        elif values.ndim == 2 and len(values) == WIDTH:
            values[3] /= 150
        return values

    return with_constants(build_family("GPT-2 written out", layers), change)


def worst_db(result: onnxfq.QuantizeResult) -> float:
    """Return the SQNR of a result."""
    return min(one.sqnr_db for one in result.evaluation.candidates[0].outputs)


@pytest.fixture(scope="module")
def plain() -> onnxfq.QuantizeResult:
    """The decoder without rotations."""
    return plain_quantize(decoder(), FEEDS, recipe=INT8)


def test_asked_for_it_is_kept_where_unseen_samples_gain(plain: onnxfq.QuantizeResult) -> None:
    """It runs without repair; the Q/DQ model has no more nodes, and the trial says what turned."""
    asked = plain_quantize(decoder(), FEEDS, recipe=INT8.override(rotate="auto"))
    trial = asked.trial("rotate")
    assert trial.is_kept and worst_db(asked) > worst_db(plain) + 1
    assert trial.details == ("12 x 8 channels turned", "1 x 24 channels turned")
    assert len(asked.qdq.graph.node) == len(plain.qdq.graph.node)
    assert not plain.trial("rotate").is_needed


def test_it_is_tried_for_a_loss_alone() -> None:
    """Outputs at the aim need nothing; below it the judge compares it with other remedies."""
    tried = {
        aim: onnxfq.quantize(decoder(1), FEEDS[:16], recipe=INT8, accuracy=onnxfq.AccuracyTarget(repair=aim))
        for aim in (10.0, 40.0)
    }
    assert tried[10.0].trial("rotate").why == "the outputs have 10 dB"
    assert not tried[10.0].trial("rotate").is_needed and tried[40.0].trial("rotate").is_needed


def test_named_it_needs_no_trial(plain: onnxfq.QuantizeResult) -> None:
    """All places turn before anything is observed, and notes of the model list them."""
    named = plain_quantize(decoder(), FEEDS, recipe=INT8.override(rotate="always"))
    assert worst_db(named) > worst_db(plain) + 1
    assert "rotated: 1 x 24 channels turned" in named.staged.notes
    assert largest_difference(load(decoder()), named.staged, FEEDS[:4], 1) < EXACT


def test_it_changes_the_model_that_statistics_are_of(plain: onnxfq.QuantizeResult) -> None:
    """Statistics of the model as it is are refused."""
    sources = onnxfq.Sources(statistics=plain.statistics)
    with pytest.raises(DataError, match="turns channels .rotate: always., and statistics or encodings"):
        plain_quantize(decoder(), recipe=INT8.override(rotate="always"), sources=sources)


def test_another_function_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """A fault in the matrices shows in the outputs: nothing is kept, and a name is an error."""

    def damage(*given: object) -> Rotated:
        made = rotate(*given)
        first = next(one.name for one in made.model.proto.graph.initializer if len(one.dims) == 2)
        proto = with_constants(made.model.proto, lambda name, array: array * 1.01 if name == first else array)
        return replace(made, model=replace(made.model, proto=proto))

    monkeypatch.setattr("onnxfq.remedies.rotate.rotate", damage)
    asked = plain_quantize(decoder(1), FEEDS[:16], recipe=INT8.override(rotate="auto"))
    assert not asked.trial("rotate").is_kept
    assert re.match(r"an output differs by .* of its largest value, 1e-05 at most", asked.trial("rotate").why)
    with pytest.raises(ModelError, match="cannot be rotated: an output differs by"):
        plain_quantize(decoder(1), FEEDS[:16], recipe=INT8.override(rotate="always"))


def test_without_a_place_the_reason_is_told() -> None:
    """The channels behind an activation stay as they are."""
    proto = build(
        "g (float[N,8] x) => (float[N,4] y) { [a] h = MatMul (x, w) r = Relu (h) [b] y = MatMul (r, v) }",
        {"w": weights(8, 8), "v": weights(8, 4)},
    )
    feeds = [{"x": weights(2, 8, seed=seed)} for seed in range(24)]
    made = plain_quantize(proto, feeds, recipe=INT8.override(rotate="auto"))
    assert made.trial("rotate").why == "no channels can turn"


def test_post_norms_are_told() -> None:
    """BERT has heads that turn, and a stream that does not."""
    feeds = [draw_feed("BERT", seed) for seed in range(24)]
    recipe = INT8.override(rotate="always")
    made = plain_quantize(build_family("BERT"), feeds, recipe=recipe)
    told = [note for note in made.staged.notes if note.startswith("rotated: ")]
    assert told[0] == "rotated: 12 x 8 channels turned"
    assert "does not turn: the gain of 'layernormalization_2' is in front of Add" in told[1]


def test_the_stream_of_a_genai_folder_turns(tmp_path: Path) -> None:
    """Logits and caches stay as they were, so a turned decoder can continue from any cache."""
    folder = write_genai_decoder(tmp_path / "decoder", DecoderShape(64, 2, 4, 2, 96, 100, 16))
    caches = {f"past_key_values.{n}.{kind}": (1, 2, 3, 16) for n in range(2) for kind in ("key", "value")}
    feeds = [
        {
            "input_ids": np.random.default_rng(seed).integers(0, 100, (1, 8)),
            "attention_mask": np.ones((1, 11), np.int64),
            **{name: weights(*shape, seed=seed) for name, shape in caches.items()},
        }
        for seed in range(8)
    ]
    recipe = load_recipe("genai-int4").override(rotate="always")
    made = plain_quantize(folder, feeds, tmp_path / "turned", recipe=recipe)
    assert "rotated: 1 x 64 channels turned" in made.staged.notes
    assert largest_difference(load(folder / "model.onnx"), made.staged, feeds, 1) < EXACT
    assert (tmp_path / "turned" / "genai_config.json").is_file()
