"""Rehearses a release: current figures, an archive, a wheel from it, that wheel alone in a fresh environment.

    python tests/slow/check_release.py [--folder FOLDER]

Not a pytest: it needs a package index and a C++ compiler. The build must not warn. The wheel requires
onnxruntime for CPUs, `pip check` finds nothing after it, and no extra adds another package that installs the
module `onnxruntime`. Only sections of hardware that is not here may be older than the code that they
measured. Prints a line for each step; the exit code is 1 when one fails.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

from check_pythons import QUIETLY, try_python
from run_all import FOR_CPUS, ROOT

OF_USERS = ("torch", "images", "plot", "ray", "text", "openvino")
"""Extras that go together, without tensorrt: pip resolves its packages by downloading them."""


def build_archives(folder: Path) -> Path:
    """Build the archive of sources, and a wheel from it; return the wheel.

    Raises:
        RuntimeError: the build fails or warns.
    """
    subprocess.run([sys.executable, "-m", "venv", folder / "tools"], check=True)
    python = folder / "tools" / "bin" / "python"
    subprocess.run([python, "-m", "pip", "install", "-q", "build", "twine"], check=True)
    command = [python, "-m", "build", "--outdir", folder / "dist", ROOT]
    ended = subprocess.run(command, env=os.environ | FOR_CPUS, **QUIETLY)
    said = (ended.stdout + ended.stderr).splitlines()
    warnings = [line for line in said if re.search(r"\bwarning\b", line, re.IGNORECASE)]
    if ended.returncode or warnings:
        raise RuntimeError("python -m build: " + (warnings or said or ["no words"])[-1])
    archives = sorted((folder / "dist").iterdir())
    checked = subprocess.run([python, "-m", "twine", "check", "--strict", *archives], **QUIETLY)
    if checked.returncode:
        raise RuntimeError("twine check: " + (checked.stdout or checked.stderr).strip().splitlines()[-1])
    (wheel,) = (path for path in archives if path.suffix == ".whl")
    return wheel


def list_older() -> list[str]:
    """Return the files of results that were measured with another form of the code."""
    sys.path.append(str(ROOT / "scripts"))
    import results_page

    return results_page.list_older()


def list_runtimes(wheel: Path) -> set[str]:
    """Return the packages named onnxruntime and so on that the wheel with its extras would install."""
    command = [
        sys.executable,
        "-m",
        "pip",
        "install",
        "-q",
        "--dry-run",
        "--ignore-installed",
        "--report",
        "-",
    ]
    ended = subprocess.run([*command, f"{wheel}[{','.join(OF_USERS)}]"], check=True, **QUIETLY)
    names = {entry["metadata"]["name"].lower() for entry in json.loads(ended.stdout)["install"]}
    return {name for name in names if name.startswith("onnxruntime")}


def main() -> int:
    """Rehearse; return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--folder", type=Path, help="keep the archives and environments here")
    asked = parser.parse_args()
    if older := list_older():
        print("older than what they measured, run their commands again:", *older)
        return 1
    with tempfile.TemporaryDirectory() as temporary:
        folder = asked.folder or Path(temporary)
        try:
            wheel = build_archives(folder)
        except RuntimeError as error:
            print(error)
            return 1
        print(*sorted(path.name for path in wheel.parent.iterdir()), "built without a warning")
        well, line = try_python(Path(sys.executable), wheel, folder)
        print("the wheel alone: " + line)
        runtimes = list_runtimes(wheel)
        print("with the extras " + ", ".join(OF_USERS) + ": " + ", ".join(sorted(runtimes)))
    return 0 if well and runtimes == {"onnxruntime"} else 1


if __name__ == "__main__":
    sys.exit(main())
