"""GenAI: MatMulNBits beside the simulation and ONNX Runtime's kernels, folders, texts and perplexity."""

from __future__ import annotations

import json
import os
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from builders import build, build_used, plain_quantize, planned, weights
from genai_folders import CACHE_HEADS, CONTEXT, HEAD_SIZE, WORDS, decoder, feeds, write_folder

import onnxfq
from onnxfq.choices import WeightForm
from onnxfq.cli.main import main
from onnxfq.data.texts import TextTokens, read_texts
from onnxfq.errors import DataError, OnnxfqError
from onnxfq.graph.patterns.logits import judge_outputs
from onnxfq.interchange.genai_folder import GenaiFolder, open_folder
from onnxfq.metrics import perplexity
from onnxfq.quantized.existing import load_existing
from onnxfq.runtime.session import Session
from onnxfq.targets.genai.weight_forms import with_weight_form

PRODUCT = "g (float[N,K] x) => (float[] y) { y = MatMul (x, w) }"


def run_plain(proto: onnx.ModelProto, feed: dict[str, np.ndarray]) -> list[np.ndarray]:
    """Return the outputs of a session as GenAI opens it."""
    return list(onnxruntime.InferenceSession(proto.SerializeToString()).run(None, feed))


def recipe(rounded: bool, **scheme: object) -> onnxfq.Recipe:
    """Return a recipe of blocks of 32 with changes, with or without the rounding of inputs."""
    chosen = onnxfq.load_recipe("genai-int4").override(weights=scheme)
    return chosen if rounded else chosen.model_copy(update={"activations": None})


@pytest.mark.grid
@pytest.mark.parametrize("rounded", [False, True])
@pytest.mark.parametrize(
    "scheme",
    [
        {"qtype": "int4"},
        {"qtype": "int4", "block_size": 16},
        {"qtype": "uint4", "symmetric": False, "block_size": 64},
        {"qtype": "int8", "block_size": 128},
        {"qtype": "uint8", "symmetric": False},
        {"qtype": "int4", "symmetric": False},
        {"qtype": "int2"},
        {"qtype": "uint2", "symmetric": False},
    ],
    ids=str,
)
@pytest.mark.parametrize("inner", [172, 64, 20])
def test_values(inner: int, scheme: dict[str, object], rounded: bool) -> None:
    """The written product gives the simulation's values, in blocks that do not divide the axis too."""
    proto = build(PRODUCT, {"w": weights(inner, 24)})
    x = np.random.default_rng(0).normal(size=(7, inner)).astype(np.float32)
    chosen = recipe(rounded, **scheme)
    if rounded:
        size = scheme.get("block_size", 32)
        chosen = chosen.override(activations={"block_size": size})
    result = plain_quantize(proto, [{"x": x}], recipe=chosen)
    (node,) = result.qdq.graph.node
    attributes = {a.name: a.i for a in node.attribute}
    assert node.op_type == "MatMulNBits" and attributes["accuracy_level"] == (4 if rounded else 0)
    wanted = Session(result.simulation, exact=True).run({"x": x})[0]
    # The kernels sum floats in another order.
    np.testing.assert_allclose(run_plain(result.qdq, {"x": x})[0], wanted, atol=2e-5 * np.abs(wanted).max())


@pytest.mark.grid
@pytest.mark.parametrize("form", ["qdq", "qdq-transpose"])
@pytest.mark.parametrize(
    "scheme",
    [
        {"qtype": "int4"},
        {"qtype": "uint4", "symmetric": False, "block_size": 64},
        {"qtype": "int8", "block_size": 128},
    ],
    ids=str,
)
def test_weights_in_pairs(form: WeightForm, scheme: dict[str, object]) -> None:
    """ONNX Runtime computes the simulation's values from both forms, of an older opset too.

    Without its optimisations, which make MatMulNBits of the pairs and round the inputs.
    """
    proto = build(PRODUCT, {"w": weights(256, 24)})
    x = np.random.default_rng(0).normal(size=(7, 256)).astype(np.float32)
    chosen = with_weight_form(recipe(True, **scheme), form)
    result = plain_quantize(proto, [{"x": x}], recipe=chosen)
    kinds = [node.op_type for node in result.qdq.graph.node]
    assert kinds == ["DequantizeLinear", *(["Transpose"] if form == "qdq-transpose" else []), "MatMul"]
    sizes = {one.name: list(one.dims) for one in result.qdq.graph.initializer}
    assert sizes[result.qdq.graph.node[0].input[0]] == ([24, 256] if form == "qdq-transpose" else [256, 24])
    wanted, found = (Session(one, exact=True).run({"x": x})[0] for one in (result.simulation, result.qdq))
    np.testing.assert_array_equal(found, wanted)


