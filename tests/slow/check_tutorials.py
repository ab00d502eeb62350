"""Runs the tutorials as written, each in an environment of its own, in the oldest Python and the newest.

    python tests/slow/check_tutorials.py WHEEL [--folder FOLDER]

Not a pytest: it needs a package index, and downloads torch. The wheel is one for CPUs (ONNXFQ_RUNTIME=cpu).
The tutorial of ONNX files has no torch. Prints a line for each; the exit code is 1 when one fails, or a
Python is missing.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))
sys.path.insert(0, str(Path(__file__).parents[1] / "networks"))

from check_pythons import MINORS, QUIETLY, find_interpreters
from pages import TUTORIALS, steps


def run_tutorial(interpreter: Path, wheel: Path, page: Path, home: Path) -> str:
    """Install the wheel for a tutorial and run its steps; return the last line of what fails, or nothing."""
    extra = "" if page.stem == "tutorial-onnx" else "[torch]"
    python, folder = home / "bin" / "python", home / "work"
    folder.mkdir(parents=True)
    env = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "VIRTUAL"))}
    commands = [
        [interpreter, "-m", "venv", home],
        [python, "-m", "pip", "install", "-q", f"{wheel}{extra}"],
        [python, "-m", "pip", "check"],
        *([home / "bin" / program, *arguments] for program, arguments in steps(page, folder)),
    ]
    for command in commands:
        ended = subprocess.run(command, cwd=folder, env=env, **QUIETLY)
        if ended.returncode:
            lines = (ended.stderr or ended.stdout).strip().splitlines() or ["no words"]
            return f"{' '.join(map(str, command))[:60]}: {lines[-1]}"
    return ""


def main() -> int:
    """Run every tutorial in both Pythons; return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("wheel", type=Path)
    parser.add_argument("--folder", type=Path, help="keep the environments here")
    asked = parser.parse_args()
    interpreters = find_interpreters()
    failed = 0
    with tempfile.TemporaryDirectory() as temporary:
        for minor in (MINORS[0], MINORS[-1]):
            for page in TUTORIALS:
                home = (asked.folder or Path(temporary)) / f"{page.stem}-{minor}"
                fault = "is not on this machine"
                if minor in interpreters:
                    fault = run_tutorial(interpreters[minor], asked.wheel.resolve(), page, home)
                print(f"Python 3.{minor}, {page.stem}: {fault or 'as written'}", flush=True)
                failed += bool(fault)
    print(f"{2 * len(TUTORIALS) - failed} of {2 * len(TUTORIALS)} tutorials run as written")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
