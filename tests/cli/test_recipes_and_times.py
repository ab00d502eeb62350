"""`quantize` with several recipes, and `--time` of quantize and evaluate, by a clock without noise."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from itertools import count
from pathlib import Path

import numpy as np
import onnx
import pytest
from builders import downsample

from onnxfq.cli.main import main
from onnxfq.documents.scores import Evaluation
from onnxfq.execution import timing
from onnxfq.report.contents import page_contents, read_result
from onnxfq.report.recipe_table import RecipeTable

BOTH = "--recipe tensorrt-int8 --recipe onnxruntime-int8"


@pytest.fixture(autouse=True)
def workplace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A current folder with m.onnx and d.npz, and a clock that ticks once at each call."""
    monkeypatch.chdir(tmp_path)
    onnx.save(downsample(), "m.onnx")
    samples = np.random.default_rng(0).normal(size=(40, 4, 6, 6)).astype(np.float32)
    np.savez("d.npz", x=samples)

    def by_ticks(runs: Sequence[Callable[[], object]], clock: object, seconds: float) -> list[list[float]]:
        del clock
        ticks = count()
        return timing.time_in_turn(runs, lambda: float(next(ticks)), seconds)

    monkeypatch.setattr("onnxfq.tools.time_models.time_in_turn", by_ticks)
    return tmp_path


def printed(capfd: pytest.CaptureFixture[str], line: str, code: int = 0) -> str:
    """Run a command line; return what it prints."""
    capfd.readouterr()
    assert main(line.split()) == code
    return capfd.readouterr().out


@pytest.mark.sample
def test_each_recipe_has_its_file_and_its_row(capfd: pytest.CaptureFixture[str]) -> None:
    """Files are those of single calls, byte for byte; one table has every recipe and the float models.

    Without a promise there is no line of one.
    """
    table = printed(capfd, f"quantize m.onnx --data d.npz {BOTH} --repair off -o out")
    for recipe in ("tensorrt-int8", "onnxruntime-int8"):
        printed(capfd, f"quantize m.onnx --data d.npz --recipe {recipe} --repair off -o alone.onnx")
        assert Path(f"out/m.{recipe}.onnx").read_bytes() == Path("alone.onnx").read_bytes()
        assert f"wrote      out/m.{recipe}.onnx" in table
    assert "promise " not in table
    head, *rows = table.splitlines()
    assert head.split() == ["recipe", "bytes", "unseen", "dB", "quantized", "low", "precision"]
    assert [row.split()[0] for row in rows[:4]] == ["float", "float16", "tensorrt-int8", "onnxruntime-int8"]
    assert f"{Path('m.onnx').stat().st_size:,}" in rows[0] and rows[2].split()[-2:] == ["4/4", "4/4"]
    assert sorted(path.name for path in Path("out").iterdir()) == [
        "m.onnxruntime-int8.onnx",
        "m.tensorrt-int8.onnx",
    ]


def test_the_records_hold_what_is_printed(capfd: pytest.CaptureFixture[str]) -> None:
    """--json is a record that `report` shows, a column for each recipe; the artifacts have a name each."""
    line = f"quantize m.onnx --data d.npz {BOTH} -o out --time --report page.html --artifacts kept"
    text = printed(capfd, f"{line} --json")
    Path("table.json").write_text(text, encoding="utf-8")
    table = RecipeTable.model_validate_json(text)
    assert table == read_result("table.json")
    assert [result.recipe.name for result in table.results] == ["tensorrt-int8", "onnxruntime-int8"]
    assert (
        [one.model for one in table.timing.models] == ["float", "onnxruntime-int8"] if table.timing else False
    )
    columns = page_contents([("m", table)])
    assert [column["label"] for column in columns] == ["tensorrt-int8", "onnxruntime-int8"]
    untimed = [line for _, lines in columns[0]["notes"] for line in lines if "was not timed" in line]
    assert len(untimed) == 1 and untimed[0].startswith("tensorrt-int8 was not timed")
    tables = [{one["title"]: one["rows"] for one in column["tables"]} for column in columns]
    assert [row[0] for row in tables[0]["Recipes"]][-2:] == ["tensorrt-int8", "onnxruntime-int8"]
    assert [row[0] for row in tables[1]["Time of one sample"]] == ["float", "quantized"]
    assert "Time of one sample" not in tables[0] and "Recipes" not in tables[1]
    printed(capfd, "report table.json -o again.html")
    assert (
        "tensorrt-int8" in Path("page.html").read_text()
        and "onnxruntime-int8" in Path("again.html").read_text()
    )
    for result in table.results:
        own = json.loads(Path(f"kept/m.{result.recipe.name}.result.json").read_text())
        assert own["recipe"]["name"] == result.recipe.name


