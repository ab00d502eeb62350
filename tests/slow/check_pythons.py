"""Runs the package in several versions of Python, each in its own virtual environment.

    python tests/slow/check_pythons.py WHEEL [--most 2] [--folder FOLDER]

One wheel serves all versions, and is installed alone: pip adds what it requires, and `pip check` finds
nothing. In each, `onnxfq demo` and `doctor` run, then `quantize`, `evaluate` and `check` of the demo's model
through the command line. Needs a package index. Not a pytest: for a wheel of ONNXFQ_RUNTIME=cpu it downloads
some 100 MB for each version. Prints one line a version; the exit code is 1 when one fails, or none is found.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
MINORS = range(10, 14)
"""Minor versions of Python 3 that are tried; pyproject.toml has the oldest."""

COMMANDS = (
    "demo --output demo",
    "doctor",
    "quantize demo/digits.onnx --data demo/calibration.npz -o digits.int8.onnx --report report.html",
    "evaluate demo/digits.onnx digits.int8.onnx --data demo/calibration.npz --json",
    "check digits.int8.onnx",
)
"""The first steps of a user, and every library that the core imports."""


def find_interpreters() -> dict[int, Path]:
    """Return an interpreter of each minor version: of pyenv, else on the PATH."""
    found = {}
    for minor in MINORS:
        for path in _list_candidates(minor):
            asked = subprocess.run([path, "-c", "import sys, venv; print(sys.version_info[1])"], **QUIETLY)
            if asked.returncode == 0 and asked.stdout.strip() == str(minor):
                found[minor] = path
                break
    return found


QUIETLY = {"capture_output": True, "text": True}


def _list_candidates(minor: int) -> Iterator[Path]:
    if shutil.which("pyenv"):
        root = Path(subprocess.run(["pyenv", "root"], check=True, **QUIETLY).stdout.strip())
        yield from sorted(root.glob(f"versions/3.{minor}.*/bin/python3.{minor}"), reverse=True)
    on_path = shutil.which(f"python3.{minor}")
    if on_path:
        yield Path(on_path)


def try_python(interpreter: Path, wheel: Path, folder: Path) -> tuple[bool, str]:
    """Install the wheel for one interpreter and run the commands; return success and a line."""
    home = folder / interpreter.name
    python = home / "bin" / "python"
    work = home / "work"
    work.mkdir(parents=True, exist_ok=True)
    steps = [
        [str(interpreter), "-m", "venv", str(home)],
        [str(python), "-m", "pip", "install", "-q", str(wheel)],
        [str(python), "-m", "pip", "check"],
        *([str(home / "bin" / "onnxfq"), *words.split()] for words in COMMANDS),
        [str(python), "-c", _VERSIONS],
    ]
    env = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "VIRTUAL"))}
    for step in steps:
        ended = subprocess.run(step, cwd=work, env=env, **QUIETLY)
        if ended.returncode:
            lines = (ended.stderr or ended.stdout).strip().splitlines() or ["no words"]
            step_name = " ".join(Path(word).name for word in step[:3])
            return False, f"{interpreter.name}: {step_name} ended with {ended.returncode}: {lines[-1]}"
    return True, ended.stdout.strip()


_VERSIONS = """
import platform
from importlib.metadata import version
names = ("onnxruntime", "onnx", "numpy", "typer", "pydantic")
print("Python", platform.python_version() + ":", ", ".join(f"{name} {version(name)}" for name in names))
"""


def main() -> int:
    """Try the versions that are found."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("wheel", type=Path)
    parser.add_argument("--most", type=int, help="try so many: the oldest, the newest, and those between")
    parser.add_argument("--folder", type=Path, help="keep the environments here")
    asked = parser.parse_args()
    found = sorted(find_interpreters().items(), key=lambda item: item[0])
    if asked.most is not None:
        found = [*found[:1], *reversed(found[1:])][: asked.most]
    oldest = re.search(
        r'requires-python = ">=3\.(\d+)"', (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    )
    if not found or (oldest and found[0][0] != int(oldest[1])):
        print(f"the oldest Python of pyproject.toml, 3.{oldest and oldest[1]}, is not on this machine")
    good = []
    with tempfile.TemporaryDirectory() as temporary:
        for _, interpreter in found:
            well, line = try_python(interpreter, asked.wheel.resolve(), asked.folder or Path(temporary))
            print(line, flush=True)
            good.append(well)
    print(f"{sum(good)} of {len(good)} versions of Python run the demo, doctor, quantize, evaluate and check")
    return 0 if good and all(good) else 1


if __name__ == "__main__":
    sys.exit(main())
