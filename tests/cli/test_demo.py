"""The demo: a trained network, measured on digits it never saw; its files are whole."""

from __future__ import annotations

import json
import re
from pathlib import Path

import onnx
import pytest
from pages import ROOT, blocks

from onnxfq.cli.digits import PER_AXIS, PER_TENSOR, DemoResult, run_demo
from onnxfq.cli.main import main

FILES = set(
    """digits_int8_per_tensor.onnx digits_int8_per_axis.onnx digits_fakequant.onnx report.html digits.onnx
    calibration.npz test.npz labels.npy""".split()
)


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> tuple[DemoResult, Path]:
    """The demo, run once into a new folder below a new folder."""
    folder = tmp_path_factory.mktemp("demo") / "a" / "b"
    return run_demo(folder), folder


@pytest.mark.sample
def test_files(demo: tuple[DemoResult, Path]) -> None:
    """All files are there, named by the result, and nothing else."""
    result, folder = demo
    assert {path.name for path in folder.iterdir()} == FILES
    assert set(result.files) == set(folder.iterdir())


@pytest.mark.sample
def test_accuracies(demo: tuple[DemoResult, Path]) -> None:
    """The float network reads 1493 of 1500; int8 loses 5 at most, and scales per axis give less noise."""
    accuracies = demo[0].accuracies()
    assert list(accuracies) == ["float32", PER_TENSOR, PER_AXIS]
    assert accuracies["float32"] == 1493 / 1500
    assert all(round(accuracies[name] * 1500) >= 1488 for name in (PER_TENSOR, PER_AXIS))
    scores = {c.candidate: c.outputs[0].sqnr_db for c in demo[0].evaluation.candidates}
    assert scores[PER_AXIS] > scores[PER_TENSOR] > 25


def test_command(
    demo: tuple[DemoResult, Path], monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """`onnxfq demo` prints accuracies and files, nothing on stderr; --json evaluation, files and seconds."""
    monkeypatch.setattr("onnxfq.cli.digits.run_demo", lambda folder: demo[0])
    assert main(["demo"]) == 0
    printed = capfd.readouterr()
    assert printed.err == "" and printed.out.count("wrote ") == len(FILES)
    assert re.search(r"float32 +\d+\.\d\d%\n", printed.out)
    assert main(["demo", "--json"]) == 0
    content = json.loads(capfd.readouterr().out)
    assert content.pop("evaluation") == json.loads(demo[0].evaluation.model_dump_json())
    assert content == {"files": [str(path) for path in demo[0].files], "seconds": demo[0].seconds}


def test_coverage(demo: tuple[DemoResult, Path]) -> None:
    """Every convolution, sum and the classifier run in int8, in both schemes."""
    for result in demo[0].results.values():
        assert [str(row) for row in result.plan.coverage()] == [
            "Conv 20/20",
            "Add (residual) 4/4",
            "Gemm 1/1",
        ]


@pytest.mark.parametrize("name", sorted(name for name in FILES if name.endswith(".onnx")))
def test_models_are_valid(demo: tuple[DemoResult, Path], name: str) -> None:
    """The written models pass onnx's checker."""
    onnx.checker.check_model(onnx.load(demo[1] / name), full_check=True)


def test_figures_of_the_demo(demo: tuple[DemoResult, Path]) -> None:
    """README shows what the demo prints.

    Accuracies within 0.1 points, which is one digit, SQNR within 0.15 dB: another processor sums in another
    order, and a value at the middle between two steps goes to the other one.
    """
    (shown,) = blocks(ROOT / "README.md", "text")
    figures = re.compile(r"^  (\S.*?)\s+([\d.]+)%(?:\s+logits ([\d.]+) dB SQNR)?$", re.MULTILINE)
    noise = {c.candidate: c.outputs[0].sqnr_db for c in demo[0].evaluation.candidates}
    rows = figures.findall(shown)
    assert [name for name, _, _ in rows] == list(demo[0].accuracies())
    for name, accuracy, sqnr in rows:
        assert abs(float(accuracy) - 100 * demo[0].accuracies()[name]) <= 0.1
        assert not sqnr or abs(float(sqnr) - noise[name]) <= 0.15


QUOTED = {
    "calibration": r"(?P<mse>[\d.]+) dB, against (?P<minmax>[\d.]+) for `minmax` and (?P<entropy>[\d.]+) for",
    "running": r"It falls to (?P<lowest>[\d.]+) dB.* The logits have (?P<logits>[\d.]+) dB",
    "noise": r"weights alone leave (?P<weights>[\d.]+) dB, and everything together (?P<all>[\d.]+) dB",
}


def test_pictures_are_drawn_and_quoted(
    demo: tuple[DemoResult, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The script draws every picture of docs, each is on a page, and pages quote its SQNR within 0.15 dB."""
    monkeypatch.syspath_prepend(str(ROOT / "scripts"))
    import figures

    found = figures.write_figures(tmp_path, demo[0])
    drawn = {path.name for path in tmp_path.iterdir()}
    assert drawn == {path.name for path in (ROOT / "docs" / "figures").iterdir()}
    texts = {
        page.stem: " ".join(page.read_text(encoding="utf-8").split()) for page in (ROOT / "docs").glob("*.md")
    }
    assert all(any(f"figures/{name})" in text for text in texts.values()) for name in drawn)
    for page, pattern in QUOTED.items():
        quoted = re.search(pattern, texts["concepts"])
        assert quoted
        for name, value in quoted.groupdict().items():
            assert abs(float(value) - found[name]) <= 0.15, (page, name, found)
