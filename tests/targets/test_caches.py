"""Quantized caches: GroupQueryAttention's own numbers, pairs that prefill and decode share, and refusals."""

from __future__ import annotations

import functools
import json
import re
from pathlib import Path

import ml_dtypes
import numpy as np
import onnx
import onnxruntime
import pytest
from builders import build, plain_quantize, weights
from cached_decoders import HEADS, SIZE, cached_decoder, cached_feeds
from genai_folders import CACHE_HEADS, HEAD_SIZE, decoder, feeds, write_folder

import onnxfq
from onnxfq.cli.main import main
from onnxfq.errors import OnnxfqError
from onnxfq.graph.signature import output_names
from onnxfq.passes.float_caches import with_float_caches
from onnxfq.runtime.session import Session

KEY, VALUE = "past_key_values.0.key", "past_key_values.0.value"


def quantized(base: str, proto: onnx.ModelProto, data: list, qtype: str, granularity: str) -> object:
    """Return the result of a recipe with a cache of this format."""
    recipe = onnxfq.load_recipe(base).override(cache={"qtype": qtype, "granularity": granularity})
    return plain_quantize(proto, data, recipe=recipe.model_copy(update={"activations": None}))


@functools.cache
def of_genai(qtype: str, granularity: str) -> object:
    """Return the result for GenAI's decoder."""
    return quantized("genai-int8", decoder(), feeds(8), qtype, granularity)


