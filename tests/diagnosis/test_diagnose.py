"""`diagnose` beside its score: bad input, what is kept, the page, and the lines of evaluate and compare."""

from __future__ import annotations

import json
import re
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import onnx
import pytest
from diagnosed_networks import network
from onnx import numpy_helper
from planted_faults import Planted, wide
from quantized_files import sound

import onnxfq
from onnxfq import compare, diagnose, evaluate, quantize
from onnxfq.cli.main import main
from onnxfq.diagnosis.ranking import rank
from onnxfq.diagnosis.reading.cause import Suspicion
from onnxfq.diagnosis.registry import LAYER_DETECTORS, RANGE_DETECTORS

Files = dict[str, Path]


@pytest.mark.parametrize(("noise", "kinds"), [(1e-2, ["a", "b"]), (1e-5, ["a"])])
def test_what_explains_part_of_a_sound_file_is_no_cause(noise: float, kinds: list[str]) -> None:
    """From 30 dB on a cause that is not certain makes nine tenths of the noise, below a tenth of it."""
    candidate = SimpleNamespace(opened=object(), whole=np.asarray([noise]), left_by=lambda trial: 1.0)
    suspicions = [
        Suspicion(kind="b", evidence="", harm=0.6),
        Suspicion(kind="a", evidence="", harm=0.95),
        Suspicion(kind="c", evidence="", harm=0.05),
    ]
    assert [one.kind for one in rank(candidate, suspicions)] == kinds


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Files:
    """A float model, a quantized one with one wide range, and data of three kinds."""
    folder = tmp_path_factory.mktemp("files")
    net = network("conv")
    planted = Planted(sound("conv", "qdq"), net.float_model)
    wide(2, 30)(planted)
    samples = np.concatenate([feed["x"] for feed in net.feeds(24, seed=2)])
    onnx.save(planted.proto, folder / "q.onnx")
    onnx.save(planted.shown, folder / "m.onnx")
    np.savez(folder / "d.npz", x=samples)
    np.savez(folder / "bytes.npz", x=samples * 255)
    np.savez(folder / "shape.npz", x=samples[..., :8])
    np.save(folder / "labels.npy", np.arange(24) % 10)
    (folder / "random.onnx").write_bytes(np.random.default_rng(0).bytes(5000))
    (folder / "cut.onnx").write_bytes((folder / "q.onnx").read_bytes()[:3000])
    return {path.stem: path for path in folder.iterdir()}