def test_a_recipe_that_fails_is_a_line(capfd: pytest.CaptureFixture[str]) -> None:
    """The others are written, and the exit code is 1."""
    Path("odd.yaml").write_text("overrides:\n  - nodes: [nowhere]\n    keep_float: true\n", encoding="utf-8")
    table = printed(
        capfd, f"quantize m.onnx --data d.npz --recipe odd.yaml {BOTH} --repair off -o out", code=1
    )
    (line,) = [line for line in table.splitlines() if line.startswith("failed")]
    assert line.startswith("failed     odd: recipe odd: ")
    assert len(list(Path("out").iterdir())) == 2


@pytest.mark.parametrize(
    ("line", "said"),
    [
        (f"{BOTH} -o out.onnx", "out.onnx names a file; give a folder"),
        (f"{BOTH} -o m.onnx", "m.onnx is another file of this command too"),
        (f"{BOTH} -o file", "it is a file; give a folder"),
        ("--recipe tensorrt-int8 -o here", "it is a folder; give a file name"),
        ("--recipe tensorrt-int8 --recipe int8 -o out", "two recipes are called tensorrt-int8"),
        ("--recipe tensorrt-int8 --recipe int9 -o out", "unknown recipe 'int9'"),
        ("-o out.onnx --shape x:1x2", "--shape needs --build"),
    ],
)
def test_mistakes(capfd: pytest.CaptureFixture[str], line: str, said: str) -> None:
    """A mistake is one line, and nothing is written."""
    Path("file").touch()
    Path("here").mkdir()
    before = sorted(path.name for path in Path().iterdir())
    assert main(f"quantize m.onnx --data d.npz {line}".split()) in (1, 2)
    error = capfd.readouterr().err.splitlines()[-1]
    assert error.startswith("onnxfq: error: ") and said in error
    assert sorted(path.name for path in Path().iterdir()) == before and not list(Path("here").iterdir())


def test_time_needs_data(capfd: pytest.CaptureFixture[str]) -> None:
    """Nothing can be timed without a sample."""
    assert main("quantize m.onnx --recipe mxfp8 -o out.onnx --time".split()) == 2
    assert "--time needs a sample" in capfd.readouterr().err


def test_quantize_times_what_it_wrote(capfd: pytest.CaptureFixture[str]) -> None:
    """Threads, both times, and the ratio with its interval are printed, in the record and on the page."""
    line = "quantize m.onnx --data d.npz --recipe onnxruntime-int8 -o q.onnx --time --threads 1"
    text = printed(capfd, f"{line} --artifacts kept")
    assert "time of one sample, 1 thread, models in turn:" in text
    assert "quantized  onnxruntime  1000.000  1000.000   1.00 (1.00 to 1.00)" in text
    result = read_result("kept/m.result.json")
    tiles = [
        (tile["value"], tile["label"])
        for column in page_contents([("m", result)])
        for tile in column["tiles"]
    ]
    assert ("1.00", "time of a run, float = 1") in tiles


@pytest.mark.sample
def test_evaluate_times_each_in_its_runtime(capfd: pytest.CaptureFixture[str]) -> None:
    """A file for another runtime is named, not timed; the record goes through `report`."""
    printed(capfd, f"quantize m.onnx --data d.npz {BOTH} --repair off -o out")
    line = "evaluate m.onnx out/m.tensorrt-int8.onnx out/m.onnxruntime-int8.onnx --data d.npz --time"
    text = printed(capfd, line)
    assert "the runtime's own number of threads" in text
    assert "m.tensorrt-int8.onnx was not timed: " in text
    evaluation = Evaluation.model_validate_json(printed(capfd, f"{line} --json"))
    assert evaluation.timing is not None and evaluation.timing.threads == 0
    timed = evaluation.timing.of("m.onnxruntime-int8.onnx")
    assert timed is not None and timed.ratio == 1
    assert (
        Evaluation.model_validate_json(printed(capfd, f"{line} --json".replace(" --time", ""))).timing is None
    )


def test_a_promise_is_a_line_of_each_recipe(capfd: pytest.CaptureFixture[str]) -> None:
    """What was promised is named with its measure."""
    kept = printed(capfd, f"quantize m.onnx --data d.npz {BOTH} -o out --min-sqnr 12")
    lines = [line for line in kept.splitlines() if line.startswith("promise ")]
    assert [line.split()[1] for line in lines] == ["tensorrt-int8:", "onnxruntime-int8:"]
    assert all("dB" in line for line in lines)
