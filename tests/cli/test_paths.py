"""Odd paths as every parameter of every command that takes a path: it works, or ends in one line."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from command_server import CommandServer
from command_table import SOUND, TABLE, VALUES, Parameter, values_of, with_value
from fuzzed_inputs import snapshot

import onnxfq

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="forks, and reads /proc")


def nothing(path: Path) -> None:
    """Leave it as it is."""


def unreadable(path: Path) -> None:
    """A file that only root may read."""
    path.write_bytes(b"x")
    path.chmod(0)


ODD: dict[str, Callable[[Path], object]] = {
    ".": nothing,
    "/": nothing,
    "..": nothing,
    "": nothing,
    "folder": nothing,
    "missing/file": nothing,
    "m.onnx/file": nothing,
    "/dev/null": nothing,
    "/dev/full": nothing,
    f"out{'x' * 247}.onnx": nothing,  # 255 bytes, the longest name
    f"out{'x' * 248}.onnx": nothing,
    f"out{'ü' * 60}.onnx": nothing,
    "outpipe": os.mkfifo,
    "outloop": lambda path: path.symlink_to(path.name),
    "outlink": lambda path: path.symlink_to("nowhere/file"),
    "outsecret": unreadable,
    "empty": lambda path: path.touch(),
}
"""Odd paths, and how they are made."""


@pytest.fixture(scope="module", name="inputs")
def inputs_and_folder(tmp_path_factory: pytest.TempPathFactory, inputs: Path) -> Path:
    """Sound inputs of every command, and a folder with a file."""
    folder = shutil.copytree(inputs, tmp_path_factory.mktemp("paths") / "inputs")
    (folder / "folder").mkdir()
    (folder / "folder" / "text").write_text("text")
    return folder


@pytest.mark.parametrize(
    "odd", ["a\0b.onnx", "a\0b.npz", "a\0b:f", ".", "/", "", "..", "a" * 300, "a" * 300 + ":f"]
)
def test_odd_paths_in_python(odd: str, inputs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each argument of `quantize` works or raises an OnnxfqError, for NULs too, which no command line has."""
    monkeypatch.chdir(inputs)
    taken = {"model": "m.onnx", "data": "d.npz", "output": "out.onnx", "recipe": "tensorrt-int8"}
    files = ("statistics", "moments", "encodings", *taken)
    refused = 0
    for name in files:
        if (name, odd) == ("data", "/"):  # all of it would be read, as test_odd_paths does
            continue
        try:
            if name in taken:
                onnxfq.quantize(**taken | {name: odd})
            else:
                onnxfq.quantize(**taken, sources=onnxfq.Sources(**{name: odd}))
        except onnxfq.errors.OnnxfqError:
            refused += 1
    for name in ("labels", "metric")[odd == "/" :]:
        with pytest.raises(onnxfq.errors.OnnxfqError):
            onnxfq.quantize(accuracy=onnxfq.AccuracyTarget(max_drop=1, **{name: odd}), **taken)
    (inputs / "out.onnx").unlink(missing_ok=True)
    assert refused >= len(files) - 1  # data may be the current folder


@pytest.mark.sample
def test_every_command_and_parameter_is_known() -> None:
    """A new command or option needs a sound line or values in command_table.py, and no more."""
    assert SOUND.keys() == TABLE.keys()
    for command, parameters in TABLE.items():
        for parameter in parameters:
            assert values_of(parameter), (command, parameter)
    named = {parameter.name for parameters in TABLE.values() for parameter in parameters}
    assert named >= VALUES.keys()


def find_fault(
    command: str, parameter: Parameter, odd: str, inputs: Path, folder: Path, server: CommandServer
) -> str:
    """Return what is wrong with how `command` takes the path `odd`; empty if nothing is."""
    shutil.copytree(inputs, folder)
    if odd and not Path(odd).is_absolute():
        ODD[odd](folder / odd)
    before = snapshot(folder)
    ended = server.run(with_value(command, parameter, odd), folder)
    after = snapshot(folder)
    changed = [name for name, content in before.items() if after.get(name) != content]
    if parameter.is_output and odd in ("empty", "outsecret", "folder", ".") and ended.code == 0:
        changed = [name for name in changed if name != odd]
    left = [name for name in after if name not in before and "__pycache__" not in name]
    if ended.code in (0, 3):
        left = [name for name in left if ".part" in name]
    if ended.fault or ended.code not in (0, 1, 2, 3) or changed or left:
        return f"{' '.join(with_value(command, parameter, odd))}: {ended.fault} {ended.code} {changed} {left}"
    return ""


@pytest.mark.parametrize("command", TABLE)
def test_odd_paths(command: str, inputs: Path, server: CommandServer, tmp_path: Path) -> None:
    """Each ends in one line, quickly, changes no input and leaves nothing; ONNXFQ_ODD_PATHS=1 tries all."""
    cases = [(parameter, odd) for parameter in TABLE[command] if parameter.is_path for odd in ODD]
    every = int(os.environ.get("ONNXFQ_ODD_PATHS", "41"))
    faults = []
    for number, (parameter, odd) in enumerate(cases[3 * len(command) % every :: every]):
        folder = tmp_path / str(number)
        faults.append(find_fault(command, parameter, odd, inputs, folder, server))
        shutil.rmtree(folder)
    assert not any(faults), "\n".join(filter(None, faults))


@pytest.mark.parametrize("command", TABLE)
def test_names_of_other_bytes(command: str, inputs: Path, server: CommandServer) -> None:
    """A name that UTF-8 does not hold is refused before anything is read: no result could name the file."""
    for parameter in (one for one in TABLE[command] if one.is_path):
        ended = server.run(with_value(command, parameter, "m\udcff.onnx"), inputs)
        assert (ended.code, ended.fault) == (2, "")
        words = " ".join(ended.err.split())
        assert "'m\\udcff.onnx' holds bytes that UTF-8 does not have; rename the file" in words
