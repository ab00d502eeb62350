"""What commands print fits the terminal: no line is longer, no word is cut, and none is lost."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

import numpy as np
import onnx
import pytest
from builders import feed_for, two_branch
from short_digits import short_digits

from onnxfq.cli.digits import run_demo
from onnxfq.cli.main import COMMANDS, main
from onnxfq.support.resources import package_file

PART = re.compile(r"[^./:_,]*[./:_,]+|[^./:_,]+")
"""What a line may end behind: a word, and the parts of a name."""

LINES = {
    "quantize": "quantize m.onnx --data d.npz -o q.onnx --artifacts kept",
    "quantize several": "quantize m.onnx --data d.npz -o two --recipe tensorrt-int8 "
    "--recipe onnxruntime-int8",
    "plan": "plan m.onnx -o p.json --gpu l4",
    "observe": "observe m.onnx --plan p.json --data d.npz -o s.npz",
    "calibrate": "calibrate m.onnx --plan p.json --statistics s.npz -o e.json --table",
    "insert": "insert m.onnx --plan p.json --encodings e.json -o i.onnx",
    "evaluate": "evaluate m.onnx q.onnx i.onnx --data d.npz --per-tensor",
    "sensitivity": "sensitivity m.onnx --data d.npz",
    "diagnose": "diagnose bad.onnx --float m.onnx --data d.npz",
    "check": "check two/m.onnxruntime-int8.onnx --gpu l4",
    "handoff": "handoff q.onnx -o kit{} --data d.npz",
    "convert": "convert two/m.onnxruntime-int8.onnx -o c.onnx --data d.npz",
    "cast": "cast m.onnx -o half.onnx --data d.npz",
    "compare": "compare q.onnx --data d.npz",
    "inspect": "inspect q.onnx",
    "inspect two": "inspect m.onnx q.onnx",
    "report": "report kept/m.result.json -o page.html",
    "recipes": "recipes --gpu l4",
    "doctor": "doctor",
    "demo": "demo -o demo",
}


def long_names(proto: onnx.ModelProto) -> onnx.ModelProto:
    """Return a model whose inner tensors have names as exporters give them."""
    ends = {value.name for value in (*proto.graph.input, *proto.graph.output)}
    for names in (node.input for node in proto.graph.node), (node.output for node in proto.graph.node):
        for held in names:
            held[:] = [
                name if name in ends or not name else f"backbone.encoder.layers.0.{name}" for name in held
            ]
    for tensor in proto.graph.initializer:
        tensor.name = f"backbone.encoder.layers.0.{tensor.name}"
    return proto


def spoil(proto: onnx.ModelProto) -> onnx.ModelProto:
    """Return a Q/DQ model one of whose activations has a scale of a hundredth."""
    pair = next(
        node for node in proto.graph.node if node.op_type == "QuantizeLinear" and "0." in node.input[0]
    )
    for tensor in proto.graph.initializer:
        if tensor.name == pair.input[1]:
            tensor.CopyFrom(
                onnx.numpy_helper.from_array(
                    onnx.numpy_helper.to_array(tensor) / np.float32(100), tensor.name
                )
            )
    return proto


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the inputs of all lines."""
    folder = tmp_path_factory.mktemp("terminal")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        onnx.save(long_names(two_branch()), "m.onnx")
        onnx.save(short_digits(), "short.onnx")
        np.savez("d.npz", **feed_for(two_branch(), count=12))
        for name in ("quantize", "quantize several", "plan", "observe", "calibrate", "insert"):
            assert main([*LINES[name].split(), "-q"]) == 0
        onnx.save(spoil(onnx.load("q.onnx")), "bad.onnx")
    return folder


def mask(text: str) -> str:
    """Return `text` without what differs between runs: numbers, and the stages that took no time to name."""
    return re.sub(r"[\d,]*\d", "0", re.sub(r"^time .*?^(?=\S)", "", text, flags=re.MULTILINE | re.DOTALL))


@pytest.mark.sample
def test_every_command_has_a_line() -> None:
    """No command is left out."""
    assert {line.split()[0] for line in LINES.values()} == set(COMMANDS)


@pytest.mark.parametrize("name", LINES)
def test_lines_fit(
    name: str,
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
    request: pytest.FixtureRequest,
) -> None:
    """At 80 columns (all cases: 140 too) each line of several words fits; the words are a wide terminal's."""
    monkeypatch.chdir(folder)
    monkeypatch.setattr("onnxfq.cli.digits.run_demo", cache(run_demo))
    # Fewer digits and layers give lines of the same form.
    for part in ("CALIBRATION", "SCORING"):
        monkeypatch.setattr(f"onnxfq.cli.digits.{part}", slice(8000, 8012))
    files = {"digits_cnn.onnx": folder / "short.onnx"}
    monkeypatch.setattr(
        "onnxfq.cli.digits.package_file", lambda *words: files.get(words[-1]) or package_file(*words)
    )
    shown = {}
    for columns in (1000, 80, 140) if request.config.getoption("--all-cases") else (1000, 80):
        monkeypatch.setattr("onnxfq.cli.streams.measure_room", lambda stream, columns=columns: columns)
        main(LINES[name].format(columns).split())
        shown[columns] = capfd.readouterr().out
        assert shown[columns]
        long = [line for line in shown[columns].splitlines() if len(line) > columns and len(line.split()) > 2]
        assert long == []
    wide = {part for word in mask(shown.pop(1000)).split() for part in PART.findall(word)}
    for columns, text in shown.items():
        narrow = {part for word in mask(text).split() for part in PART.findall(word)}
        assert narrow == wide, columns


def test_a_file_has_whole_lines(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """Without a terminal nothing is broken, whatever COLUMNS says: programs read it."""
    monkeypatch.chdir(folder)
    monkeypatch.setenv("COLUMNS", "40")
    assert main(["recipes"]) == 0
    assert any("float4e2m1, blocks of 16, dynamic " in line for line in capfd.readouterr().out.splitlines())


def test_numbers_agree(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """One is singular, on standard output and in notes."""
    monkeypatch.chdir(folder)
    main("sensitivity m.onnx --data d.npz --samples 1 --limit 1".split())
    printed = capfd.readouterr()
    assert ", 1 sample\n" in printed.out and "has only 1 sample;" in printed.err