@pytest.mark.parametrize(
    ("model", "options"),
    [
        ("random", []),
        ("cut", []),
        ("m", []),
        ("q", ["--data", "shape"]),
        ("q", ["--target", "nope"]),
        ("q", ["--float", "q", "--data", "d"]),
        ("q", ["--float", "m", "--data", "absent"]),
        ("q", ["-o", "out"]),
        ("q", ["--labels", "labels"]),
        ("q", ["--recipe-out", "out"]),
    ],
)
def test_bad_input_is_one_line(
    files: Files, model: str, options: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A file that is no quantized model, and data that does not fit, are one line and exit code 1."""
    names = {**files, "out": tmp_path / "out.onnx"}
    words = [str(names.get(word, word)) for word in options]
    assert main(["diagnose", str(files[model]), *words]) == 1
    captured = capsys.readouterr()
    assert captured.err.count("\n") == 1 and captured.err.startswith("onnxfq: error: ")
    assert not names["out"].exists()


def test_json_names_the_cause(files: Files, capsys: pytest.CaptureFixture[str]) -> None:
    """--json has the verdict, the causes with their figures, and all that was looked at."""
    words = ["--float", str(files["m"]), "--data", str(files["d"]), "--json"]
    assert main(["diagnose", str(files["q"]), *words]) == 0
    result = json.loads(capsys.readouterr().out)
    (cause,) = result["causes"]
    assert set(cause) == {"kind", "tensor", "node", "evidence", "repair", "before", "after"}
    assert (cause["kind"], cause["tensor"]) == ("wide_range", "b")
    assert cause["after"] > cause["before"] + 3
    assert result["looked_at"] == [*LAYER_DETECTORS, *RANGE_DETECTORS]
    assert len(result["verdict"].splitlines()) <= 3


def test_every_other_scale_is_kept(files: Files, tmp_path: Path) -> None:
    """-o changes the tensors that the repair names, and no byte of another one."""
    diagnose(files["q"], reference=files["m"], data=files["d"], output=tmp_path / "r.onnx")
    before, after = (
        {t.name: numpy_helper.to_array(t).tobytes() for t in onnx.load(path).graph.initializer}
        for path in (files["q"], tmp_path / "r.onnx")
    )
    changed = {name for name in before if name in after and before[name] != after[name]}
    assert changed == {"b_scale"}


def test_a_sound_file_is_not_written(files: Files, tmp_path: Path) -> None:
    """Without a cause the verdict says so, and there is no repaired model."""
    result = diagnose(sound("conv", "qdq"), reference=files["m"], data=files["d"], output=tmp_path / "r.onnx")
    assert result.verdict.startswith("no fault found") and not result.causes and not result.written
    assert not (tmp_path / "r.onnx").exists()


def test_a_file_may_keep_its_batch_normalization() -> None:
    """Neither weights nor biases are accused where file and float model have the same one."""
    net = network("conv")
    unrepaired = onnxfq.AccuracyTarget(repair=None)
    made = quantize(net.float_model, net.feeds(16, seed=2), accuracy=unrepaired)
    assert any(node.op_type == "BatchNormalization" for node in made.qdq.graph.node)
    found = diagnose(made.qdq, reference=net.float_model, data=net.feeds(16, seed=3))
    assert found.verdict.startswith("no fault found") and not found.causes


def test_metric_replaces_the_sqnr(files: Files) -> None:
    """With labels the figures are points of top-1, as ONNX Runtime's outputs have them."""
    result = diagnose(files["q"], data=files["d"], labels=files["labels"])
    assert result.unit == "points of top-1" and 0 <= (result.before or 0.0) <= 100
    assert result.causes[0].before == result.before


def test_page_shows_the_named_tensor(files: Files, tmp_path: Path) -> None:
    """The page has the verdict, and the histogram and the grid of the tensor that a cause names."""
    page = tmp_path / "page.html"
    words = ["--data", str(files["d"]), "--report", str(page), "-q"]
    assert main(["diagnose", str(files["q"]), *words]) == 0
    text = page.read_text()
    assert "wide range" in text and '"counts"' in text


def test_inputs_in_another_unit_are_a_line(files: Files, tmp_path: Path) -> None:
    """`evaluate`, `compare` and the page of `report` say that the data is not what calibrated the input."""
    for data, lines in (("d", 0), ("bytes", 1)):
        evaluation = evaluate(files["m"], files["q"], files[data])
        assert sum("calibrated on" in note for note in evaluation.notes) == lines
        assert len(compare(files["q"], files[data]).notes) == lines
        result, page = tmp_path / f"{data}.json", tmp_path / f"{data}.html"
        result.write_text(evaluation.model_dump_json())
        assert main(["report", str(result), "-o", str(page), "-q"]) == 0
        assert page.read_text().count("was calibrated on") == lines
    (pass_over_once,) = [iter([{"x": np.zeros((1, 3, 16, 16), np.float32)}])]
    assert evaluate(files["m"], files["q"], pass_over_once).feeds == 1


def test_every_kind_is_on_the_page() -> None:
    """docs/diagnose.md has a row for each kind of cause that the code names."""
    root = Path(__file__).parents[2]
    page = (root / "docs" / "diagnose.md").read_text()
    sources = "".join(path.read_text() for path in (root / "onnxfq" / "diagnosis").rglob("*.py"))
    heads = [line.split("|")[1] for line in page.splitlines() if line.startswith("| `")]
    rows = {word for head in heads for word in head.split("`")[1::2]}
    named = set(re.findall(r'kind="(\w+)"', sources))
    assert len(named) > 7 and named <= rows
    assert len(rows) > 20
    assert not {kind for kind in rows if f'"{kind}"' not in sources}
