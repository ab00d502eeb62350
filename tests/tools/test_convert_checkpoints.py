"""`convert` of checkpoints: their integers and scales in an ONNX model, and those of a model in one."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import onnx
import pytest
from builders import run_as_written
from checkpoint_graphs import CHECKPOINTS, FLOAT, QUANTIZED, builder_graph, float_tensors, noted_graph
from numpy.typing import NDArray
from onnx import numpy_helper

from onnxfq.checkpoints import WRITTEN, QuantizedCheckpoint
from onnxfq.checkpoints.folder import Checkpoint
from onnxfq.checkpoints.layer import FloatLayer
from onnxfq.checkpoints.stored_layers import StoredLayers
from onnxfq.checkpoints.tensor_file import read_head, write_tensors
from onnxfq.cli.main import main
from onnxfq.errors import ModelError, PlanError, RecipeError
from onnxfq.tools.checkpoints.apply_checkpoint import apply_checkpoint
from onnxfq.tools.checkpoints.export_checkpoint import export_checkpoint

LAYER = "model.layers.0"
IN_FLOAT = ("gptq-act-order",)
ENCODED = [name for name in QUANTIZED if name not in IN_FLOAT]
SMALL_SCALES = ("ct-mxfp8", "ct-nvfp4", "modelopt-mxfp8", "modelopt-nvfp4")
"""Checkpoints whose forms TensorRT has, and other targets only in part."""
OTHER_FORM = {
    "ct-float8-block": "blocks of several rows are written as blocks of each row",
    "ct-int8-token": "ONNX Runtime has no such inputs, and weights alone are packed",
    "ct-pack-int3": "ONNX stores 3 bits in 4",
}


def target_of(name: str) -> str:
    """Return a target that takes the number formats of a checkpoint."""
    return "tensorrt" if name in SMALL_SCALES else "onnxruntime"


def graph_of(name: str) -> onnx.ModelProto:
    """Return a graph: NVFP4 of three global scales has no joined form for TensorRT."""
    return builder_graph(joined=name != "ct-nvfp4")


def quantized(name: str, path: Path, proto: onnx.ModelProto) -> Path:
    """Write the checkpoint `name` onto `proto` as a quantized model; return its path."""
    apply_checkpoint(CHECKPOINTS / name, proto, path, target=target_of(name))
    return path


@pytest.mark.grid
@pytest.mark.parametrize("graph", ["builder", "noted"])
@pytest.mark.parametrize("name", ENCODED)
def test_the_model_holds_the_numbers_of_the_checkpoint(name: str, graph: str, tmp_path: Path) -> None:
    """Every integer, scale and zero point of the file is that of the checkpoint, joined or not."""
    proto = noted_graph() if graph == "noted" else graph_of(name)
    stored = StoredLayers(onnx.load(quantized(name, tmp_path / "q.onnx", proto)))
    opened = QuantizedCheckpoint(CHECKPOINTS / name)
    found = {}
    for place in stored.places():
        layer, path = stored.read(place), place.paths[0].replace(".attn.", ".self_attn.")
        parts = ["q_proj", "k_proj", "v_proj"] if path.endswith("qkv_proj") else [path.rpartition(".")[2]]
        for number, part in enumerate(parts):
            rows = layer.rows(32 * number, 32 * (number + 1)) if len(parts) > 1 else layer
            found[f"{path.rpartition('.')[0]}.{part}"] = rows
    assert sorted(found) == sorted(opened.modules)
    for module, layer in found.items():
        wanted = opened.read(module)
        assert not isinstance(wanted, FloatLayer)
        assert layer.values.tobytes() == wanted.values.tobytes()
        offset = int(layer.qtype.qmin - wanted.qtype.qmin) if not layer.qtype.is_float else 0
        scale = np.broadcast_to(wanted.scale.reshape(wanted.scale.shape or (1,)), layer.scale.shape or (1,))
        assert layer.scale.tobytes() == scale.tobytes()
        if layer.qtype.is_float:
            assert layer.numbers.tobytes() == wanted.numbers.tobytes()
        elif wanted.qtype.bits != 3:
            assert np.array_equal(layer.numbers.astype(int) - offset, wanted.numbers.astype(int))
            assert (
                layer.zero_point.astype(int) - offset == wanted.zero_point.reshape(layer.zero_point.shape)
            ).all()


@pytest.mark.parametrize("name", [n for n in ENCODED if n not in SMALL_SCALES])
def test_the_runtime_computes_with_the_values_of_the_checkpoint(name: str, tmp_path: Path) -> None:
    """ONNX Runtime dequantizes to the checkpoint's values: with inputs in float the logits are equal."""
    applied = apply_checkpoint(CHECKPOINTS / name, builder_graph(), tmp_path / "q.onnx")
    if any(p.role == "activation" for p in applied.plan.placements):
        pytest.skip("its inputs are rounded too")
    onnx.save(applied.model.proto, tmp_path / "f.onnx")
    feed = {"input_ids": np.asarray([[3, 1, 4, 15]])}
    logits = [run_as_written(onnx.load(tmp_path / file), feed)[0] for file in ("f.onnx", "q.onnx")]
    assert np.array_equal(*logits)


