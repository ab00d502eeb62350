"""The examples and the training of `models/` run as their pages say."""

from __future__ import annotations

import json
import shlex
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from command_server import CommandServer, command_server

ROOT = Path(__file__).parent.parent
PAGES = [*sorted((ROOT / "examples").glob("*/README.md")), ROOT / "models" / "README.md"]
# Full training takes minutes; one epoch of few digits and a few steps run the same code.
SHORTER = {
    "models/train.py": ["--epochs", "1"],
    "examples/quantization_aware_training/example.py": ["--epochs", "1", "--steps", "2"],
    "examples/torch_to_tensorrt/example.py": ["--epochs", "1", "--steps", "2"],
}
FEWER = {"slice(0, 8000)": "slice(0, 200)", "8500)": "8020)", "10000)": "8600)"}
"""Ends of the parts of the digits: as they are, and shorter."""

pytest.importorskip("torch.nn")


@pytest.fixture(scope="module")
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Copies of examples/ and models/ with few digits."""
    folder = tmp_path_factory.mktemp("checkout")
    for name in ("examples", "models"):
        shutil.copytree(ROOT / name, folder / name)
    digits = folder / "models" / "digits.py"
    before, split, after = digits.read_text(encoding="utf-8").partition("\nSPLIT = ")
    line, end, after = after.partition("\n")
    for long, short in FEWER.items():
        assert line.count(long) == 1
        line = line.replace(long, short)
    digits.write_text(before + split + line + end + after, encoding="utf-8")
    return folder


@pytest.fixture(scope="module")
def server() -> Iterator[CommandServer]:
    """Runs Python without the imports of each script."""
    with command_server("torch.onnx", "torch.export", "onnxscript") as made:
        yield made


def sampled(one: str) -> list[Any]:
    """Return (page, words) of every indented `python` line; page `one` stands for all in a sample."""
    found = []
    for page in PAGES:
        for line in page.read_text(encoding="utf-8").splitlines():
            if line.startswith("    python "):
                marks = [pytest.mark.sample] if page.parent.name == one else []
                found.append(pytest.param(page.parent.name, shlex.split(line)[1:], marks=marks))
    return found


@pytest.mark.parametrize(("page", "words"), sampled("from_pytorch_quantization"), ids=str)
def test_command_runs(
    page: str, words: list[str], checkout: Path, tmp_path: Path, server: CommandServer
) -> None:
    """A command of a page ends well, started in an empty folder, and leaves a model or a picture there."""
    script, *arguments = words
    words = [str(checkout / script), *arguments, *SHORTER.get(script, [])]
    done = server.run(words, tmp_path, seconds=600, program="python")
    assert done.code == 0, done.out + done.err
    assert [*tmp_path.glob("*.onnx"), *tmp_path.glob("*.png")]


def test_the_notebook_runs(tmp_path: Path, server: CommandServer) -> None:
    """The code cells run in order, print what is stored, and leave a model and a report."""
    content = json.loads((ROOT / "examples/notebook/quantize.ipynb").read_text(encoding="utf-8"))
    cells = [cell for cell in content["cells"] if cell["cell_type"] == "code"]
    assert content["nbformat"] == 4
    stored = [output["data"] for cell in cells for output in cell["outputs"]]
    assert sum("image/png" in data for data in stored) == 4
    lines = []
    for cell in cells:
        # A line of IPython, which shows figures, is not Python.
        lines += [line for line in "".join(cell["source"]).splitlines() if line[:1] != "%"]
        if any("text/plain" in output["data"] for output in cell["outputs"]):
            lines[-1] = f"print(repr({lines[-1]}))"
    done = server.run(["-c", "\n".join(lines)], tmp_path, seconds=600, program="python")
    assert done.code == 0, done.out + done.err
    for data in stored:
        assert data.get("text/plain", "") in done.out
    assert "same top-1" in done.out and {"model.int8.onnx", "report.html"} <= {
        path.name for path in tmp_path.iterdir()
    }
