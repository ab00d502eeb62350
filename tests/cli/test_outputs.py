"""Outputs of commands: none replaces an input, and all of one command appear or none."""

from __future__ import annotations

import hashlib
import importlib
import json
import os
import shutil
from pathlib import Path

import numpy as np
import onnx
import pytest
from builders import conv_relu, feed_for, linear

from onnxfq.cli.main import main
from onnxfq.errors import OutputError
from onnxfq.graph.external import sizes
from onnxfq.support import outputs

RECIPE = "name: mine\ntarget: tensorrt\nweights: {qtype: int8}\nactivations: {qtype: int8}\n"
COMMANDS = {
    "quantize": "quantize m.onnx --data d.npz --recipe r.yaml --example e.npz -o OUT",
    "quantize, images": "quantize m.onnx --data folder -o OUT",
    "quantize, code": "quantize m.onnx --data maker:feeds -o OUT",
    "quantize, statistics": "quantize m.onnx --data d.npz --statistics m.stats.npz -o OUT",
    "quantize, report": "quantize m.onnx --data d.npz --recipe r.yaml -o q.onnx --report OUT",
    "quantize, artifacts": "quantize m.onnx --statistics OUT/m.stats.npz -o q.onnx --artifacts OUT",
    "plan": "plan m.onnx --recipe r.yaml --data d.npz -o OUT",
    "observe": "observe m.onnx --plan p.json --data d.npz --example e.npz -o OUT",
    "calibrate": "calibrate m.onnx --plan p.json --statistics m.stats.npz -o OUT",
    "calibrate, table": "calibrate m.onnx --plan p.json --statistics m.stats.npz -o q.json --table-csv OUT",
    "insert": "insert m.onnx --plan p.json --encodings c.json -o OUT",
    "convert": "convert m.onnx --data d.npz -o OUT",
    "cast": "cast m.onnx --data d.npz -o OUT",
    "calibrate, format": "calibrate m.onnx --plan p.json --encodings c.json --format tensorrt-cache -o OUT",
    "observe --merge": "observe --merge m.stats.npz other.stats.npz -o OUT",
}
OTHERS = {"folder": "folder/0.npz", "maker:feeds": "maker.py"}
"""Files behind a word of a command."""


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with an input of every kind."""
    folder = tmp_path_factory.mktemp("made")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        onnx.save(conv_relu(), "m.onnx")
        x = np.concatenate([feed_for(conv_relu(), seed)["x"] for seed in range(3)])
        np.savez("d.npz", x=x)
        np.savez("e.npz", x=x / 2)
        Path("folder").mkdir()
        np.savez("folder/0.npz", x=x)
        Path("r.yaml").write_text(RECIPE)
        code = "import numpy as np\ndef feeds():\n    return [dict(np.load('d.npz'))]\n"
        Path("maker.py").write_text(code)
        for line in (
            "plan m.onnx -o p.json",
            "observe m.onnx --plan p.json --data d.npz -o m.stats.npz",
            "observe m.onnx --plan p.json --data e.npz -o other.stats.npz",
            "calibrate m.onnx --plan p.json --statistics m.stats.npz -o c.json",
        ):
            assert main([*line.split(), "-q"]) == 0
    return folder


@pytest.fixture
def files(made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of that folder, which is the current one."""
    shutil.copytree(made, tmp_path, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def contents(folder: Path) -> dict[str, str]:
    """Hashes of all files."""
    return {
        str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(folder.rglob("*"))
        if path.is_file() and "__pycache__" not in path.parts
    }


@pytest.mark.sample
def test_no_output_replaces_an_input(files: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """Every output of every command onto every input of it: one line, and all files as before."""
    for what, line in COMMANDS.items():
        words = line.split()
        used = {word for word in words if (files / word).exists()}
        used |= {OTHERS[word] for word in words if word in OTHERS}
        for taken in sorted(used - {"folder"}):
            place = taken
            if "OUT/m.stats.npz" in words:  # a file of the folder of artifacts
                place = "art"
                Path("art").mkdir(exist_ok=True)
                Path("art/m.stats.npz").write_bytes(Path("m.stats.npz").read_bytes())
            before = contents(files)
            code = main([word.replace("OUT", place) for word in words])
            text = capfd.readouterr().err
            assert code == 1 and text.count("\n") == 1, (what, taken, text)
            assert "another file of this command" in text or "would replace" in text, (what, taken, text)
            assert contents(files) == before, (what, taken)


@pytest.mark.parametrize(
    ("module", "name"), [("onnxfq.report.html", "render_page"), ("onnxfq.support.records", "write_document")]
)
def test_all_outputs_or_none(
    files: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, module: str, name: str
) -> None:
    """A report or an artifact that fails leaves neither the model nor a part of the artifacts."""

    def refuse(*given: object) -> None:
        raise OutputError("no space left")

    before = contents(files)
    line = "quantize m.onnx --data d.npz --repair off --float fp16 -o q.onnx --report q.html --artifacts "
    with monkeypatch.context() as patched:
        patched.setattr(importlib.import_module(module), name, refuse)
        for folder in ("new", "folder"):
            assert main([*line.split(), folder]) == 1 and "no space left" in capfd.readouterr().err
            assert contents(files) == before and not Path("new").exists()
    for folder in ("new", "folder"):
        assert main([*line.split(), folder]) == 0
        assert {"q.onnx", "q.html", f"{folder}/m.plan.json", f"{folder}/m.fakequant.onnx"} <= set(
            contents(files)
        )


SEVERAL = {
    "quantize m.onnx --data d.npz --repair off -o q.onnx --report q.html --artifacts FOLDER": (
        *("q.onnx", "q.html"),
        *("FOLDER/m.plan.json", "FOLDER/m.encodings.json", "FOLDER/m.result.json"),
    ),
    "calibrate m.onnx --plan p.json --statistics m.stats.npz -o k.json --table-csv k.csv": (
        "k.json",
        "k.csv",
    ),
    "sensitivity m.onnx --data d.npz -o n.json --recipe-out n.yaml --report n.html": (
        *("n.json", "n.yaml", "n.html"),
    ),
}
"""Commands with several outputs; FOLDER is a new folder and then one with a file."""


@pytest.mark.grid
@pytest.mark.parametrize("line", SEVERAL, ids=lambda line: line.split()[0])
@pytest.mark.parametrize("folder", ["new", "folder"])
def test_an_output_that_cannot_take_its_name(
    files: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, line: str, folder: str
) -> None:
    """Whichever it is, no other is left, and what stood at the paths stands there again."""
    take_name = outputs.WrittenFile.take_name
    places = [place.replace("FOLDER", folder) for place in SEVERAL[line]]
    for failing in places:
        if failing.startswith("new/"):
            failing = "new"
        for former in (False, True):
            for place in places:
                if former and not place.startswith("new/"):
                    Path(place).write_text("former")

            def refuse(written: outputs.WrittenFile, failing: str = failing) -> None:
                if Path(os.path.realpath(written.path)) == (files / failing).resolve():
                    raise OSError(28, "No space left on device")
                take_name(written)

            before = contents(files)
            with monkeypatch.context() as patched:
                patched.setattr(outputs.WrittenFile, "take_name", refuse)
                assert main(line.replace("FOLDER", folder).split()) == 1, failing
            shown = capfd.readouterr()
            assert "No space left on device" in shown.err and shown.out == ""
            assert contents(files) == before, (failing, former)
            assert not Path("new").exists()
            for place in places:
                Path(place).unlink(missing_ok=True)


def test_a_folder_that_came_meanwhile(files: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """At the place of the report: the model is not left either, and the folder stays."""
    Path("late.py").write_text(
        "import os, numpy as np\ndef feeds():\n    os.makedirs('q.html', exist_ok=True)\n"
        "    return [dict(np.load('d.npz'))]\n"
    )
    Path("q.onnx").write_text("former")
    for report in ("q.html", "a.html"):
        words = f"quantize m.onnx --data late:feeds -o q.onnx --report {report} -q".split()
        Path("a.html").write_text("former")
        code = main(words)
        assert Path("q.html").is_dir()
        if report == "q.html":
            assert code == 1 and "cannot write" in capfd.readouterr().err
            assert Path("q.onnx").read_text() == "former"
            Path("q.html").rmdir()
        else:
            assert code == 0 and Path("q.onnx").read_bytes() != b"former"
    assert not list(files.glob(".*"))


@pytest.mark.parametrize("limit", [0, sizes.LIMIT], ids=["with data", "whole"])
def test_data_of_another_model_stays(files: Path, monkeypatch: pytest.MonkeyPatch, limit: int) -> None:
    """Only the data that the replaced model names is removed with it."""
    monkeypatch.setattr(sizes, "LIMIT", limit)
    onnx.save(linear(64, 64), "l.onnx")
    np.savez("l.npz", **feed_for(linear(64, 64)))
    other = Path("q.onnx.0123456789abcdef.data")
    other.write_bytes(b"precious")
    for recipe in ("tensorrt-int8", "tensorrt-fp8"):
        assert main(["quantize", "l.onnx", "--data", "l.npz", "-q", "-o", "q.onnx", "--recipe", recipe]) == 0
        assert other.read_bytes() == b"precious"
        assert len(list(files.glob("q.onnx.*.data"))) == (1 if limit else 2)


def test_a_copied_model_keeps_its_data(files: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The data file of a former model goes with it, and stays while a renamed or copied model names it."""
    monkeypatch.setattr(sizes, "LIMIT", 0)
    onnx.save(linear(64, 64), "l.onnx")
    np.savez("l.npz", **feed_for(linear(64, 64)))
    line = "quantize l.onnx --data l.npz -q -o q.onnx --recipe"
    assert main([*line.split(), "tensorrt-int8"]) == 0
    (first,) = files.glob("q.onnx.*.data")
    assert main([*line.split(), "tensorrt-fp8"]) == 0
    assert not first.exists()
    (second,) = files.glob("q.onnx.*.data")
    Path("q.onnx").rename("kept.onnx")
    assert main([*line.split(), "tensorrt-int8-weights"]) == 0
    assert second.exists() and len(list(files.glob("q.onnx.*.data"))) == 2
    onnx.load("kept.onnx")


WRONG_NAMES = {
    "out/": "out/ is the name of a folder",
    "x.tflite": "nothing writes .tflite",
    "x.PT": "writes .PT",
}


@pytest.mark.parametrize("name", WRONG_NAMES)
@pytest.mark.parametrize(
    "line", ["quantize m.onnx --data d.npz -o", "cast m.onnx --data d.npz -o", "cast m.onnx -o"]
)
def test_names_say_what_they_hold(
    line: str, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A name of a folder makes no file, and one of another format holds no ONNX."""
    monkeypatch.chdir(tmp_path)
    onnx.save(conv_relu(), "m.onnx")
    np.savez("d.npz", **feed_for(conv_relu()))
    assert main([*line.split(), name]) == 1
    assert WRONG_NAMES[name] in capsys.readouterr().err and len([*tmp_path.iterdir()]) == 2


def test_failed_recipes_are_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Recipes that fail have one line of an error, with --quiet too."""
    monkeypatch.chdir(tmp_path)
    onnx.save(conv_relu(), "m.onnx")
    np.savez("d.npz", **feed_for(conv_relu()))
    words = "quantize m.onnx --data d.npz --recipe tensorrt-int8 --recipe genai-int4 --quiet -o out"
    assert main(words.split()) == 1
    lines = capsys.readouterr().err.splitlines()
    errors = [line for line in lines if not line.startswith("onnxfq: note: ")]
    assert len(errors) == 1 and errors[0].startswith("onnxfq: error: 1 of 2 recipes failed: genai-int4: ")


def test_codes_of_names_are_escaped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Characters that move a terminal or turn its text are shown as JSON has them, in text and in JSON."""
    monkeypatch.chdir(tmp_path)
    proto, code = conv_relu(), "\x1b]0;t\x07\x9b2J\u202e"
    for node in proto.graph.node:
        node.name = f"{code}{node.name}"
    onnx.save(proto, "m.onnx")
    np.savez("d.npz", **feed_for(conv_relu()))
    for line in (
        "inspect m.onnx",
        "sensitivity m.onnx --data d.npz",
        "sensitivity m.onnx --data d.npz --json",
    ):
        assert main(line.split()) == 0
        shown = capsys.readouterr().out
        assert not {*code} - {*"]0;t2J"} & {*shown}
        assert "--json" not in line or json.loads(shown)