def test_encodings_in_a_folder_insert_the_same_model(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """A folder holds the float model, its plan and its encodings; `insert` writes the same numbers."""
    onnx.save(builder_graph(), tmp_path / "m.onnx")
    line = f"convert {CHECKPOINTS / 'gptq'} --onto {tmp_path}/m.onnx -o {tmp_path}"
    assert main([*f"{line}/e".split(), "-q"]) == 0, capfd.readouterr().err
    assert main([*f"{line}/q.onnx".split(), "-q"]) == 0, capfd.readouterr().err
    e = tmp_path / "e"
    insert = f"insert {e}/model.onnx --plan {e}/model.plan.json --encodings {e}/model.encodings.json"
    assert main([*f"{insert} -o {tmp_path}/i.onnx".split(), "-q"]) == 0, capfd.readouterr().err
    direct, inserted = (onnx.load(tmp_path / file).graph.initializer for file in ("q.onnx", "i.onnx"))
    assert [t.SerializeToString() for t in direct] == [t.SerializeToString() for t in inserted]


@pytest.mark.parametrize("plus", [0, 1])
def test_norms_come_from_the_checkpoint_too(plus: int) -> None:
    """AWQ and SmoothQuant change norms: the graph gets those of the checkpoint; norms plus 1 keep the 1."""
    proto, state = builder_graph(), float_tensors()
    for tensor in proto.graph.initializer:
        values = numpy_helper.to_array(tensor)
        if tensor.name.endswith("norm.weight"):
            factor = np.float32(3 if "input" in tensor.name else 1)
            tensor.CopyFrom(numpy_helper.from_array((values + np.float32(plus)) * factor, tensor.name))
    applied = apply_checkpoint(CHECKPOINTS / "awq", proto)
    made = {name: numpy_helper.to_array(tensor) for name, tensor in applied.model.constants.items()}
    name = f"{LAYER}.input_layernorm.weight"
    assert np.array_equal(made[name], state[name] + plus)
    assert np.array_equal(
        made["model.layers.1.final_norm_layernorm.weight"], state["model.norm.weight"] + plus
    )
    assert any("of a norm plus 1" in note for note in applied.notes) == bool(plus)


@pytest.mark.parametrize(
    "name", [n for n in QUANTIZED if n.startswith(("ct-", "modelopt-")) and n not in OTHER_FORM]
)
def test_a_checkpoint_comes_back(name: str, tmp_path: Path) -> None:
    """From checkpoint to ONNX and back every tensor has equal bytes, and ModelOpt's configuration too."""
    form = "modelopt" if name.startswith("modelopt") else "compressed-tensors"
    path = quantized(name, tmp_path / "q.onnx", graph_of(name))
    exported = export_checkpoint(path, FLOAT, tmp_path / "back", form)
    assert not exported.lost
    first, second = Checkpoint.open(CHECKPOINTS / name), Checkpoint.open(tmp_path / "back")
    assert sorted(first.entries) == sorted(second.entries)
    for tensor in first.entries:
        arrays: list[NDArray] = [one.array(tensor) for one in (first, second)]
        assert arrays[0].dtype == arrays[1].dtype and arrays[0].shape == arrays[1].shape, tensor
        if not tensor.endswith("global_scale"):
            assert arrays[0].tobytes() == arrays[1].tobytes(), tensor
        else:  # the reciprocal of a reciprocal
            assert np.allclose(*arrays, rtol=2**-23, atol=0)
    if form == "modelopt":
        assert first.config["quantization_config"] == second.config["quantization_config"]
        said = [json.loads((one.path / "hf_quant_config.json").read_text()) for one in (first, second)]
        assert said[0] == said[1]
    assert QuantizedCheckpoint(tmp_path / "back").form == form


@pytest.mark.grid
@pytest.mark.parametrize("to", WRITTEN)
@pytest.mark.parametrize("name", ENCODED)
def test_other_forms_keep_the_values(name: str, to: str, tmp_path: Path) -> None:
    """A layer in another tool's form has equal values; what that form cannot hold is in float, and told."""
    path = quantized(name, tmp_path / "q.onnx", graph_of(name))
    source = QuantizedCheckpoint(CHECKPOINTS / name)
    try:
        exported = export_checkpoint(path, FLOAT, tmp_path / "out", to)
    except ModelError as fault:
        assert f"{to} holds no layer of" in str(fault)
        assert not (tmp_path / "out").exists()
        return
    opened = QuantizedCheckpoint(tmp_path / "out")
    assert set(opened.modules) | set(exported.lost) == set(source.modules)
    for module in opened.modules:
        layer, wanted = opened.read(module), source.read(module)
        if to == "compressed-tensors" and layer.scale_type == "e4m3":  # it divides by its global scale
            assert np.allclose(layer.values, wanted.values, rtol=2**-22, atol=0)
        else:
            assert np.array_equal(layer.values, wanted.values)


def test_what_a_form_lacks_is_told(tmp_path: Path) -> None:
    """ModelOpt's form has no zero points: one such layer is in float, with its values, and named."""
    folder = tmp_path / "mixed"
    shutil.copytree(CHECKPOINTS / "ct-pack-int4", folder)
    proto = builder_graph(joined=False)
    path = quantized("ct-pack-int4", tmp_path / "q.onnx", proto)
    model = onnx.load(path)
    name = f"{LAYER}.attn.o_proj.MatMul.weight"
    (node,) = [n for n in model.graph.node if n.op_type == "DequantizeLinear" and name in n.output[0]]
    zero = onnx.helper.make_tensor("zero", onnx.TensorProto.INT4, [2, 32], [1] * 64)
    model.graph.initializer.append(zero)
    node.input.append("zero")
    exported = export_checkpoint(model, FLOAT, tmp_path / "out", "modelopt")
    assert exported.lost == {f"{LAYER}.self_attn.o_proj": "ModelOpt's form has no zero points"}
    opened = QuantizedCheckpoint(tmp_path / "out")
    assert f"{LAYER}.self_attn.o_proj" not in opened.modules and len(opened.modules) == 6
    excluded = opened.files.config["quantization_config"]["ignore"]
    assert f"{LAYER}.self_attn.o_proj" in excluded


def test_int4_of_matmulnbits_is_written(tmp_path: Path) -> None:
    """MatMulNBits, as ONNX Runtime GenAI has it, gives the numbers that it stores."""
    rng = np.random.default_rng(0)
    numbers, scales = rng.integers(0, 16, (32, 2, 16)), rng.random((32, 2), np.float32) + np.float32(0.5)
    packed = (numbers[..., 0::2] | numbers[..., 1::2] << 4).astype(np.uint8)
    proto = builder_graph(joined=False)
    node = next(n for n in proto.graph.node if n.name == "/model/layers.0/attn/o_proj/MatMul")
    weight = node.input[1]
    node.op_type, node.domain = "MatMulNBits", "com.microsoft"
    node.attribute.extend(
        onnx.helper.make_attribute(key, value)
        for key, value in {"K": 32, "N": 32, "bits": 4, "block_size": 16}.items()
    )
    node.input[1:] = [f"{weight}_Q4", f"{weight}_scales"]
    proto.graph.initializer.extend(
        [numpy_helper.from_array(packed, node.input[1]), numpy_helper.from_array(scales, node.input[2])]
    )
    proto.opset_import.append(onnx.helper.make_opsetid("com.microsoft", 1))
    exported = export_checkpoint(proto, FLOAT, tmp_path / "out", "compressed-tensors")
    assert not exported.lost
    layer = QuantizedCheckpoint(tmp_path / "out").read(f"{LAYER}.self_attn.o_proj")
    wanted = ((numbers - 8) * scales[..., None]).reshape(32, 32).astype(np.float32)
    assert np.array_equal(layer.values, wanted)


def test_what_has_no_place_is_refused_or_left_out(tmp_path: Path) -> None:
    """A layer, a tensor or a product without a partner is an error, and a note with `partial`."""
    proto = builder_graph(joined=False)
    for node in proto.graph.node:
        if node.name == "/model/layers.0/mlp/up_proj/MatMul":
            node.name, node.input[1] = "other", "other"
    for tensor in proto.graph.initializer:
        if tensor.name == f"{LAYER}.mlp.up_proj.MatMul.weight":
            tensor.name = "other"
    with pytest.raises(
        ModelError, match=r"1 quantized layers of .* have no MatMul or Gemm .*up_proj.*--partial"
    ):
        apply_checkpoint(CHECKPOINTS / "gptq", proto)
    applied = apply_checkpoint(CHECKPOINTS / "gptq", proto, partial=True)
    assert len(applied.formats) == 1 and sum(applied.formats.values()) == 6
    assert [note for note in applied.notes if "up_proj" in note] and [
        n for n in applied.notes if "'other'" in n
    ]
    path = quantized("gptq", tmp_path / "q.onnx", builder_graph(joined=False))
    model = onnx.load(path)
    for node in model.graph.node:
        if node.name == "/model/layers.0/mlp/up_proj/MatMul":
            node.name = "other"
        for names in (node.input, node.output):
            names[:] = [name.replace("up_proj", "other") for name in names]
    for tensor in model.graph.initializer:
        tensor.name = tensor.name.replace("up_proj", "other")
    with pytest.raises(ModelError, match=r"1 quantized layers of .* have no module in .*--partial"):
        export_checkpoint(model, FLOAT, tmp_path / "out", "compressed-tensors")
    exported = export_checkpoint(model, FLOAT, tmp_path / "out", "compressed-tensors", partial=True)
    assert sum(exported.formats.values()) == 6 and any("left out" in note for note in exported.notes)


def test_a_graph_of_another_model_is_refused() -> None:
    """Nothing matches, or a matrix has another shape: one line with the remedy."""
    proto = builder_graph(joined=False)
    for tensor in proto.graph.initializer:
        if tensor.name == f"{LAYER}.mlp.down_proj.MatMul.weight":
            tensor.CopyFrom(numpy_helper.from_array(np.zeros((32, 16), np.float32), tensor.name))
    with pytest.raises(ModelError, match="not a valid ONNX model|needs shape|shape"):
        apply_checkpoint(CHECKPOINTS / "gptq", proto)


def test_weights_unlike_the_graph_are_noted() -> None:
    """A matrix of another model under the same name and shape has a note; rounded ones have none."""
    name, proto = "down_proj", builder_graph()
    assert not any("unlike" in note for note in apply_checkpoint(CHECKPOINTS / "gptq", proto).notes)
    for tensor in proto.graph.initializer:
        if name in tensor.name:
            values = np.random.default_rng(0).normal(size=tensor.dims).astype(np.float32)
            tensor.CopyFrom(numpy_helper.from_array(values, tensor.name))
    notes = [note for note in apply_checkpoint(CHECKPOINTS / "gptq", proto).notes if "unlike" in note]
    assert len(notes) == 1 and name in notes[0]


def test_formats_that_a_target_lacks(tmp_path: Path) -> None:
    """A target without zero points refuses them by name and leaves nothing."""
    with pytest.raises(
        RecipeError, match=r"zero points of 0 only; the awq checkpoint has it so, choose another --target"
    ):
        apply_checkpoint(CHECKPOINTS / "awq", builder_graph(), tmp_path / "q.onnx", target="tensorrt")
    assert not list(tmp_path.iterdir())
    applied = apply_checkpoint(CHECKPOINTS / "ct-int8-token", builder_graph())
    assert any(note.startswith("inputs stay in float") for note in applied.notes)


def test_layers_in_float_are_told() -> None:
    """A checkpoint of which encodings hold nothing is refused with the reason."""
    with pytest.raises(ModelError, match=r"encodings hold none of its layers; 7 x its groups .*desc_act"):
        apply_checkpoint(CHECKPOINTS / "gptq-act-order", builder_graph())


def test_an_export_needs_a_float_checkpoint_and_a_quantized_model(tmp_path: Path) -> None:
    """A quantized --onto, a float model and an unknown form are refused."""
    path = quantized("gptq", tmp_path / "q.onnx", builder_graph())
    with pytest.raises(ModelError, match="is quantized itself"):
        export_checkpoint(path, CHECKPOINTS / "gptq", tmp_path / "out", "modelopt")
    with pytest.raises(ModelError, match="has no quantized weights"):
        export_checkpoint(builder_graph(), FLOAT, tmp_path / "out", "modelopt")
    with pytest.raises(RecipeError, match="not written as 'modelop'; nearest: modelopt"):
        export_checkpoint(path, FLOAT, tmp_path / "out", "modelop")


def test_large_checkpoints_are_cut(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Tensors beyond the size of a file go to several, with an index; companions are copied, code is not."""
    base = tmp_path / "base"
    shutil.copytree(FLOAT, base)
    (base / "tokenizer.json").write_text("{}")
    (base / "modeling_own.py").write_text("raise SystemExit")
    monkeypatch.setattr("onnxfq.checkpoints.writing.MOST_BYTES", 5000)
    path = quantized("ct-int8", tmp_path / "q.onnx", builder_graph())
    exported = export_checkpoint(path, base, tmp_path / "out", "compressed-tensors")
    files = sorted(p.name for p in (tmp_path / "out").iterdir())
    assert "model.safetensors.index.json" in files and "tokenizer.json" in files
    assert sum(name.startswith("model-") for name in files) > 1
    assert any("'modeling_own.py'" in note for note in exported.notes)
    first, second = Checkpoint.open(CHECKPOINTS / "ct-int8"), Checkpoint.open(tmp_path / "out")
    assert all(first.array(n).tobytes() == second.array(n).tobytes() for n in first.entries)


MISTAKES = {
    "no --onto": ("convert CT -o q.onnx", "--onto is missing; give the float ONNX model"),
    "no --onto for --to": (
        "convert m.onnx -o out --to modelopt",
        "--onto is missing; give the float checkpoint",
    ),
    "--to of a folder": ("convert CT -o out --to modelopt --onto m.onnx", "MODEL is a folder; give a model"),
    "--data": ("convert CT -o q.onnx --onto m.onnx --data d.npz", "--data has no effect on checkpoints"),
    "--target and --to": (
        "convert m.onnx -o out --onto FLOAT --to modelopt --target tensorrt",
        "--target is for ONNX models",
    ),
    "--onto of a model": (
        "convert m.onnx -o q.onnx --onto m.onnx",
        "--onto and --partial are for checkpoints",
    ),
    "a full folder": ("convert CT -o full --onto m.onnx", "full exists and is not an empty folder"),
    "inside the checkpoint": (
        "convert base/ -o base/config.json --onto m.onnx",
        "would replace a file in folder",
    ),
    "an unknown target": ("convert CT -o q.onnx --onto m.onnx --target tensorr", "tensorr"),
}


@pytest.mark.parametrize("case", MISTAKES)
def test_mistakes(
    case: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """Wrong usage ends with one line, and nothing is written."""
    monkeypatch.chdir(tmp_path)
    onnx.save(builder_graph(), "m.onnx")
    np.savez("d.npz", input_ids=np.zeros((1, 4), np.int64))
    shutil.copytree(CHECKPOINTS / "gptq", "base")
    Path("full").mkdir()
    Path("full/a").write_text("a")
    before = sorted(Path().rglob("*"))
    line, wanted = MISTAKES[case]
    words = line.replace("CT", str(CHECKPOINTS / "gptq")).replace("FLOAT", str(FLOAT)).split()
    assert main(words) != 0
    told = capfd.readouterr().err
    assert wanted in told and told.count("\n") <= 3 and "Traceback" not in told
    assert sorted(Path().rglob("*")) == before


def test_large_weights_go_through_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Weights that do not stay in memory give the same bytes."""
    quantized("ct-pack-int4", tmp_path / "a.onnx", builder_graph())
    monkeypatch.setattr("onnxfq.graph.external.sizes.IN_MEMORY", 0)
    monkeypatch.setattr("onnxfq.graph.constants._FEW", 0)
    onnx.save(builder_graph(), tmp_path / "m.onnx")
    apply_checkpoint(CHECKPOINTS / "ct-pack-int4", tmp_path / "m.onnx", tmp_path / "b.onnx")
    tensors = [
        sorted(t.SerializeToString() for t in onnx.load(tmp_path / file).graph.initializer)
        for file in ("a.onnx", "b.onnx")
    ]
    assert tensors[0] == tensors[1]


def test_half_graphs_hold_the_same_numbers(tmp_path: Path) -> None:
    """A float16 graph gets the numbers of GPTQ, whose scales are float16; TensorRT refuses those of bfloat16.

    ONNX Runtime's graph is float32 inside, and holds both.
    """
    proto = builder_graph()
    for tensor in proto.graph.initializer:
        tensor.CopyFrom(
            numpy_helper.from_array(numpy_helper.to_array(tensor).astype(np.float16), tensor.name)
        )
    proto.graph.output[0].type.tensor_type.elem_type = onnx.TensorProto.FLOAT16
    stored = StoredLayers(onnx.load(quantized("gptq", tmp_path / "q.onnx", proto)))
    (place,) = [p for p in stored.places() if "o_proj" in p.tensor]
    made, wanted = (
        stored.read(place),
        QuantizedCheckpoint(CHECKPOINTS / "gptq").read(f"{LAYER}.self_attn.o_proj"),
    )
    assert not isinstance(wanted, FloatLayer)
    assert np.array_equal(made.numbers, wanted.numbers) and np.array_equal(made.scale, wanted.scale)
    small = CHECKPOINTS / "modelopt-fp8"
    with pytest.raises(
        PlanError, match="is float16 in the graph, and a scale of the checkpoint is not exact"
    ):
        apply_checkpoint(small, proto, tmp_path / "r.onnx", target="tensorrt")
    apply_checkpoint(small, proto, tmp_path / "r.onnx", target="onnxruntime")
    stored = StoredLayers(onnx.load(tmp_path / "r.onnx"))
    (place,) = [p for p in stored.places() if "o_proj" in p.tensor]
    wanted = QuantizedCheckpoint(small).read(f"{LAYER}.self_attn.o_proj")
    assert not isinstance(wanted, FloatLayer) and np.array_equal(stored.read(place).scale, wanted.scale)


def test_a_tied_head_is_the_embedding(tmp_path: Path) -> None:
    """A checkpoint that ties its head has no tensor for it: the graph's head gets the embedding."""
    folder = tmp_path / "tied"
    shutil.copytree(CHECKPOINTS / "gptq", folder)
    path = folder / "model.safetensors"
    arrays = {n: np.array(e.array()) for n, e in read_head(path).items() if n != "lm_head.weight"}
    write_tensors(path, arrays)
    config = json.loads((folder / "config.json").read_text())
    with pytest.raises(ModelError, match="products of the graph have no weight in the checkpoint"):
        apply_checkpoint(folder, builder_graph())
    (folder / "config.json").write_text(json.dumps(config | {"tie_word_embeddings": True}))
    applied = apply_checkpoint(folder, builder_graph())
    head = numpy_helper.to_array(applied.model.constants["lm_head.MatMul.weight"])
    assert np.array_equal(head, arrays["model.embed_tokens.weight"].astype(np.float32).T)