@pytest.mark.sample
def test_weight_form_of_a_folder(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """`--weight-form` writes a folder that runs, its cache in int8 too; other targets refuse it."""
    source, made = write_folder(tmp_path / "float"), tmp_path / "rtx"
    rows = feeds(6)
    tokens = tmp_path / "tokens.npz"
    np.savez(tokens, **{name: np.concatenate([row[name] for row in rows]) for name in rows[0]})
    line = ["quantize", str(source), "--data", str(tokens), "-o", str(made), "--weight-form", "qdq-transpose"]
    assert main([*line, "--recipe", "genai-int4", "--kv", "int8", "--repair", "off"]) == 0
    kinds = [node.op_type for node in onnx.load(made / "model.onnx").graph.node]
    assert kinds.count("Transpose") == kinds.count("DequantizeLinear") == 6 == kinds.count("MatMul")
    cache = np.zeros((1, CACHE_HEADS, 0, HEAD_SIZE), np.int8)
    feed = {name: cache if "past" in name else value for name, value in rows[0].items()}
    session = onnxruntime.InferenceSession(made / "model.onnx")
    assert session.get_inputs()[2].type == "tensor(int8)" and np.isfinite(session.run(None, feed)[0]).all()
    capsys.readouterr()
    assert main([*line[:4], "-o", str(tmp_path / "no"), *line[6:], "--recipe", "tensorrt-int4"]) == 1
    assert "has one form of weights" in capsys.readouterr().err
    with pytest.raises(OnnxfqError, match="have inputs in float"):
        planned(build(PRODUCT, {"w": weights(64, 64)}), recipe(True).override(target="genai-qdq"))


@pytest.mark.parametrize("name", ["genai-int4", "genai-uint4", "genai-int8"])
def test_decoder(name: str) -> None:
    """All linear layers become MatMulNBits, and all names stay."""
    result = plain_quantize(decoder(), feeds(8), recipe=name)
    before, after = decoder().graph, result.qdq.graph
    for field in ("input", "output"):
        assert [v.name for v in getattr(before, field)] == [v.name for v in getattr(after, field)]
    kinds = [node.op_type for node in after.node]
    assert kinds.count("MatMulNBits") == 6 and "MatMul" not in kinds and "DequantizeLinear" not in kinds
    feed = feeds(9)[-1]
    wanted = Session(result.simulation, exact=True).run(feed)[0]
    found = run_plain(result.qdq, feed)[0]
    # Rounded inputs turn differences of a last bit into steps of the grid.
    assert 10 * np.log10(np.sum(wanted**2) / np.sum((wanted - found) ** 2)) > 40
    assert result.proof.runtime.startswith("ONNX Runtime") and not result.proof.difference


@pytest.mark.parametrize("qtype", ["int4", "int8", "uint4"])
def test_embeddings(qtype: str) -> None:
    """ONNX Runtime looks up the rows that the simulation has; other tables stay in float."""
    chosen = recipe(False, qtype=qtype, symmetric=qtype != "uint4", block_size=16)
    chosen = chosen.model_copy(update={"embeddings": "quantize"})
    result = plain_quantize(decoder(), feeds(8), recipe=chosen)
    kinds = [row.op_type for row in onnxfq.inspect_model(result.qdq).quantized]
    assert kinds.count("GatherBlockQuantized") == 1 and kinds.count("MatMulNBits") == 6
    feed, hidden = feeds(9)[-1], onnx.helper.make_empty_tensor_value_info("hidden")
    rows, read = [], load_existing(result.qdq, "requantize").proto
    for proto in (result.qdq, result.simulation, read):
        proto.graph.output.append(hidden)
        rows.append(Session(proto, exact=True).run(feed)[-1])
    np.testing.assert_allclose(rows[0], rows[1], rtol=1e-6)
    np.testing.assert_allclose(rows[0], rows[2], rtol=1e-6)
    with pytest.raises(OnnxfqError, match="tensorrt has no embeddings in blocks"):
        planned(decoder(), onnxfq.load_recipe("tensorrt-int4").model_copy(update={"embeddings": "quantize"}))


def test_few_bits_are_a_cause(tmp_path: Path) -> None:
    """`diagnose` names the product whose few bits cost most, and writes it with 8; the others keep theirs."""
    made = plain_quantize(decoder(), feeds(8), recipe="genai-int4").qdq
    found = onnxfq.diagnose(made, reference=decoder(), data=feeds(16), output=tmp_path / "repaired.onnx")
    repaired, feed = onnx.load(tmp_path / "repaired.onnx"), feeds(9)[-1]
    named = {cause.node for cause in found.causes if cause.kind == "coarse_weight"}
    bits = [
        {n.name: {a.name: a.i for a in n.attribute}.get("bits") for n in m.graph.node}
        for m in (made, repaired)
    ]
    assert named and bits[1] == bits[0] | dict.fromkeys(named, 8)
    wanted, before, after = (run_plain(one, feed)[0] for one in (decoder(), made, repaired))
    assert np.sum((after - wanted) ** 2) < np.sum((before - wanted) ** 2) / 2


@pytest.mark.parametrize(
    "text",
    [
        "g (float[64,K] x) => (float[64,K] y) { y = MatMul (w, x) }",
        "g (float[N,64] x) => (float[N,64] y) { y = Gemm (x, w) }",
        "g (float[N,64] x) => (float[2,N,64] y) { y = MatMul (x, stack) }",
    ],
)
def test_left_in_float(text: str) -> None:
    """Other products stay in float, with the reason."""
    proto = build(text, {"w": weights(64, 64), "stack": weights(2, 64, 64)})
    with pytest.raises(OnnxfqError, match="nothing to quantize.* on the right of a MatMul only"):
        planned(proto, recipe(False))


def test_convolution_beside() -> None:
    """A convolution in the model stays in float, and the products are quantized."""
    text = """g (float[N,3,8] x) => (float[N,3,40] y) { c = Conv <pads = [1,1]> (x, k) y = MatMul (c, w) }"""
    proto = build(text, {"k": weights(3, 3, 3), "w": weights(8, 40)})
    assert [str(row) for row in planned(proto, "genai-int4").coverage()] == ["Conv 0/1", "MatMul 1/1"]


def test_folder(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A folder becomes a folder that ONNX Runtime runs, with all other files, from a file of texts."""
    source = write_folder(tmp_path / "float")
    texts = tmp_path / "texts.jsonl"
    random = np.random.default_rng(0)
    lines = [{"text": " ".join(random.choice(WORDS, 80))} for _ in range(10)]
    texts.write_text("\n".join(map(json.dumps, lines)))
    made = tmp_path / "int8"
    words = ["--data", str(texts), "--recipe", "genai-int8", "--repair", "off"]
    assert main(["quantize", str(source), *words, "-o", str(made)]) == 0
    assert "MatMul 6/6" in capsys.readouterr().out
    assert {p.name for p in made.iterdir()} == {"genai_config.json", "model.onnx", "tokenizer.json"}
    assert (made / "genai_config.json").read_text() == (source / "genai_config.json").read_text()
    line = ["evaluate", str(source), str(made), "--data", str(texts), "--metric", "perplexity", "--json"]
    assert main(line) == 0
    record = json.loads(capsys.readouterr().out)
    assert record["metric"] == "perplexity"
    figures = record["metric_value"], record["candidates"][0]["metric"]
    tokens = TextTokens(source)
    losses, count = [], []
    for window in tokens.windows(read_texts(texts), CONTEXT):
        feed = feeds(1)[0] | {
            "input_ids": np.array([window]),
            "attention_mask": np.ones((1, len(window)), int),
        }
        logits = torch.tensor(run_plain(onnx.load(source / "model.onnx"), feed)[0][0, :-1])
        wanted = torch.tensor(window[1:])
        losses.append(float(torch.nn.functional.cross_entropy(logits, wanted, reduction="sum")))
        count.append(len(window) - 1)
    assert figures[0] == pytest.approx(np.exp(sum(losses) / sum(count)), rel=1e-5)  # float32, float64
    # The loss, because the perplexity of random weights is its exponential: 8 bits move it by 0.2%.
    assert np.log(figures[1]) == pytest.approx(np.log(figures[0]), rel=0.01)
    low, high = record["candidates"][0]["metric_interval"]
    assert low < figures[1] < high and len(losses) > 1
    (made.parent / "scores.json").write_text(json.dumps(record))
    page = made.parent / "page.html"
    assert main(["report", str(made.parent / "scores.json"), "-o", str(page)]) == 0
    assert f"{figures[1]:.6g} ({low:.5g} to {high:.5g})" in page.read_text()
    capsys.readouterr()
    assert main(["inspect", str(source), str(made)]) == 3 and main(["inspect", str(made)]) == 0
    said = capsys.readouterr().out
    assert "FLOAT" in said and "MatMulNBits" in said and main(["inspect", str(source)]) == 0
    said = capsys.readouterr().out
    assert f"quantize {source} --data TEXTS -o {source}.int4 --recipe genai-int4" in said and ".jsonl" in said
    assert main(["handoff", str(made), "-o", str(made.with_name("kit"))]) == 1
    assert "is a folder, which GenAI loads as it is" in capsys.readouterr().err
    assert main(["diagnose", str(made), "--float", str(source), "--data", str(texts)]) == 0
    assert "looked at 6 quantizers" in capsys.readouterr().out
    assert onnxfq.check(made, "onnxruntime").findings == ()
    assert onnxfq.check(made) == onnxfq.check(made, "onnxruntime")


BUILDER = """#!/bin/sh
given="-I -m onnxruntime_genai.models.builder -i $CHECKPOINT -o"
case "$*" in
  "$given "*" -c cache -p fp32 -e cpu --extra_options hf_remote=false")
    [ "$HF_HUB_OFFLINE" = 1 ] && cp -r "$FLOAT" "$7" ;;
  *) echo "Traceback" >&2; echo "ValueError: no Zzz" >&2; exit 1 ;;
