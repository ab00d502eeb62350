"""Standard output and error of commands: closed, full, or printed to by code of the user."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from command_server import CommandServer
from command_table import SOUND
from loops import loop_over

import onnxfq
from onnxfq.cli.main import main

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="/dev/full, and shells")

ONNXFQ = f"'{sys.executable}' -m onnxfq"


def shell(line: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """Run a line of bash in `folder`."""
    path = {"PYTHONPATH": str(Path(onnxfq.__file__).parents[1])}
    words = ["bash", "-c", line]
    return subprocess.run(words, cwd=folder, env=os.environ | path, capture_output=True, text=True)


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory, inputs: Path) -> Path:
    """Inputs of every command."""
    return shutil.copytree(inputs, tmp_path_factory.mktemp("streams") / "files")


ENDINGS = {
    "| true; exit ${PIPESTATUS[0]}": (0, 0),
    "> /dev/full": (1, 1),
    ">&-": (0, 0),
    "2>&-": (0, 0),
    "> /dev/null 2> /dev/full": (0, 0),
    "<&- >&- 2>&-": (0, 0),
}
"""Endings of a line of bash, each with its exit code and its number of errors."""


def test_streams(files: Path, request: pytest.FixtureRequest) -> None:
    """The files of a command stand, however its standard output ends; only a full one is an error.

    Typer prints help, which is tried with the first two endings.
    """
    lines = {line: [*ENDINGS] for line in SOUND.values()}
    if not request.config.getoption("--all-cases"):
        lines = {SOUND["plan"]: [*ENDINGS], "--help": [*ENDINGS][:2]}
    for line, ending in ((line, ending) for line, endings in lines.items() for ending in endings):
        made = files / (line.split(" -o ")[1].split()[0] if " -o " in line else "m.onnx")
        if " -o " in line:
            shutil.rmtree(made) if made.is_dir() else made.unlink(missing_ok=True)
        code, errors = ENDINGS[ending]
        ended = shell(f"{ONNXFQ} {line} {ending}", files)
        said = [one for one in ended.stderr.splitlines() if one.startswith("onnxfq: error: ")]
        assert (ended.returncode, len(said)) == (code, errors), (line, ending, ended)
        assert made.exists(), (line, ending)
        shown = [] if "2>" in ending else ended.stderr.splitlines()
        assert all(one.startswith("onnxfq: ") for one in shown), ended
        assert not errors or "No space left on device" in said[0]


LOUD = """
import atexit, ctypes, os, sys, threading
import numpy as np
print("print at import")
os.write(1, b"a descriptor at import\\n")
def feeds():
    print("print")
    sys.stdout.flush()
    sys.stdout.buffer.write(b"bytes\\n")
    print("the first stream", file=sys.__stdout__)
    ctypes.CDLL(None).puts(b"from C")
    os.system("echo a program")
    threading.Thread(target=print, args=("a thread",)).start()
    yield dict(np.load("d.npz"))
def metric(outputs, truth):
    print("metric")
    ctypes.CDLL(None).puts(b"from C")
    return float(sum(np.abs(array).sum() for made in outputs for array in made.values()))