def run(proto: onnx.ModelProto, feed: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Return the outputs of a plain session by name."""
    session = onnxruntime.InferenceSession(proto.SerializeToString())
    return dict(zip([one.name for one in session.get_outputs()], session.run(None, feed), strict=True))


def unpack(stored: np.ndarray) -> np.ndarray:
    """Return the integers in a cache of GroupQueryAttention, by the schema: int8, or two of 4 bits plus 8."""
    if stored.dtype == np.int8:
        return stored
    return np.stack([stored & 15, stored >> 4], -1).reshape(*stored.shape[:-1], -1).astype(np.int8) - 8


@pytest.mark.grid
@pytest.mark.parametrize("granularity", ["per_tensor", "per_axis"])
@pytest.mark.parametrize("qtype", ["int8", "int4"])
def test_attention_stores_what_the_simulation_rounds(qtype: str, granularity: str) -> None:
    """A prompt and a token after it: ONNX Runtime's cache and logits are those of the simulation."""
    result = of_genai(qtype, granularity)
    (node,) = (node for node in result.qdq.graph.node if node.op_type == "GroupQueryAttention")
    constants = {one.name: onnx.numpy_helper.to_array(one) for one in result.qdq.graph.initializer}
    shape = (1, CACHE_HEADS, 1, HEAD_SIZE) if granularity == "per_axis" else (1,)
    assert constants[node.input[12]].shape == constants[node.input[13]].shape == shape
    width = HEAD_SIZE // 2 if qtype == "int4" else HEAD_SIZE
    dtype = np.uint8 if qtype == "int4" else np.int8
    feed, simulation = feeds(9)[-1], Session(result.simulation, exact=True)
    names = output_names(result.simulation)
    given = feed | {name: np.zeros((1, CACHE_HEADS, 0, width), dtype) for name in (KEY, VALUE)}
    for tokens in (np.array([[1, 5, 9, 3, 3, 20, 31]]), np.array([[4]])):
        total = np.ones((1, feed[KEY].shape[2] + tokens.shape[1]), np.int64)
        step = {"input_ids": tokens, "attention_mask": total}
        wanted = dict(zip(names, simulation.run(feed | step), strict=True))
        stored = run(result.qdq, given | step)
        for part, scale in (("key", node.input[12]), ("value", node.input[13])):
            numbers = unpack(stored[f"present.0.{part}"])
            np.testing.assert_array_equal(numbers * constants[scale], wanted[f"present.0.{part}"])
            feed = feed | {f"past_key_values.0.{part}": wanted[f"present.0.{part}"]}
            given = given | {f"past_key_values.0.{part}": stored[f"present.0.{part}"]}
        # The kernels sum floats in another order.
        close = 1e-4 * np.abs(wanted["logits"]).max()
        np.testing.assert_allclose(stored["logits"], wanted["logits"], atol=close)


@pytest.mark.parametrize("qtype", ["int8", "int4"])
def test_float_interface(qtype: str) -> None:
    """With float inputs and outputs for its caches the model reads back and stores the same numbers."""
    result = of_genai(qtype, "per_axis")
    wrapped, feed = with_float_caches(result.qdq), feeds(9)[-1]
    first = run(wrapped, feed)
    rest = {"input_ids": np.array([[2]]), "attention_mask": np.ones((1, 13), np.int64)}
    again = run(wrapped, rest | {KEY: first["present.0.key"], VALUE: first["present.0.value"]})
    assert first["present.0.key"].dtype == np.float32
    np.testing.assert_array_equal(again["present.0.key"][:, :, :12], first["present.0.key"])
    assert with_float_caches(decoder()).SerializeToString() == decoder().SerializeToString()


@pytest.mark.parametrize("qtype", ["int8", "int4"])
def test_a_file_of_caches_is_proven(qtype: str) -> None:
    """ONNX Runtime runs a file with its own caches over given keys, as the simulation says."""
    tokens, held = np.random.default_rng(2).integers(0, 40, (8, 1, 5)), feeds(8)
    session = onnxruntime.InferenceSession(decoder().SerializeToString())
    data = []
    for feed, more in zip(held, tokens, strict=True):
        _, key, value = session.run(None, feed)
        total = np.ones((1, key.shape[2] + more.shape[1]), np.int64)
        data.append({"input_ids": more, "attention_mask": total, KEY: key, VALUE: value})
    # The given keys are beyond the new ones, of which mse would cut more.
    cache = {"qtype": qtype, "granularity": "per_axis", "calibrator": "minmax"}
    recipe = onnxfq.load_recipe("genai-int8").override(cache=cache)
    proof = onnxfq.quantize(decoder(), data, recipe=recipe).proof
    # Only the file rounds the given keys too.
    assert proof.samples and not proof.difference and proof.runtime_db > proof.simulated_db - 3


def test_positions_keep_the_range_of_keys() -> None:
    """A channel of a key has the range that the angles of all positions give its pair; values do not."""
    result = of_genai("int8", "per_axis")
    stored = [p.tensor for p in result.plan.placements if p.stored]
    runs = [run(decoder(), feed) for feed in feeds(8)]
    parts = [np.concatenate([one[f"present.0.{part}"] for one in runs], axis=2) for part in ("key", "value")]
    shape = (CACHE_HEADS, 2, HEAD_SIZE // 2)
    found = [(result.encodings[name].scale * 127).reshape(shape) for name in stored]
    wanted = [np.abs(part).max(axis=(0, 2)).reshape(shape) for part in parts]
    (node,) = (node for node in decoder().graph.node if node.op_type == "GroupQueryAttention")
    table = next(one for one in decoder().graph.initializer if one.name == node.input[7])
    angles = np.arccos(onnx.numpy_helper.to_array(table)[1].astype(float)) * table.dims[0]
    turns = np.minimum(angles, np.pi / 2) * np.linspace(0, 1, 2001)[:, None]
    other = wanted[0][:, ::-1]
    turned = (wanted[0] * np.cos(turns[:, None, None]) + other * np.sin(turns[:, None, None])).max(axis=0)
    np.testing.assert_allclose(found[0], np.minimum(turned, np.maximum(wanted[0], other)), rtol=0.01)
    np.testing.assert_allclose(found[1], wanted[1], rtol=0.01)
    assert (found[0][:, 0] != found[0][:, 1]).any() and (found[0][:, 0] == found[0][:, 1]).any()


@pytest.mark.grid
@pytest.mark.parametrize("qtype", ["int8", "float8e4m3fn"])
@pytest.mark.parametrize("granularity", ["per_tensor", "per_axis"])
def test_pairs_of_a_concat(qtype: str, granularity: str) -> None:
    """Tokens one after the other, over the stored numbers, give the logits of all at once."""
    result = quantized("tensorrt-int8-weights", cached_decoder(), cached_feeds(8), qtype, granularity)
    ends = (*result.qdq.graph.input, *result.qdq.graph.output)
    types = {v.name: v.type.tensor_type.elem_type for v in ends}
    wanted = onnx.TensorProto.INT8 if qtype == "int8" else onnx.TensorProto.FLOAT8E4M3FN
    assert {kind for name, kind in types.items() if "past" in name or "present" in name} == {wanted}
    feed = cached_feeds(9)[-1]
    whole = Session(result.simulation, exact=True).run(feed)[0]
    numpy_type = np.int8 if qtype == "int8" else ml_dtypes.float8_e4m3fn
    session = Session(with_float_caches(result.qdq), exact=True)
    caches = {name: np.zeros((1, HEADS, 0, SIZE), np.float32) for name in ("past_key", "past_value")}
    rows = []
    for token in feed["input_ids"][0]:
        outputs = session.run({"input_ids": np.array([[token]]), **caches})
        rows.append(outputs[0][0, 0])
        caches = {"past_key": outputs[1], "past_value": outputs[2]}
    np.testing.assert_allclose(np.stack(rows), whole[0], atol=1e-5 * np.abs(whole).max())
    if qtype == "int8":
        empty = {name: np.zeros((1, HEADS, 0, SIZE), numpy_type) for name in caches}
        assert run(result.qdq, feed | empty)["present_key"].dtype == numpy_type
    if granularity == "per_axis":
        key = result.encodings["present_key"].scale.reshape(2, -1)
        np.testing.assert_array_equal(key[0], key[1])


def centered(**attributes: float) -> tuple[onnxfq.QuantizeResult, onnx.ModelProto]:
    """Return the result with a cache in float8 for a decoder with keys of one mean, and the decoder."""
    proto = decoder()
    (node,) = (node for node in proto.graph.node if node.op_type == "GroupQueryAttention")
    node.attribute.extend(onnx.helper.make_attribute(*one) for one in attributes.items())
    constants = {one.name: one for one in proto.graph.initializer}
    for name, change in (
        ("embed", lambda words: words + 4 * weights(words.shape[1], seed=9)),
        # Large queries, whose scores tell keys apart.
        ("model.layers.0.attn.qkv_proj.MatMul.weight", lambda qkv: np.hstack([2 * qkv[:, :64], qkv[:, 64:]])),
    ):
        array = change(onnx.numpy_helper.to_array(constants[name])).astype(np.float32)
        constants[name].CopyFrom(onnx.numpy_helper.from_array(array, name))
    recipe = onnxfq.load_recipe("genai-int8").override(
        cache={"qtype": "float8e4m3fn", "granularity": "per_axis"},
        overrides=[{"op_types": ["MatMul"], "keep_float": True}],
    )
    target = onnxfq.AccuracyTarget(repair="auto")
    return onnxfq.quantize(proto, feeds(64, 48), recipe=recipe, accuracy=target), proto


@pytest.mark.parametrize("interleaved", [0, 1])
def test_keys_lose_their_mean(interleaved: int) -> None:
    """A Softmax does not see it: ONNX Runtime has the logits of the float model over a text and behind it."""
    result, proto = centered(rotary_interleaved=interleaved)
    trial = result.trial("keys")
    assert trial.is_kept and trial.after > trial.before + 1
    (node,) = (node for node in result.qdq.graph.node if node.op_type == "GroupQueryAttention")
    assert node.input[1].endswith("/centered") and not onnx.helper.get_node_attr_value(node, "do_rotary")
    model = result.candidate.session.model.proto
    first = feeds(9)[-1]
    one = {"input_ids": np.array([[4]]), "attention_mask": np.ones((1, 13), np.int64)}
    caches = [{}, {}]
    for step in (first, one):
        made = [run(each, step | given) for each, given in zip((proto, model), caches, strict=True)]
        wanted = made[0]["logits"]
        # Kernels sum other floats.
        np.testing.assert_allclose(made[1]["logits"], wanted, atol=2e-5 * np.abs(wanted).max())
        caches = [{KEY: each["present.0.key"], VALUE: each["present.0.value"]} for each in made]
    keys = [each[KEY] for each in caches]
    assert np.square(keys[1]).sum() < 0.5 * np.square(keys[0]).sum()


@pytest.mark.parametrize("attribute", [{"softcap": 1.0}, {"smooth_softmax": 1}])
def test_means_that_count_stay(attribute: dict[str, float]) -> None:
    """Keys stay in an attention whose weights change with a number that all scores have."""
    assert "a plain Softmax" in centered(**attribute)[0].trial("keys").why


@pytest.mark.parametrize(
    ("base", "changes"),
    [
        ("genai-int8", {"cache": {"qtype": "int8", "granularity": "per_axis"}}),
        ("tensorrt-int8", {"activations": {"calibrator": "minmax"}}),
    ],
)
def test_prefill_calibrates_decode(base: str, changes: dict[str, dict[str, str]]) -> None:
    """A text read token by token, over its own cache, gives the ranges of the text as a whole.

    Caches have them, and so do all activations with constant scales.
    """
    texts, steps = feeds(4), []
    for text in texts:
        caches = {name: text[name] for name in (KEY, VALUE)}
        for at in range(text["input_ids"].shape[1]):
            mask = np.ones((1, at + 1), np.int64)
            steps.append({"input_ids": text["input_ids"][:, at : at + 1], "attention_mask": mask, **caches})
            outputs = run(decoder(), steps[-1])
            caches = {KEY: outputs["present.0.key"], VALUE: outputs["present.0.value"]}
    ranges = []
    for data in (texts, steps):
        model = onnxfq.load(decoder())
        plan = onnxfq.make_plan(model, onnxfq.load_recipe(base).override(**changes))
        statistics = onnxfq.collect_statistics(model, plan, data)
        encodings = onnxfq.calibrate(model, plan, statistics)
        static = [p.tensor for p in plan.placements if p.role == "activation" and not p.spec.dynamic]
        assert len(static) >= 2
        ranges.append([encodings[tensor].scale for tensor in static])
    # The product of one row sums floats in another order.
    for whole, stepwise in zip(*ranges, strict=True):
        np.testing.assert_allclose(stepwise, whole, rtol=1e-5)


def test_float8_inside_attention() -> None:
    """No kernel on a CPU takes it: the model is written by the schema, which onnx checks, with a note."""
    result = of_genai("float8e4m3fn", "per_tensor")
    kinds = {v.type.tensor_type.elem_type for v in result.qdq.graph.output[1:]}
    assert kinds == {onnx.TensorProto.FLOAT8E4M3FN}
    assert any("no GroupQueryAttention with caches of float8" in note for note in result.evaluation.notes)
    simulation, feed = Session(result.simulation, exact=True), feeds(9)[-1]
    present = simulation.run(feed)[2]
    scale = next(result.encodings[p.tensor] for p in result.plan.placements if "value" in p.tensor).scale
    rounded = (present / scale).astype(ml_dtypes.float8_e4m3fn).astype(np.float32) * scale
    np.testing.assert_array_equal(present, rounded)


PRODUCT = build("g (float[N,64] x) => (float[N,64] y) { y = MatMul (x, w) }", {"w": weights(64, 64)})


@pytest.mark.parametrize(
    ("base", "proto", "data", "lengths"),
    [
        ("genai-int8", decoder(), feeds(6), "at 12 tokens, .* at 48 tokens, .* at 64 tokens"),
        ("tensorrt-int8-weights", cached_decoder(), cached_feeds(6, 4), "at 4 .* at 16 .* at 64 tokens"),
    ],
)
def test_error_by_length(base: str, proto: onnx.ModelProto, data: list, lengths: str) -> None:
    """A note has the error of attention at 1, 4 and 16 times the length of the texts, up to the context."""
    errors = {}
    for qtype in ("int8", "int4"):
        notes = " ".join(quantized(base, proto, data, qtype, "per_tensor").staged.notes)
        assert re.search(f"error of attention over the quantized cache alone: .* {lengths}", notes)
        errors[qtype] = [float(text) for text in re.findall(r"([\d.]+)% at", notes)]
    assert len(errors["int8"]) == 3 and all(
        0 < eight < four for eight, four in zip(errors["int8"], errors["int4"], strict=True)
    )


JOINED = build(
    """g (float[1,T,16] x, float[1,2,P,8] past_key, float[1,2,P,8] past_value)
    => (float[1,T,16] y, float[1,2,C,8] present_key, float[1,2,C,8] present_value) {
    q = MatMul (x, w)
    [attention] y, present_key, present_value = com.microsoft.MultiHeadAttention <num_heads = 2>
        (q, q, q, , , , past_key, past_value) }""",
    {"w": weights(16, 16)},
)


@pytest.mark.parametrize(
    ("proto", "scheme", "reason"),
    [
        (PRODUCT, {}, "has none"),
        (JOINED, {}, "node 'attention': MultiHeadAttention has a cache of floats; leave out --kv"),
        (decoder(), {"qtype": "int6"}, "caches hold int8, int4, float8e4m3fn"),
        (decoder(), {"symmetric": False}, "without zero points"),
        (decoder(), {"granularity": "per_row"}, "granularity"),
    ],
)
def test_refusals(proto: onnx.ModelProto, scheme: dict[str, object], reason: str) -> None:
    """A model without a cache, and a format that no cache has, are errors in one line."""
    with pytest.raises(OnnxfqError, match=reason):
        recipe = onnxfq.load_recipe("genai-int4").override(cache={"qtype": "int8"} | scheme)
        onnxfq.make_plan(onnxfq.load(proto), recipe)


def test_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """`--kv` writes a folder with the cache, and `evaluate` runs it beside the float folder."""
    source, made, tokens = write_folder(tmp_path / "float"), tmp_path / "int8", tmp_path / "tokens.npz"
    rows = feeds(6)
    np.savez(tokens, **{name: np.concatenate([row[name] for row in rows]) for name in rows[0]})
    line = ["quantize", str(source), "--data", str(tokens), "--recipe", "genai-int8", "-o", str(made)]
    assert main([*line, "--repair", "off", "--kv", "int8", "--kv-granularity", "channel"]) == 0
    capsys.readouterr()
    scales = json.loads((made / "kv_cache_scales.json").read_text())
    assert np.shape(scales["scales"]["k_scales"]) == (1, CACHE_HEADS * HEAD_SIZE)
    assert scales["layer_ids"] == [0]
    scored = ["evaluate", str(source), str(made), "--data", str(tokens), "--metric", "perplexity", "--json"]
    assert main(scored) == 0
    record = json.loads(capsys.readouterr().out)
    assert record["candidates"][0]["metric"] == pytest.approx(record["metric_value"], rel=0.03)
    for more, reason in (
        (["--kv-granularity", "channel"], "--kv-granularity needs --kv"),
        (["--kv", "int8", "--float", "fp16"], "leave out one of the two"),
        (["--kv", "int8", "--recipe", "onnxruntime-int8"], "only recipes of GenAI observe its keys"),
        (["--kv", "int7"], "caches hold int8, int4, float8e4m3fn"),
    ):
        words = line[:4] if "--recipe" in more else line[:6]
        assert main([*words, "-o", str(tmp_path / "other"), *more]) != 0
        assert reason in capsys.readouterr().err and not (tmp_path / "other").exists()