esac
"""
"""In place of a Python with GenAI's builder, which `make slow CHECKS=GenAI` runs, for one checkpoint."""


@pytest.fixture
def checkpoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A checkpoint `llama`, its folder `float` of GenAI, `texts.txt`, and the builder `python`."""
    write_folder(tmp_path / "float")
    (tmp_path / "texts.txt").write_text("\n".join([" ".join(WORDS)] * 40))
    (tmp_path / "llama").mkdir()
    (tmp_path / "llama" / "config.json").write_text("{}")
    (tmp_path / "python").write_text(BUILDER)
    (tmp_path / "python").chmod(0o755)
    monkeypatch.setenv("CHECKPOINT", str(tmp_path / "llama"))
    monkeypatch.setenv("FLOAT", str(tmp_path / "float"))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_a_folder_from_a_checkpoint(checkpoint: Path) -> None:
    """The builder's float folder is quantized as if it were given, and leaves nothing."""
    words = ["--data", "texts.txt", "--recipe", "genai-int4", "-q", "--repair", "off"]
    assert main(["quantize", "float", *words, "-o", "given"]) == 0
    assert main(["quantize", "llama", *words, "-o", "made", "--python", str(checkpoint / "python")]) == 0
    given, made = (
        {one.name: one.read_bytes() for one in (checkpoint / name).iterdir()} for name in ("given", "made")
    )
    assert given == made
    names = {"float", "given", "llama", "made", "python", "texts.txt"}
    assert {one.name for one in checkpoint.iterdir()} == names