"""


@loop_over(
    "line",
    [
        "quantize m.onnx --data d.npz --max-drop 1e9 --metric loud:metric -o q3.onnx --json",
        "quantize m.onnx --data loud:feeds -o q3.onnx --json",
        "observe m.onnx --data loud:feeds -o s4.npz --json",
        "evaluate m.onnx q.onnx --data loud:feeds --json",
        "sensitivity m.onnx --data loud:feeds --json",
        "compare q.onnx --data loud:feeds --json",
        "plan m.onnx --data loud:feeds -o p4.json --json",
        "handoff q.onnx --data loud:feeds -o kit2 --json",
    ],
)
def test_code_that_prints(files: Path, server: CommandServer, line: str) -> None:
    """All that functions of the user print goes to standard error; standard output is JSON."""
    (files / "loud.py").write_text(LOUD)
    ended = server.run(line.split(), files)
    assert ended.code == 0, ended.err
    json.loads(ended.out)
    said = "metric" if "metric" in line else "print"
    if "plan" not in line:
        assert f"{said}\n" in ended.err and "from C\n" in ended.err


FAULTS = {
    "raise ValueError('two\\nlines')": ("ValueError: two lines", 5),
    "raise SystemExit(0)": ("SystemExit: 0", 5),
    "sys.exit('enough')": ("SystemExit: enough", 5),
    "raise BaseException": ("BaseException: ", 5),
    "raise Stop": ("Stop: ", 5),
    "raise Mute": ("Mute", 5),
    "raise EOFError": ("EOFError: ", 5),
    "raise BrokenPipeError(32, 'gone')": ("BrokenPipeError: [Errno 32] gone", 5),
    "raise GeneratorExit": ("GeneratorExit: ", 5),
    "np.zeros(3).reshape(2)": ("ValueError: cannot reshape", 5),
    "f()": ("RecursionError: maximum recursion depth", 5),
}
PLACES = {
    "metric": "quantize m.onnx --data d.npz --max-drop 1 --metric wrong:f -o q4.onnx",
    "--data wrong:f": "quantize m.onnx --data wrong:f -o q4.onnx",
}


@pytest.mark.grid
@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("what", PLACES)
def test_code_that_fails(
    files: Path, what: str, fault: str, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """An exception of any kind is one line with the function, its file and line; exit code 1."""
    says, number = FAULTS[fault]
    monkeypatch.chdir(files)
    monkeypatch.delitem(sys.modules, "wrong", raising=False)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    (files / "wrong.py").write_text(
        "import sys, numpy as np\nclass Stop(KeyboardInterrupt): pass\nclass Mute(Exception): "
        f"__str__ = lambda self: 1 / 0\ndef f(*given):\n    {fault}\n"
    )
    code = main([*PLACES[what].split(), "-q"])
    shown = capfd.readouterr()
    (line,) = (one for one in shown.err.splitlines() if not one.startswith("onnxfq: note"))
    assert code == 1 and shown.out == ""
    assert line.startswith("onnxfq: error: ") and f"{what} " in line and says in line
    assert f"in line {number} of {files / 'wrong.py'}" in line and not (files / "q4.onnx").exists()


@pytest.mark.parametrize("code", ["raise SystemExit(0)", "1 / 0", "def f(:", "import nowhere"])
def test_modules_that_fail(
    files: Path, code: str, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """A module that cannot be imported is one line too."""
    monkeypatch.chdir(files)
    monkeypatch.delitem(sys.modules, "wrong", raising=False)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    (files / "wrong.py").write_text(f"{code}\n")
    assert main([*PLACES["metric"].split(), "-q"]) == 1
    err = capfd.readouterr().err
    (line,) = (one for one in err.splitlines() if not one.startswith("onnxfq: note"))
    assert line.startswith("onnxfq: error: cannot import 'wrong' of --metric")
    assert f"in line 1 of {files / 'wrong.py'}" in line


@pytest.mark.sample
@pytest.mark.parametrize("code", [0, 3])
def test_code_that_ends_the_process(files: Path, code: int) -> None:
    """`os._exit` cannot be caught; the command ends in a line, exit code 1 and without outputs."""
    (files / f"ends{code}.py").write_text(f"import os\ndef f(*given):\n    os._exit({code})\n")
    ended = shell(f"{ONNXFQ} quantize m.onnx --data ends{code}:f -o q5.onnx", files)
    assert ended.returncode == 1 and not (files / "q5.onnx").exists()
    (line,) = ended.stderr.splitlines()
    assert line.startswith(
        f"onnxfq: error: the command was ended from inside with exit code {code}: by os._exit in code that"
    )


@pytest.mark.parametrize("limit", [60, 500, 530, 800])
def test_little_memory(files: Path, limit: int) -> None:
    """With any `ulimit -v`, here in MB, a command ends well or in one line; too low a limit is named."""
    ended = shell(f"ulimit -v {limit * 1024}; {ONNXFQ} quantize m.onnx --data d.npz -o q6.onnx -q", files)
    lines = [one for one in ended.stderr.splitlines() if one.startswith("onnxfq: error: ")]
    assert (ended.returncode, len(lines)) in ((0, 0), (1, 1)), ended
    assert "Traceback" not in ended.stderr and "onnxfq itself failed" not in ended.stderr
    refused = f"the limit of `ulimit -v` is {limit} MB of memory, and a command needs 512 MB"
    assert (refused in ended.stderr) == (limit < 512)
