"""The examples and the training of `models/` run as their pages say."""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PAGES = [*sorted((ROOT / "examples").glob("*/README.md")), ROOT / "models" / "README.md"]
# Full training takes minutes; one epoch and a few steps run the same code.
SHORTER = {
    "models/train.py": ["--epochs", "1"],
    "examples/quantization_aware_training/example.py": ["--epochs", "1", "--steps", "12"],
    "examples/torch_to_tensorrt/example.py": ["--epochs", "1", "--steps", "6"],
}

pytest.importorskip("torch.nn")


def commands() -> list[tuple[str, list[str]]]:
    """Return (page, words) of every indented `python` line."""
    found = []
    for page in PAGES:
        for line in page.read_text(encoding="utf-8").splitlines():
            if line.startswith("    python "):
                found.append((page.parent.name, shlex.split(line)[1:]))
    return found


@pytest.mark.parametrize(("page", "words"), commands(), ids=lambda value: str(value))
def test_command_runs(page: str, words: list[str], tmp_path: Path) -> None:
    """A command of a page ends well, started in an empty folder, and leaves a model or a picture there."""
    script, *arguments = words
    done = subprocess.run(
        [sys.executable, str(ROOT / script), *arguments, *SHORTER.get(script, [])],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert [*tmp_path.glob("*.onnx"), *tmp_path.glob("*.png")]


@pytest.mark.sample
def test_the_notebook_runs(tmp_path: Path) -> None:
    """The code cells run in order and leave a model and a report; no outputs are stored."""
    content = json.loads((ROOT / "examples/notebook/quantize.ipynb").read_text(encoding="utf-8"))
    cells = [cell for cell in content["cells"] if cell["cell_type"] == "code"]
    assert content["nbformat"] == 4 and not any(cell["outputs"] for cell in cells)
    # A line of IPython, which shows figures, is not Python.
    lines = [line for cell in cells for line in "".join(cell["source"]).splitlines() if line[:1] != "%"]
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", "\n".join(lines)],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "same top-1" in done.stdout and {"model.int8.onnx", "report.html"} <= {
        path.name for path in tmp_path.iterdir()
    }
