"""The benchmark of exported networks: it exports, quantizes, tells, and leaves out what is not installed."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from types import ModuleType

import pytest

pytest.importorskip("torch", exc_type=ImportError)
ROOT = Path(__file__).parents[1]


@pytest.fixture
def benchmark(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """Return the benchmark as a module."""
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    return importlib.import_module("architectures")


def told(
    benchmark: ModuleType, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], *words: str
) -> list[list[str]]:
    """Return what the benchmark prints for `words`: the fields of each line."""
    monkeypatch.setattr(sys, "argv", ["architectures.py", *words])
    benchmark.main()
    return [[field.strip() for field in line.split("|")] for line in capsys.readouterr().out.splitlines()]


def test_a_network_is_quantized_by_each_recipe(
    benchmark: ModuleType, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """One line a recipe: what is quantized, what it costs, what the check says; a refusal is a line too."""
    words = ("own:memory", "own:shuffled", "--exporter", "torchscript", "--open")
    # Only the queries' weight has two blocks of 16 and no odd size.
    recipes = {"tensorrt-int8": 4, "tensorrt-int4": 1, "onnxruntime-uint8-dynamic": 4}
    lines = told(benchmark, monkeypatch, capsys, *words, "--recipes", *recipes)
    rows = {(line[0], line[1]): line[2:] for line in lines if line[1] in recipes}
    memory = "own-memory-torchscript"
    for recipe, count in recipes.items():
        coverage, sqnr, found = rows[memory, recipe]
        assert coverage == f"MatMul {count}/4" and float(sqnr) > 15, (recipe, sqnr)
        assert found == ("passed" if recipe.startswith("tensorrt") else "")
    # torch's older exporter has no channel_shuffle, which is reported; other results do not change.
    assert ["own-shuffled-torchscript"] * 2 == [line[0] for line in lines if "not exported" in line[1]]


def test_exported_in_one_environment_and_read_in_another(
    benchmark: ModuleType,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
) -> None:
    """--from quantizes the files of --export; the numbers are the same as for the networks at once."""
    folder, recipes = str(tmp_path / "models"), ("--recipes", "onnxruntime-int8")
    one = ("own:low_rank_adapter", "--exporter", "torchscript")
    assert told(benchmark, monkeypatch, capsys, *one, "--export", folder) == []
    lines = told(benchmark, monkeypatch, capsys, "--from", folder, *recipes)
    assert [line[:3] for line in lines] == [
        ["own-low_rank_adapter-torchscript", "onnxruntime-int8", "MatMul 3/3"]
    ]


def test_what_is_not_installed_is_left_out(
    benchmark: ModuleType, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A missing library is reported and is not an error; an unknown source is one."""
    sources = importlib.import_module("zoo.sources")
    absent = sources.Source(("no_such_library",), tuple, lambda *given: [])
    monkeypatch.setitem(sources.SOURCES, "absent", absent)
    assert told(benchmark, monkeypatch, capsys, "absent:") == [
        ["absent:", "left out: no_such_library not installed"]
    ]
    with pytest.raises(SystemExit, match="no source 'nowhere'"):
        told(benchmark, monkeypatch, capsys, "nowhere:net")
