"""The options that describe data: every command that reads some has them, and they do what Python does."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import onnx
import pytest
from builders import conv_relu

from onnxfq.calibration.statistics import Statistics
from onnxfq.cli.main import main
from onnxfq.data import DataOptions
from onnxfq.quantizing.pipeline import quantize
from onnxfq.stages.options import RunOptions

PIXELS = np.random.default_rng(1).integers(0, 256, (40, 3, 6, 6)).astype(np.uint8)
PREPROCESSOR = """{"image_processor_type": "CLIPImageProcessor", "size": {"shortest_edge": 8}, "resample": 3,
  "crop_size": {"height": 6, "width": 6}, "do_rescale": false, "do_normalize": false}"""
MODULE = "import numpy as np\ndef feeds():\n    yield {'x': np.load('pixels.npy') / np.float32(255)}\n"


@pytest.fixture
def workplace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A current folder with model.onnx and the same 40 images as array, as folder and as module."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    onnx.save(conv_relu(), "model.onnx")
    np.save("pixels.npy", PIXELS)
    Path("data_of_test.py").write_text(MODULE, encoding="utf-8")
    return tmp_path


def observed(arguments: str) -> Statistics:
    """Observe model.onnx as the command line does."""
    assert main(f"observe model.onnx -o s.npz -q {arguments}".split()) == 0
    return Statistics.load("s.npz")


def test_every_source_that_a_string_names(workplace: Path) -> None:
    """An .npy, a folder of images and module:function give the same statistics, to the byte."""
    image = pytest.importorskip("PIL.Image")
    Path("images").mkdir()
    for number, pixels in enumerate(PIXELS):
        image.fromarray(pixels.transpose(1, 2, 0)).save(f"images/{number:02}.png")
    files = []
    for data in ("pixels.npy --scale 1/255", "images --scale 1/255 --layout nchw --color rgb --resize 6x6"):
        observed(f"--data {data}")
        files.append(Path("s.npz").read_bytes())
    assert files[0] == files[1]
    crop = "--data images --scale 1 --resize 8 --crop 6x6 --resample bicubic"
    Path("clip.json").write_text(PREPROCESSOR, encoding="utf-8")
    for data in (crop, "--data images --preprocessor clip.json"):
        assert observed(data)["x"].rmax == 255.0
        files.append(Path("s.npz").read_bytes())
    assert files[2] == files[3] != files[0]
    assert main("observe model.onnx -o s.npz --data images --preprocessor clip.json --std 2".split()) == 2
    # A true division by 255 and the product with 1/255 round differently.
    one, other = observed("--data data_of_test:feeds"), Statistics.load("s.npz")
    assert one["x"].rmax == other["x"].rmax == 1.0


def test_options_reach_the_values(workplace: Path) -> None:
    """Scale, mean, std, limit and batch of the command equal Python's."""
    line = "--data pixels.npy --scale 0.1 --mean 1,2,3 --std 0.5 --limit 33 --batch 16"
    assert main(f"quantize model.onnx -o one.onnx -q {line}".split()) == 0
    described = DataOptions(scale=0.1, mean=(1.0, 2.0, 3.0), std=0.5, limit=33)
    quantize("model.onnx", "pixels.npy", "two.onnx", options=RunOptions(batch=16, data=described))
    assert Path("one.onnx").read_bytes() == Path("two.onnx").read_bytes()
    assert observed(line).feeds == 3
    assert observed("--data pixels.npy --scale 1 --batch 0").feeds == 1
    x = PIXELS[:33] * np.float32(0.1) - np.float32([1, 2, 3]).reshape(3, 1, 1)
    assert observed(line)["x"].rmax == (x / np.float32(0.5)).max()


def test_nonfinite_values_can_be_skipped(workplace: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """NaN in the data stops, with the option that skips it; then the other values are observed."""
    x = PIXELS / np.float32(255)
    x[7, 0, 0, 0] = np.nan
    np.savez("nan.npz", x=x)
    assert main("observe model.onnx --data nan.npz -o s.npz".split()) == 1
    assert "1 NaN and 0 infinite values in sample 7; remove it, or let" in capfd.readouterr().err
    assert observed("--data nan.npz --nonfinite skip")["x"].nans == 1


def test_an_example_guards_evaluation_too(workplace: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """`evaluate` refuses data on another scale than the example; few samples do not matter there."""
    np.savez("one.npz", x=PIXELS[:1] / np.float32(255))
    np.savez("few.npz", x=PIXELS[:3].astype(np.float32))
    line = "evaluate model.onnx model.onnx --data few.npz --example one.npz"
    assert main(line.split()) == 1
    assert "give --scale 0.00392" in capfd.readouterr().err
    assert main(f"{line} --scale 0.00392 -q".split()) == 0
    assert capfd.readouterr().err == ""


@pytest.mark.parametrize(
    "command",
    [
        "quantize model.onnx -o made.onnx",
        "observe model.onnx -o s.npz",
        "evaluate model.onnx model.onnx",
        "sensitivity model.onnx",
        "cast model.onnx -o half.onnx",
    ],
)
def test_json_has_what_a_reader_took_and_left(
    command: str, workplace: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """JSON counts the samples that were read, and names the other file of the folder."""
    folder = workplace / "arrays"
    folder.mkdir()
    for number, pixels in enumerate(PIXELS[:20].astype(np.float32)):
        np.save(folder / f"{number:02}.npy", pixels[None])
    (folder / "readme.txt").write_text("no data", encoding="utf-8")
    assert main([*command.split(), "--data", "arrays", "--json"]) in (0, 1)
    found = json.loads(capsys.readouterr().out)["reading"]["arrays"]
    assert found["took"] == ["20 samples"]
    assert "of arrays are read: 20 *.npy; left out: 1 *.txt" in found["left"]