@pytest.mark.parametrize(
    ("model", "python", "reason"),
    [
        (
            "float",
            "python",
            "a checkpoint of transformers, and float has no config.json, or genai_config.json too; leave",
        ),
        ("float/model.onnx", "python", "and float/model.onnx has no config.json"),
        ("llama", "nowhere", "cannot run 'nowhere' of --python: No such file or directory; give its path"),
        (
            "other",
            "./python",
            "fails for checkpoint other: ValueError: no Zzz; ./python needs onnxruntime-genai",
        ),
    ],
)
def test_a_checkpoint_that_is_not_built(
    model: str, python: str, reason: str, checkpoint: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Each reason is one line, and nothing is written."""
    (checkpoint / "other").mkdir()
    (checkpoint / "other" / "config.json").write_text("{}")
    before = sorted(checkpoint.iterdir())
    python = str(checkpoint / python) if "/" in python else python
    assert main(["quantize", model, "--data", "texts.txt", "-o", "made", "--python", python]) == 1
    (line,) = [one for one in capsys.readouterr().err.splitlines() if one.startswith("onnxfq: error: ")]
    assert reason in line.replace(f"{checkpoint}/", "./" if "python needs" in reason else "")
    assert sorted(checkpoint.iterdir()) == before


def test_caches_of_a_configuration(tmp_path: Path) -> None:
    """genai_config.json says which output is fed back where neither an attention nor names and sizes do."""
    folder = write_folder(tmp_path / "float")
    proto = build(
        """g (int64[N,S] input_ids, float[A,B] memory) => (float[N,S,8] logits, float[C,D] kept) {
            e = Gather (table, input_ids) logits = MatMul (e, w) kept = MatMul (memory, w) }""",
        {"table": weights(40, 8), "w": weights(8, 8)},
    )
    onnx.save(proto, folder / "model.onnx")
    config = json.loads((folder / "genai_config.json").read_text())
    held = config["model"]["decoder"] | {"num_hidden_layers": None}
    held["inputs"] |= {"past_names": "memory"}
    held["outputs"] |= {"present_names": "kept"}
    config["model"]["decoder"] = held
    (folder / "genai_config.json").write_text(json.dumps(config))
    assert judge_outputs(proto).states == {}
    with open_folder(folder, None, None):
        judged = judge_outputs(proto)
    assert judged.states == {"kept": "memory"} and judged.deciding == ("logits",)
    assert judge_outputs(proto).states == {}


def test_layers_of_a_configuration(tmp_path: Path) -> None:
    """A name with %d stands for the caches of all layers."""
    folder = write_folder(tmp_path / "float")
    config = folder / "genai_config.json"
    config.write_text(config.read_text().replace('"num_hidden_layers": 1', '"num_hidden_layers": 2'))
    kinds = ("key", "value")
    states = {
        f"present.{layer}.{kind}": f"past_key_values.{layer}.{kind}" for layer in (0, 1) for kind in kinds
    }
    assert GenaiFolder.read(folder).states() == states


def test_folder_of_another_target(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A recipe of TensorRT writes pairs in blocks into the folder; sensitivity and convert take folders."""
    source, texts = write_folder(tmp_path / "float"), tmp_path / "texts.txt"
    texts.write_text(" ".join(np.random.default_rng(0).choice(WORDS, 400)))
    small = tmp_path / "r.yaml"
    small.write_text("base: tensorrt-int4\nweights: {block_size: 16, other_block_sizes: []}\n")
    made, data, off = tmp_path / "rtx", ["--data", str(texts)], ["--repair", "off"]
    assert main(["quantize", str(source), *data, *off, "--recipe", str(small), "-o", str(made)]) == 0
    blocks = [
        node for node in onnx.load(made / "model.onnx").graph.node if node.op_type == "DequantizeLinear"
    ]
    assert len(blocks) == 5 and all(any(a.name == "block_size" for a in node.attribute) for node in blocks)
    session = onnxruntime.InferenceSession(made / "model.onnx")
    assert np.isfinite(session.run(None, feeds(1)[0])[0]).all()
    assert main(["sensitivity", str(source), *data, "--recipe", "genai-int8"]) == 0
    products = [node for node in onnx.load(source / "model.onnx").graph.node if node.op_type == "MatMul"]
    assert products[4].output[0] in capsys.readouterr().out
    with pytest.raises(OnnxfqError, match="one recipe at a time"):
        onnxfq.quantize(source, texts, tmp_path / "both", recipe=["genai-int8", "genai-int4"])
    int8 = tmp_path / "int8"
    assert main(["quantize", str(source), *data, *off, "--recipe", "genai-int8", "-o", str(int8)]) == 0
    main(["convert", str(int8), "-o", str(tmp_path / "converted.onnx")])
    assert "DequantizeLinear" in {node.op_type for node in onnx.load(tmp_path / "converted.onnx").graph.node}


BROKEN = {
    "inputs": lambda folder: rename(folder, [3], "inputs"),
    "no config": lambda folder: (folder / "genai_config.json").unlink(),
    "not JSON": lambda folder: (folder / "genai_config.json").write_text("{"),
    "no name": lambda folder: (folder / "genai_config.json").write_text('{"model": {"decoder": {}}}'),
    "a list": lambda folder: (folder / "genai_config.json").write_text("[]"),
    "deep": lambda folder: (folder / "genai_config.json").write_text("[" * 10**5),
    "outside": lambda folder: rename(folder, "../float/model.onnx"),
    "absolute": lambda folder: rename(folder, str(folder / "model.onnx")),
    "number": lambda folder: rename(folder, 3),
    "missing": lambda folder: rename(folder, "other.onnx"),
    "link": lambda folder: link_out(folder),
    "loop": lambda folder: link_loop(folder),
    "no data file": lambda folder: (folder / "model.onnx.data").unlink(),
    "no tokenizer": lambda folder: (folder / "tokenizer.json").unlink(),
    "wrong tokenizer": lambda folder: (folder / "tokenizer.json").write_text("{}"),
    "adapters": lambda folder: add_adapter(folder),
    "a shard is missing": lambda folder: shard(folder)[1].unlink(),
    **{
        f"4 GB of zeros as {name}": lambda folder, name=name: os.truncate(folder / name, 4 << 30)
        for name in ("genai_config.json", "tokenizer.json", "model.onnx")
    },
}


def rename(folder: Path, name: object, field: str = "filename") -> None:
    """Let the configuration name another decoder, or change another field of it."""
    config = json.loads((folder / "genai_config.json").read_text())
    config["model"]["decoder"][field] = name
    (folder / "genai_config.json").write_text(json.dumps(config))


def add_adapter(folder: Path) -> None:
    """Give the decoder an input for the weights of a LoRA adapter."""
    proto = onnx.load(folder / "model.onnx", load_external_data=False)
    low_rank = onnx.helper.make_tensor_value_info("lora_A", onnx.TensorProto.FLOAT, [32, "rank"])
    proto.graph.input.append(low_rank)
    proto.graph.node.append(onnx.helper.make_node("Identity", ["lora_A"], ["unused"]))
    (folder / "model.onnx").write_bytes(proto.SerializeToString())


def shard(folder: Path) -> list[Path]:
    """Move each large tensor of the decoder to its own data file; return the files."""
    proto, files = onnx.load(folder / "model.onnx"), []
    (folder / "model.onnx.data").unlink()
    for number, tensor in enumerate(t for t in proto.graph.initializer if len(t.raw_data) > 1000):
        files.append(folder / f"shard {number}.data")
        files[-1].write_bytes(tensor.raw_data)
        onnx.external_data_helper.set_external_data(tensor, files[-1].name)
        tensor.ClearField("raw_data")
    (folder / "model.onnx").write_bytes(proto.SerializeToString())
    return files


def test_shards(tmp_path: Path) -> None:
    """A decoder with several data files gives the same folder as with one, and none of them is copied."""
    made = []
    for change in (lambda folder: None, shard):
        source = write_folder(tmp_path / f"float {len(made)}")
        change(source)
        made.append(tmp_path / f"int8 {len(made)}")
        plain_quantize(source, feeds(4), made[-1], recipe="genai-int8")
    assert {one.name for one in made[1].iterdir()} == {one.name for one in made[0].iterdir()}
    products = [run_plain(onnx.load(one / "model.onnx"), feeds(1)[0])[0] for one in made]
    np.testing.assert_array_equal(*products)


def link_loop(folder: Path) -> None:
    """Make the decoder a link to itself, for which Path.resolve raises before Python 3.13."""
    (folder / "model.onnx").unlink()
    (folder / "model.onnx").symlink_to("model.onnx")


def link_out(folder: Path) -> None:
    """Move the decoder out of the folder, and leave a link."""
    (folder / "model.onnx").rename(folder.parent / "elsewhere.onnx")
    (folder / "model.onnx").symlink_to(folder.parent / "elsewhere.onnx")


@pytest.mark.parametrize("fault", BROKEN)
def test_broken_folders(fault: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A damaged folder is one line, and nothing is written."""
    folder = write_folder(tmp_path / "float")
    (tmp_path / "t.txt").write_text("once upon a time there was a little girl")
    BROKEN[fault](folder)
    before = sorted(tmp_path.rglob("*"))
    out = str(tmp_path / "new")
    assert main(["quantize", str(folder), "--data", str(tmp_path / "t.txt"), "-o", out]) == 1
    lines = [one for one in capsys.readouterr().err.splitlines() if one.startswith("onnxfq: error: ")]
    assert len(lines) == 1, lines
    assert sorted(tmp_path.rglob("*")) == before


@pytest.mark.parametrize(
    ("name", "content", "reason"),
    [
        ("t.jsonl", b"{", "line 1 is not JSON"),
        ("t.jsonl", b'"a text"\n{"title": "x"}', "line 2 has no text"),
        ("t.jsonl", b"\n\n", "holds no text"),
        ("t.txt", b" \n", "holds no text"),
        ("t.txt", b"\xff\xfe", "is not UTF-8 text at byte 0"),
    ],
)
def test_wrong_texts(name: str, content: bytes, reason: str, tmp_path: Path) -> None:
    """A file of other content is an error that names the line."""
    (tmp_path / name).write_bytes(content)
    with pytest.raises(OnnxfqError, match=reason):
        list(read_texts(tmp_path / name))


def test_pieces_of_a_long_text(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A .txt in pieces is the same text, cut behind lines, with letters of several bytes at every place."""
    line = "gr\u00fc\u00dfe \u4f60\U0001f600\u2028 und mehr"
    text = "\n".join(line[:n] * n for n in range(1, 18))
    (tmp_path / "t.txt").write_bytes(text.encode())
    for size in (1, 2, 3, 5, 64, 1 << 20):
        monkeypatch.setattr("onnxfq.data.texts.PIECE", size)
        assert "".join("".join(read_texts(tmp_path / "t.txt")).split()) == "".join(text.split())
    (tmp_path / "t.txt").write_bytes(b"x" * 3000 + b"\xff")
    monkeypatch.setattr("onnxfq.data.texts.PIECE", 64)
    with pytest.raises(OnnxfqError, match="not UTF-8 text at byte 3000"):
        list(read_texts(tmp_path / "t.txt"))


@pytest.mark.parametrize("name", ["t.txt", "t.jsonl"])
def test_a_byte_order_mark_is_no_text(name: str, tmp_path: Path) -> None:
    """Editors may begin a file with one; inside of a text it stays."""
    text = '"one"' if name.endswith("l") else "one \ufeff two"
    (tmp_path / name).write_text(text, encoding="utf-8-sig")
    assert list(read_texts(tmp_path / name)) == [text.strip('"')]


def test_lines_end_with_a_line_feed_alone(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """JSON allows U+2028 and U+0085 in strings; empty lines are counted."""
    texts = ["a\u2028b", "c\x85d\x1ce"]
    lines = [json.dumps(text, ensure_ascii=False) for text in texts]
    (tmp_path / "t.jsonl").write_text("\n\n".join(lines) + "\n", encoding="utf-8")
    assert list(read_texts(tmp_path / "t.jsonl")) == texts
    assert "2 text(s) are read; 1 are empty" in caplog.text
    (tmp_path / "t.jsonl").write_text('"a \\ud800 b"')
    with pytest.raises(OnnxfqError, match="line 1 is not JSON .*surrogates"):
        list(read_texts(tmp_path / "t.jsonl"))


def _tokenizer(folder: Path, **fields: object) -> Path:
    path = write_folder(folder) / "tokenizer.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | fields))
    return folder


_FIXED = {"direction": "Right", "pad_to_multiple_of": None, "pad_id": 0, "pad_type_id": 0, "pad_token": "x"}
_CUT = {"direction": "Right", "max_length": 2, "strategy": "LongestFirst", "stride": 0}
_GROW = {"type": "Replace", "pattern": {"String": "a"}, "content": "a" * 10}


def test_own_settings_of_a_tokenizer(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A tokenizer that cuts and pads gives the tokens of one that does neither, and a note."""
    texts = ["a little girl was there"] * 3
    plain = list(TextTokens(write_folder(tmp_path / "plain")).windows(texts, 4))
    folder = _tokenizer(
        tmp_path / "own", truncation=_CUT | {"stride": 2}, padding={"strategy": {"Fixed": 2 * 10**9}} | _FIXED
    )
    assert list(TextTokens(folder).windows(texts, 4)) == plain
    assert "has its own truncation and padding" in caplog.text


HOSTILE: dict[str, dict[str, object]] = {
    "panic of a text": {
        "post_processor": {
            "type": "TemplateProcessing",
            "single": [{"SpecialToken": {"id": "[X]", "type_id": 0}}],
            "pair": [],
            "special_tokens": {},
        }
    },
    "memory without end": {"normalizer": {"type": "Sequence", "normalizers": [_GROW] * 12}},
    "expression": {"normalizer": {"type": "Replace", "pattern": {"Regex": "(a"}, "content": ""}},
}


@pytest.mark.parametrize("case", HOSTILE)
def test_hostile_tokenizers(
    case: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """A panic and memory without end are an error in one line, and print nothing."""
    monkeypatch.setattr("onnxfq.data.texts.MEMORY", 1 << 29)  # filled sooner
    folder = _tokenizer(tmp_path / "own", **HOSTILE[case])
    with pytest.raises(DataError, match="cannot read the tokenizer [^\n]*; export the folder again"):
        list(TextTokens(folder).windows(["a little girl was there"], 4))
    assert not capfd.readouterr().err


@pytest.mark.parametrize("size", [-5, 0, 2**31, 2**62, True, 1.5, "8", [8], 10**400])
def test_sizes_of_a_configuration(size: object, tmp_path: Path) -> None:
    """A wrong size is one line, and so are inputs without names."""
    folder = write_folder(tmp_path / "float")
    rename(folder, size, "head_size")
    with pytest.raises(OnnxfqError, match="genai_config.json: model.decoder.head_size: "):
        GenaiFolder.read(folder)
    rename(folder, 8, "head_size")
    rename(folder, [["input_ids", "input_ids"]], "inputs")
    with pytest.raises(OnnxfqError, match="genai_config.json: model.decoder.inputs: "):
        GenaiFolder.read(folder)


def test_links_of_a_cache(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Files of a cache are links to its blobs: they are copied, and links elsewhere are named."""
    folder = tmp_path / "models--x" / "snapshots" / "0123" / "int4"
    blobs = tmp_path / "models--x" / "blobs"
    blobs.mkdir(parents=True)
    folder.parent.mkdir(parents=True)
    write_folder(folder)
    for path in [*folder.iterdir()]:
        path.rename(blobs / path.name)
        path.symlink_to(blobs / path.name)
    (tmp_path / "secret").write_text("x")
    (folder / "notes.txt").symlink_to(tmp_path / "secret")
    (folder / "adapters").symlink_to(tmp_path)
    read = GenaiFolder.read(folder)
    read.copy_rest(tmp_path / "new")
    assert {path.name for path in (tmp_path / "new").iterdir()} == {"genai_config.json", "tokenizer.json"}
    assert "the new folder lacks adapters, notes.txt" in caplog.text
    (folder / "genai_config.json").unlink()
    (folder / "genai_config.json").symlink_to(tmp_path / "secret")
    with pytest.raises(OnnxfqError, match="genai_config.json leads out of the folder"):
        GenaiFolder.read(folder)


def test_texts_are_read_up_to_the_limit(tmp_path: Path) -> None:
    """With a limit the lines behind it are not read, not even a wrong one."""
    folder = GenaiFolder.read(write_folder(tmp_path / "float"))
    texts = tmp_path / "t.jsonl"
    texts.write_text("\n".join(['"a little girl was there"'] * 5000 + ["wrong"]))
    found = folder.feeds(texts, 3)
    assert len(found) == 3 and [one["input_ids"].shape for one in found] == [(1, CONTEXT)] * 3
    with pytest.raises(OnnxfqError, match="line 5001 is not JSON"):
        folder.feeds(texts)


def test_texts_of_few_words_are_told(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Four words are too few for a decoder of 32 numbers a token, and enough for one of 4."""
    folder = write_folder(tmp_path / "float")
    decoder_file = GenaiFolder.read(folder)
    texts = tmp_path / "t.txt"
    texts.write_text("once upon a once upon a time")
    assert len(decoder_file.feeds(texts)) == 1
    assert "has 4 different tokens, fewer than the 32 numbers of hidden_size" in caplog.text
    caplog.clear()
    rename(folder, 4, "hidden_size")
    GenaiFolder.read(folder).feeds(texts)
    assert not caplog.text


def test_windows(tmp_path: Path) -> None:
    """Texts follow each other in windows of one length, and no token is lost but a last one alone."""
    tokens = TextTokens(write_folder(tmp_path / "float"))
    windows = list(tokens.windows(["a little girl", "was there once"], 4))
    assert windows == [[3, 7, 8, 6], [5, 1]]
    assert [len(window) for window in tokens.windows(["a little girl was there"], 4)] == [4]


def test_perplexity() -> None:
    """Masked tokens do not count, and the figure is torch's cross entropy."""
    random = np.random.default_rng(1)
    logits, ids = random.normal(size=(2, 6, 9)).astype(np.float32), random.integers(0, 9, (2, 6))
    mask = np.ones((2, 6), np.int64)
    mask[1, 4:] = 0
    kept = torch.tensor(np.where(mask[:, 1:] != 0, ids[:, 1:], -100))
    loss = torch.nn.functional.cross_entropy(torch.tensor(logits[:, :-1]).transpose(1, 2).double(), kept)
    sample = {"input_ids": ids, "attention_mask": mask}
    assert perplexity(iter([{"logits": logits}]), [sample]) == pytest.approx(float(loss.exp()), rel=1e-12)
    with pytest.raises(OnnxfqError, match="needs an input 'input_ids'"):
        perplexity(iter([{"y": logits[0]}]), [sample])
    with pytest.raises(OnnxfqError, match="at least two tokens"):
        perplexity(iter([{"y": logits[:, :1]}]), [{"input_ids": ids[:, :1]}])


def write_vision(path: Path) -> Path:
    """Write a folder of three graphs: a tower of vision, embeddings of words and images, and a decoder."""
    path.mkdir()
    graphs = {
        "vision": """g (float[1,P,32] pixels) => (float[1,P,64] seen) { seen = MatMul (pixels, tower) }""",
        "embedding": """g (int64[1,L] input_ids, float[1,P,64] image) => (float[1,T,64] both) {
            words = Gather (table, input_ids) both = Concat <axis = 1> (image, words) }""",
        "decoder": """g (float[1,T,64] both, int64[1,T] mask, float[1,2,C,16] past_0)
            => (float[1,T,40] logits, float[1,2,C,16] present_0) {
            kept = Cast <to = 1> (mask) last = Unsqueeze (kept, two)
            held = Mul (both, last) logits = MatMul (held, head) present_0 = Identity (past_0) }""",
    }
    stored = {
        "tower": weights(32, 64),
        "table": weights(40, 64),
        "head": weights(64, 40),
        "two": np.array([2]),
    }
    config = {
        "vision": {"inputs": {"pixel_values": "pixels"}, "outputs": {"image_features": "seen"}},
        "embedding": {
            "inputs": {"input_ids": "input_ids", "image_features": "image"},
            "outputs": {"inputs_embeds": "both"},
        },
        "decoder": {
            "inputs": {"inputs_embeds": "both", "attention_mask": "mask", "past_key_names": "past_%d"},
            "outputs": {"logits": "logits", "present_key_names": "present_%d"},
            "num_hidden_layers": 1,
            "head_size": 16,
        },
    }
    for name, text in graphs.items():
        onnx.save(build_used(text, stored), path / f"{name}.onnx")
        config[name]["filename"] = f"{name}.onnx"
    (path / "genai_config.json").write_text(json.dumps({"model": config}))
    return path


def decoder_feed(
    sessions: dict[str, onnxruntime.InferenceSession], feed: dict[str, np.ndarray]
) -> dict[str, np.ndarray]:
    """Return what the decoder of `write_vision` reads behind its other graphs."""
    (seen,) = sessions["vision"].run(None, {"pixels": feed["pixels"]})
    (both,) = sessions["embedding"].run(None, {"image": seen, "input_ids": feed["input_ids"]})
    past = np.zeros((1, 2, 0, 16), np.float32)
    return {"both": both, "mask": np.ones(both.shape[:2], np.int64), "past_0": past}


def test_every_graph(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Each graph is quantized on what the float ones in front of it give, or named as left in float."""
    source, random = write_vision(tmp_path / "float"), np.random.default_rng(0)
    (source / "other.onnx").write_bytes((source / "vision.onnx").read_bytes())
    drawn = [random.normal(size=(1, 6, 32)).astype(np.float32) for _ in range(8)]
    data = [{"pixels": one, "input_ids": random.integers(0, 40, (1, 5))} for one in drawn]
    how = {"recipe": "genai-int4", "accuracy": onnxfq.AccuracyTarget(repair=None)}
    onnxfq.quantize(source, data, tmp_path / "int4", **how)
    assert "vision.onnx too: MatMul 1/1" in caplog.text and "other.onnx is copied as it is" in caplog.text
    assert "embedding.onnx stays in float, " in caplog.text and "bytes: nothing to quantize" in caplog.text
    sessions = {one: onnxruntime.InferenceSession(source / f"{one}.onnx") for one in ("vision", "embedding")}
    alone = [decoder_feed(sessions, feed) for feed in data]
    for name, feeds_alone in (("decoder", alone), ("vision", [{"pixels": one["pixels"]} for one in data])):
        onnxfq.quantize(source / f"{name}.onnx", feeds_alone, tmp_path / "alone.onnx", **how)
        assert (tmp_path / "alone.onnx").read_bytes() == (tmp_path / "int4" / f"{name}.onnx").read_bytes()
    names = {path.name for path in source.iterdir()}
    assert {path.name for path in (tmp_path / "int4").iterdir()} == names
    with pytest.raises(DataError, match="has texts, and vision.onnx reads pixels"):
        onnxfq.quantize(source, tmp_path / "texts.txt", tmp_path / "less", **how)
    with pytest.raises(DataError, match="lacks input 'pixels'"):
        onnxfq.quantize(source, [{"input_ids": one["input_ids"]} for one in data], tmp_path / "less", **how)


def test_caches_are_of_the_decoder(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A recipe with caches quantizes the graphs in front of the decoder, which alone has to have one."""
    source, random = write_vision(tmp_path / "float"), np.random.default_rng(0)
    pixels, words = random.normal(size=(8, 1, 6, 32)).astype(np.float32), random.integers(0, 40, (8, 1, 5))
    data = [{"pixels": one, "input_ids": other} for one, other in zip(pixels, words, strict=True)]
    recipe = onnxfq.load_recipe("genai-int4").override(cache={"qtype": "int8"})
    with pytest.raises(OnnxfqError, match="the model has none"):
        onnxfq.quantize(source, data, tmp_path / "int4", recipe=recipe)
    assert "vision.onnx too: MatMul 1/1" in caplog.text


def test_graphs_are_evaluated_as_one(tmp_path: Path) -> None:
    """Folders are measured as sessions one behind the other; a decoder alone reads what float ones give."""
    source, random = write_vision(tmp_path / "float"), np.random.default_rng(1)
    drawn = [random.normal(size=(1, 6, 32)).astype(np.float32) for _ in range(8)]
    data = [{"pixels": one, "input_ids": random.integers(0, 40, (1, 5))} for one in drawn]
    recipe = onnxfq.load_recipe("genai-int4").override(activations=None)
    how = {"recipe": recipe, "accuracy": onnxfq.AccuracyTarget(repair=None)}
    made = tmp_path / "int4"
    onnxfq.quantize(source, data, made, **how)
    wanted = []
    for ahead, last in ((source, source), (made, made), (source, made)):
        paths = {"vision": ahead, "embedding": ahead, "decoder": last}
        sessions = {name: onnxruntime.InferenceSession(path / f"{name}.onnx") for name, path in paths.items()}
        logits = [sessions["decoder"].run(["logits"], decoder_feed(sessions, feed))[0] for feed in data]
        wanted.append(np.concatenate(logits).astype(np.float64))
    power = np.square(wanted[0]).sum()
    both, alone = (10 * np.log10(power / np.square(one - wanted[0]).sum()) for one in wanted[1:])
    assert alone > both + 1
    for candidate, figure in ((made, both), (made / "decoder.onnx", alone)):
        first, *_ = onnxfq.evaluate(source, candidate, data).candidates
        assert abs(first.outputs[0].sqnr_db - figure) < 0.01  # kernels sum in another order
