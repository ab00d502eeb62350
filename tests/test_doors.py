"""A user who gives something else reads in one line what to do."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from builders import build, conv_relu, feed_for, weights

import onnxfq
from onnxfq.cli.main import main
from onnxfq.errors import ArgumentError, DataError, ModelError
from onnxfq.targets.recipes import RECIPES

FEEDS = [feed_for(conv_relu(), seed) for seed in range(8)]
UNREPAIRED = onnxfq.AccuracyTarget(repair=None)


@pytest.mark.parametrize(
    ("name", "remedy"),
    [
        ("m.pt", "load the module, and write it with torch.onnx.export or onnxfq.torch.export_torch"),
        ("m.tflite", "python -m tf2onnx.convert"),
        ("m.engine", "give the ONNX model that it was built from"),
        ("m.safetensors", "onnxfq convert CHECKPOINT --onto model.onnx"),
        ("m.onnx", "it is an archive: of arrays, give it as data; of a model, unpack it"),
    ],
)
def test_files_of_other_kinds_as_model(tmp_path: Path, name: str, remedy: str) -> None:
    """The line names what makes an ONNX model of it."""
    torch.save({"w": torch.zeros(3)}, tmp_path / name)
    with pytest.raises(ModelError, match="is not an ONNX file, or it is damaged") as caught:
        onnxfq.load(tmp_path / name)
    assert remedy in str(caught.value)


@pytest.mark.parametrize(
    ("name", "remedy"),
    [
        ("d.pt", "INPUT=tensor.numpy()"),
        ("d.csv", "numpy.loadtxt"),
        ("d.mp4", "ffmpeg -i FILE"),
        ("d.parquet", "module:function"),
        ("d.dat", "write it with numpy.savez"),
    ],
)
def test_files_of_other_kinds_as_data(tmp_path: Path, name: str, remedy: str) -> None:
    """The line names how it becomes an array."""
    (tmp_path / name).write_bytes(b"1,2,3\n4,5,6\n" * 9)
    with pytest.raises(DataError, match="is not a readable .npz") as caught:
        onnxfq.quantize(conv_relu(), tmp_path / name)
    assert remedy in str(caught.value)


def test_a_folder_of_a_hub_has_its_command(tmp_path: Path) -> None:
    """For a checkpoint of transformers the line has the command; for any other folder not."""
    with pytest.raises(ModelError, match="give a folder of ONNX Runtime GenAI, or the path of a model$"):
        onnxfq.quantize(tmp_path, "t.txt")
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(ModelError, match="--python PYTHON makes one.*onnxruntime_genai.models.builder -i "):
        onnxfq.quantize(tmp_path, "t.txt")


@pytest.mark.parametrize("recipe", sorted(RECIPES))
def test_without_data(recipe: str) -> None:
    """A recipe that observes nothing needs no data; others name such recipes of their target."""
    chosen = RECIPES[recipe].override(small_shapes="quantize")
    proto = build("g (float[N,64] x) => (float[N,64] y) { y = MatMul (x, w) }", {"w": weights(64, 64)})
    scheme = chosen.activations
    if scheme is None or (scheme.dynamic and scheme.scale_type != "e4m3"):
        assert onnxfq.quantize(proto, recipe=chosen).plan.weights
        return
    with pytest.raises(DataError, match="needs data to observe .* or a recipe that needs neither") as caught:
        onnxfq.quantize(proto, recipe=chosen)
    named = str(caught.value).partition("neither")[2].removeprefix(", as ").split(", ")
    assert recipe not in named and all(RECIPES[name].target == chosen.target for name in named if name)


@pytest.mark.parametrize("shape", [(2, 1, 32, 32), (2, 3, 28, 28), (2, 1, 28, 27)])
def test_images_of_another_shape(shape: tuple[int, ...]) -> None:
    """Size and channels that do not fit have a remedy."""
    text = "g (float[N,1,28,28] x) => (float[N,4,26,26] y) { y = Conv (x, w) }"
    proto = build(text, {"w": weights(4, 1, 3, 3)})
    with pytest.raises(DataError, match="its shape must fit .*; give images as files, .*--resize, --color"):
        onnxfq.quantize(proto, np.zeros(shape, np.float32))


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: onnxfq.quantize(123, FEEDS), "the model is of type builtins.int; give a path"),
        (lambda: onnxfq.quantize(onnxfq.load(conv_relu()), FEEDS), "give a path or .*, which is its .proto$"),
        (lambda: onnxfq.check(conv_relu().SerializeToString()), "load_from_string makes of bytes$"),
        (lambda: onnxfq.quantize(conv_relu(), FEEDS, recipe=None), "the recipe is a NoneType; give a name"),
        (lambda: onnxfq.quantize(torch.nn.ReLU(), FEEDS), "of type torch.nn.modules.activation.ReLU; give"),
        (
            lambda: onnxfq.quantize(conv_relu(), FEEDS, options=onnxfq.DataOptions()),
            "options is a DataOptions",
        ),
        (lambda: onnxfq.evaluate(conv_relu(), conv_relu(), FEEDS, options={"batch": 1}), "options is a dict"),
    ],
)
def test_arguments_of_other_types(call: Any, words: str) -> None:
    """A wrong type is an ArgumentError, a TypeError too, with what to give."""
    with pytest.raises(ArgumentError, match=words):
        call()


@pytest.mark.parametrize("scale", ["1/255", b"1", [1, "a"], object()])
def test_a_scale_that_is_no_number(scale: Any) -> None:
    """The form of the command line is not one of Python, and says so."""
    with pytest.raises(DataError, match="scale is .*; give a number, or one for each channel"):
        onnxfq.DataOptions(scale=scale)


def test_swapped_arguments_of_evaluate(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """A note names a quantized reference with a float candidate; the right order has none."""
    written = onnxfq.quantize(conv_relu(), FEEDS, tmp_path / "q.onnx", accuracy=UNREPAIRED).qdq
    assert "the float model comes first" in onnxfq.evaluate(written, conv_relu(), FEEDS).table()
    assert "comes first" not in onnxfq.evaluate(conv_relu(), written, FEEDS).table()
    assert "comes first" not in onnxfq.evaluate(written, written, FEEDS).table()
    onnx.save(conv_relu(), tmp_path / "m.onnx")
    np.savez(tmp_path / "d.npz", x=np.concatenate([feed["x"] for feed in FEEDS]))
    line = ["evaluate", str(tmp_path / "q.onnx"), str(tmp_path / "m.onnx"), "--data", str(tmp_path / "d.npz")]
    assert main(line) == 0 and "the float model comes first" in capfd.readouterr().out
