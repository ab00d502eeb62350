"""No Python file of the working folder runs in any process of a command unless the user names it."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest
from fuzzed_inputs import COMMANDS

import onnxfq
from onnxfq.support.children import python_command, python_environment

HOME = str(Path(onnxfq.__file__).parents[1])
LINES = [*{line.split()[0]: line for line, _ in COMMANDS.values()}.values()]
"""A line of each command."""
STARTING = [
    "check q.onnx --target tensorrt --build",
    "check q.onnx --target openvino --build",
    "observe m.onnx --data d.npz --ray local -o out",
    "quantize m.onnx --data planted_data:feeds -o out",
    "doctor",
]
"""Lines that start other processes."""


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Try a fifth of the commands, which begin alike; all with --all-cases."""
    if "line" in metafunc.fixturenames:
        lines = LINES[:: 1 if metafunc.config.getoption("--all-cases") else 5] + STARTING
        metafunc.parametrize("line", lines, ids=lambda line: line.replace(" ", "_")[:40])


@pytest.fixture(scope="module")
def planted(tmp_path_factory: pytest.TempPathFactory, inputs: Path) -> Path:
    """Return a folder with inputs of the commands, and a file of the name of every module that is installed.

    A few are missing that the interpreter itself imports before it runs anything.
    """
    folder = shutil.copytree(inputs, tmp_path_factory.mktemp("planted") / "inputs")
    code = "import runpy, sys; print(*sys.modules)"
    started = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    names = {*sys.stdlib_module_names, *packages_distributions()} - {*started.stdout.split(), "onnxfq"}
    mark = f"open({str(folder / 'ran')!r}, 'a').write(__name__ + ' ')\nraise ImportError('planted')\n"
    for name in sorted(names):
        if name.isidentifier() and not (folder / f"{name}.py").exists():
            (folder / f"{name}.py").write_text(mark)
    data = "def feeds():\n    import numpy\n    return 'd.npz'\n"
    (folder / "planted_data.py").write_text(data)
    return folder


def test_no_planted_file_runs(line: str, planted: Path, tmp_path: Path) -> None:
    """`python -m onnxfq` finds the libraries that are installed, and so do all that it starts.

    A TMPDIR whose path is too long for Ray's sockets has nothing of the command at its end.
    """
    shutil.rmtree(planted / "out", ignore_errors=True)
    words = [sys.executable, "-m", "onnxfq", *line.split()]
    (place := tmp_path / ("x" * 60)).mkdir()
    places = {"PYTHONPATH": HOME, "TMPDIR": str(place)}
    ended = subprocess.run(words, cwd=planted, env=os.environ | places, capture_output=True)
    assert not list(place.glob("onnxfq-*"))
    ran = planted / "ran"
    found = ran.read_text() if ran.exists() else ""
    ran.unlink(missing_ok=True)
    assert not found, f"ran {found}"
    assert ended.returncode in (0, 1, 3) and b"planted')" not in ended.stderr, ended.stderr


def test_child_on_any_python(planted: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A child finds what the command finds, without the folder that a named module has put on the path."""
    monkeypatch.chdir(planted)
    monkeypatch.setattr(sys, "path", ["", str(planted), *sys.path])
    for version in ((3, 10), sys.version_info):
        monkeypatch.setattr(sys, "version_info", version)
        words = python_command("import sys, socket, numpy; print(sys.argv)", "address")
        ended = subprocess.run(words, env=os.environ | python_environment(), capture_output=True, text=True)
        assert ended.stdout == "['-c', 'address']\n" and not (planted / "ran").exists(), ended.stderr
