"""The console command: each subcommand end to end on a tiny model."""

from __future__ import annotations

import csv
import json
import logging
import math
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
import typer
from builders import conv_relu, feed_for, gemm, two_branch, weights
from typer.testing import CliRunner

import onnxfq
from onnxfq.calibration.statistics import Statistics
from onnxfq.cli.known_names import fill_names
from onnxfq.cli.main import COMMANDS, PANELS, build_app, main
from onnxfq.documents.encodings import Encodings
from onnxfq.documents.plan import Plan
from onnxfq.documents.scores import OutputScore
from onnxfq.runtime.device_choice import gpu_problem
from onnxfq.support.records import to_json
from onnxfq.targets.recipe_schema import recipe_schema
from onnxfq.targets.recipes import RECIPES, load_recipe
from onnxfq.tools.inspect import inspect_model
from onnxfq.version import VERSION

Run = Callable[..., str]


@pytest.fixture
def workplace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A current folder with model.onnx, data.npz and recipe.yaml."""
    monkeypatch.chdir(tmp_path)
    onnx.save(conv_relu(), "model.onnx")
    np.savez("data.npz", x=feed_for(conv_relu(), count=40)["x"])
    Path("recipe.yaml").write_text(
        "base: onnxruntime-int8\nactivations: {calibrator: entropy}\n", encoding="utf-8"
    )
    return tmp_path


@pytest.fixture
def run(workplace: Path, capfd: pytest.CaptureFixture[str]) -> Run:
    """Run a command line that succeeds with an empty stderr; return what it prints."""

    def call(line: str) -> str:
        assert main(line.split()) == 0
        printed = capfd.readouterr()
        assert printed.err == ""
        return printed.out

    return call


def stages(run: Run, recipe: str = "tensorrt-int8", form: str = "qdq") -> None:
    """Run the staged commands; leave staged.onnx."""
    run(f"plan model.onnx --recipe {recipe} -o p.json")
    run("observe model.onnx --plan p.json --data data.npz -o s.npz")
    run("calibrate model.onnx --plan p.json --statistics s.npz -o e.json")
    run(f"insert model.onnx --plan p.json --encodings e.json --format {form} -o staged.onnx")


@pytest.mark.parametrize("recipe", ["tensorrt-int8", "onnxruntime-int8", "recipe.yaml"])
def test_stages_give_what_quantize_gives(run: Run, recipe: str) -> None:
    """The four staged commands write the bytes that `quantize` writes without remedies, and its artifacts."""
    stages(run, recipe)
    run(f"quantize model.onnx --data data.npz --recipe {recipe} --repair off -o whole.onnx --artifacts kept")
    assert Path("staged.onnx").read_bytes() == Path("whole.onnx").read_bytes()
    for mine, kept in (("p.json", "plan.json"), ("e.json", "encodings.json"), ("s.npz", "stats.npz")):
        assert Path(mine).read_bytes() == Path(f"kept/model.{kept}").read_bytes()
    stages(run, recipe, "fakequant")
    assert Path("staged.onnx").read_bytes() == Path("kept/model.fakequant.onnx").read_bytes()


CACHE = "TRT-8501-EntropyCalibration2\nx: 3d000000\nc: 3c010204\n"


@pytest.mark.sample
def test_stages_with_a_file_of_another_tool(run: Run, workplace: Path) -> None:
    """The stages with --encodings write what `quantize` does, and tell what they took."""
    Path("calib.cache").write_text(CACHE, encoding="utf-8")
    told = ["external   TensorRT calibration cache (TRT-8501-EntropyCalibration2): 1 of 2 tensors used"]
    told += ["weights    1 with scales from their own values: w", "not needed 1 tensor: c"]
    assert all(line in run("plan model.onnx --encodings calib.cache -o p.json") for line in told)
    text = run("calibrate model.onnx --plan p.json --encodings calib.cache -o e.json")
    assert text.splitlines() == [*told, "calibrated 2 tensors", "wrote      e.json"]
    run("observe model.onnx --plan p.json --data data.npz -o s.npz")
    files = "--encodings calib.cache --statistics s.npz --table"
    assert "\nx " not in run(f"calibrate model.onnx --plan p.json {files} -o again.json")
    assert Path("again.json").read_bytes() == Path("e.json").read_bytes()
    run("insert model.onnx --plan p.json --encodings e.json -o staged.onnx")
    assert told[0] in run("quantize model.onnx --encodings calib.cache -o whole.onnx")
    assert Path("staged.onnx").read_bytes() == Path("whole.onnx").read_bytes()
    assert Encodings.load("e.json")["x"].scale == (0.03125,)


def test_encodings_are_exported(run: Run, workplace: Path) -> None:
    """`calibrate --format` writes what `quantize --encodings` reads, and names what is lost."""
    Path("calib.cache").write_text(CACHE, encoding="utf-8")
    run("plan model.onnx --encodings calib.cache -o p.json")
    run("calibrate model.onnx --plan p.json --encodings calib.cache -o e.json")
    text = run("calibrate model.onnx --plan p.json --encodings e.json --format tensorrt-cache -o out.cache")
    assert text.splitlines() == [
        "exported   1 of 2 tensors as tensorrt-cache",
        "left out   w: TensorRT makes the scales of weights itself",
        "wrote      out.cache",
    ]
    assert Path("out.cache").read_text(encoding="utf-8").splitlines()[1:] == ["x: 3d000000"]
    for version in ("0.6.1", "1.0.0", "2.0.0"):
        run(f"calibrate model.onnx --plan p.json --encodings e.json --format aimet-{version} -o a.encodings")
        run("quantize model.onnx --encodings a.encodings -o again.onnx")
        run("quantize model.onnx --encodings calib.cache -o whole.onnx")
        again, whole = onnx.load("again.onnx"), onnx.load("whole.onnx")
        assert again.graph == whole.graph


@pytest.mark.parametrize(
    ("line", "code", "message"),
    [
        (
            "quantize model.onnx --encodings none.cache -o o.onnx",
            1,
            "no such file: none.cache; check the path",
        ),
        ("quantize model.onnx --encodings data.npz -o o.onnx", 1, "data.npz is not text"),
        ("quantize model.onnx --encodings calib.cache -o calib.cache", 1, "is another file of this command"),
        ("quantize model.onnx --encodings calib.cache --uncalibrated no -o o.onnx", 2, "'no' is not one of"),
        ("insert model.onnx --plan p.json --encodings calib.cache -o o.onnx", 1, "make encodings of it with"),
        (
            "calibrate model.onnx --plan p.json -o e.json",
            2,
            "give --statistics, or --encodings that cover all activations",
        ),
        (
            "calibrate model.onnx --plan p.json --encodings e.json --format aimet -o o",
            1,
            "are not written as 'aimet'; nearest: aimet",
        ),
    ],
)
def test_mistakes_with_files_of_other_tools(
    line: str, code: int, message: str, workplace: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """A wrong file, name or choice is one line, and nothing is written."""
    Path("calib.cache").write_text(CACHE, encoding="utf-8")
    assert main("plan model.onnx -q -o p.json".split()) == 0
    Encodings(model_sha256="", encodings=()).save("e.json")
    assert main(line.split()) == code
    assert message in capfd.readouterr().err
    assert not Path("o.onnx").exists() and not Path("o").exists()


def test_quantize_prints_and_reports(run: Run, workplace: Path) -> None:
    """`quantize` tells coverage, scores and times, and writes model and report and nothing else."""
    before = set(workplace.iterdir())
    text = run("quantize model.onnx --data data.npz -o out.onnx --report out.html --batch 2 --threads 1")
    assert "quantized  Conv 1/1" in text and "simulated" in text and "wrote      out.onnx" in text
    assert {path.name for path in set(workplace.iterdir()) - before} == {"out.onnx", "out.html"}
    onnx.checker.check_model(onnx.load("out.onnx"), full_check=True)
    assert Path("out.html").read_text(encoding="utf-8").startswith("<!doctype html>")


@pytest.mark.parametrize("stands_already", [False, True])
def test_sizes_are_those_of_the_files(run: Run, stands_already: bool) -> None:
    """The summary has the bytes of the model with its data, and of what it writes, also over a file."""
    onnx.save(
        onnx.load("model.onnx"), "model.onnx", save_as_external_data=True, location="w", size_threshold=0
    )
    if stands_already:
        Path("out.onnx").write_bytes(b"another")
    text = run("quantize model.onnx --data data.npz -o out.onnx")
    before, after = (
        sum(os.stat(name).st_size for name in names) for names in (("model.onnx", "w"), ("out.onnx",))
    )
    assert f"\nsize       {before:,} -> {after:,} bytes (" in text


QUIET = [
    "quantize model.onnx --data data.npz -o q.onnx -q",
    "plan model.onnx -o q.json --quiet",
    "observe model.onnx --plan p.json --data data.npz -o q.npz -q",
    "calibrate model.onnx --plan p.json --statistics s.npz -o q.json -q",
    "insert model.onnx --plan p.json --encodings e.json -o q.onnx -q",
    "sensitivity model.onnx --data data.npz -o q.json -q",
]


@pytest.mark.parametrize("line", QUIET, ids=lambda line: line.split()[0])
def test_quiet_prints_nothing(run: Run, line: str) -> None:
    """With --quiet a command that succeeds says nothing, unless it writes no file and exists to print."""
    stages(run)
    assert run(line) == ""
    assert "SQNR dB" in run("evaluate model.onnx staged.onnx --data data.npz -q")


def test_plan_can_be_edited(run: Run) -> None:
    """A plan is JSON that a person may change: another calibrator reaches the encodings."""
    run("plan model.onnx -o p.json")
    Path("p.json").write_text(
        Path("p.json").read_text(encoding="utf-8").replace('"best_error"', '"minmax"'), encoding="utf-8"
    )
    assert Plan.load("p.json").activations[0].calibrator == "minmax"
    run("observe model.onnx --plan p.json --data data.npz -o s.npz")
    run("calibrate model.onnx --plan p.json --statistics s.npz -o e.json")
    x = Statistics.load("s.npz")["x"]
    assert Encodings.load("e.json")["x"].scale == np.float32(max(x.rmin / -128, x.rmax / 127))


def test_table_of_calibrators(run: Run) -> None:
    """--table prints a line for each method, --table-csv writes it; the encodings are written as ever."""
    run("plan model.onnx -o p.json")
    run("observe model.onnx --plan p.json --data data.npz -o s.npz")
    line = "calibrate model.onnx --plan p.json --statistics s.npz -o e.json"
    printed = run(f"{line} --table --table-csv t.csv -q")
    assert printed.splitlines()[0].startswith("tensor")
    assert [word for word in ("minmax", "mse", "sqnr", "percentile") if word not in printed] == []
    rows = Path("t.csv").read_text(encoding="utf-8").splitlines()
    assert rows[0] == "tensor,calibrator,rmin,rmax,sqnr_db,chosen,groups"
    assert len(rows) == len(printed.splitlines())
    assert Encodings.load("e.json")["x"].calibrator == "best_error"
    assert "wrote      t.csv" in run(f"{line} --table-csv t.csv")


def test_a_fixed_range_on_the_command_line(run: Run) -> None:
    """--calibrator range:LOW,HIGH gives every activation that range."""
    run("plan model.onnx -o p.json")
    run("observe model.onnx --plan p.json --data data.npz -o s.npz")
    run("calibrate model.onnx --plan p.json --statistics s.npz -o e.json --calibrator range:-2,4")
    assert Encodings.load("e.json")["x"].scale == (float(np.float32(4 / 127)),)


def test_calibrators_work_from_one_observation(run: Run) -> None:
    """--calibrator of `calibrate` and of `quantize` give the same model."""
    stages(run)
    run("calibrate model.onnx --plan p.json --statistics s.npz --calibrator entropy -o e.json")
    run("insert model.onnx --plan p.json --encodings e.json -o staged.onnx")
    run("quantize model.onnx --data data.npz --calibrator entropy -o whole.onnx")
    assert Path("staged.onnx").read_bytes() == Path("whole.onnx").read_bytes()


def test_repair_off_tries_nothing(run: Run) -> None:
    """--repair off leaves the model as the recipe makes it, also where a promise is kept without remedies."""
    needed, models = [], []
    for more in ("--repair off", "--repair off --min-sqnr 5", "--repair thorough"):
        trials = json.loads(run(f"quantize model.onnx --data data.npz -o q.onnx --json {more}"))["trials"]
        needed.append([trial["remedy"] for trial in trials if trial["is_needed"]])
        models.append(Path("q.onnx").read_bytes())
    assert needed[:2] == [[], []] and "calibrator" in needed[2]
    assert models[0] == models[1]


def test_json_is_what_was_written(run: Run) -> None:
    """--json prints nothing but the records of the result, as their files and the library have them."""
    content = json.loads(run("plan model.onnx -o p.json --json -q"))
    assert content == json.loads(Path("p.json").read_text(encoding="utf-8"))
    content = json.loads(
        run("quantize model.onnx --data data.npz -o q.onnx --repair off --artifacts kept --json")
    )
    for kind in ("plan", "evaluation"):
        assert content[kind] == json.loads(Path(f"kept/model.{kind}.json").read_text(encoding="utf-8"))
    assert content["recipe"] == json.loads(run("recipes tensorrt-int8 --json"))
    assert content["coverage"] == [{"op_type": "Conv", "quantized": 1, "total": 1}]
    assert content["bytes"] == {"before": os.stat("model.onnx").st_size, "after": os.stat("q.onnx").st_size}
    content = json.loads(run("handoff q.onnx -o folder --data data.npz --json"))
    assert content["check"] == json.loads(run("check q.onnx --json"))
    assert all((Path("folder") / name).is_file() for name in content["files"]) and content["files"]
    run("quantize model.onnx --data data.npz --recipe onnxruntime-int8 -o ort.onnx")
    content = json.loads(run("convert ort.onnx -o c.onnx --data data.npz --json"))
    same = onnxfq.convert("ort.onnx", data="data.npz")
    assert content["plan"] == json.loads(same.plan.model_dump_json())
    assert content["evaluation"] == json.loads(same.evaluation.model_dump_json())
    assert (content["changes"], content["notes"]) == (same.changes, list(same.notes))


def test_json_of_the_stages(run: Run) -> None:
    """Each stage counts in JSON what its file holds."""
    run("plan model.onnx -o p.json")
    content = json.loads(run("observe model.onnx --plan p.json --data data.npz -o s.npz --json"))
    seen = Statistics.load("s.npz")
    assert content.pop("reading") == {"data.npz": {"took": ["40 samples"], "left": []}}
    assert content == {"tensors": len(seen.tensors), "feeds": 40, "complete": True, "files": ["s.npz"]}
    np.savez("more.npz", **{name: array / 2 for name, array in np.load("data.npz").items()})
    run("observe model.onnx --plan p.json --data more.npz -o t.npz")
    content = json.loads(run("observe --merge s.npz t.npz -o m.npz --json"))
    assert (content["parts"], content["feeds"], content["files"]) == (["s.npz", "t.npz"], 80, ["m.npz"])
    line = "calibrate model.onnx --plan p.json --statistics s.npz -o e.json --table --table-csv t.csv --json"
    content = json.loads(run(line))
    assert content["tensors"] == len(Encodings.load("e.json").encodings)
    assert [list(map(str, row.values())) for row in content["table"]] == list(
        csv.reader(Path("t.csv").read_text(encoding="utf-8").splitlines()[1:])
    )
    content = json.loads(run("insert model.onnx --plan p.json --encodings e.json -o q.onnx --json"))
    assert (content["form"], content["files"]) == ("qdq", ["q.onnx"])
    assert content["coverage"] == [row._asdict() for row in Plan.load("p.json").coverage()]
    line = "calibrate model.onnx --plan p.json --encodings e.json --format tensorrt-cache -o out.cache --json"
    content = json.loads(run(line))
    assert (content["tensors"], list(content["left_out"])) == (1, ["w"])


def test_notes_stand_beside_json(run: Run, capfd: pytest.CaptureFixture[str]) -> None:
    """The notes of text go to standard error, so that standard output is JSON."""
    assert main("plan model.onnx -o p.json --equalize cross_layer --json".split()) == 0
    printed = capfd.readouterr()
    assert json.loads(printed.out)["recipe"] == "tensorrt-int8"
    assert "onnxfq: note: the plan is for the model as it is" in printed.err


def test_verbose_prints_information(
    run: Run, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """--verbose prints the library's INFO lines to standard error, and the next command is as ever."""
    whole = onnxfq.quantize

    def quantize(*given: object, **options: object) -> object:
        logging.getLogger("onnxfq.stages").info("a detail")
        return whole(*given, **options)

    monkeypatch.setattr("onnxfq.quantizing.pipeline.quantize", quantize)
    assert main("quantize model.onnx --data data.npz -o q.onnx -v --json".split()) == 0
    printed = capfd.readouterr()
    assert "onnxfq: note: a detail" in printed.err.splitlines() and json.loads(printed.out)
    assert main("inspect model.onnx -v".split()) == 0 and main("plan model.onnx -o p.json -v -q".split()) == 2
    assert "--verbose and --quiet exclude each other" in capfd.readouterr().err
    run("quantize model.onnx --data data.npz -o q.onnx")


def test_infinities_and_paths_are_json() -> None:
    """to_json writes infinities, also in records, and paths as strings."""
    score = OutputScore(output="y", sqnr_db=math.inf, cosine=1, largest_error=0)
    content = json.loads(to_json({"score": score, "alone": math.inf, "path": Path("a")}))
    assert (content["score"]["sqnr_db"], content["alone"]) == ("Infinity", "Infinity")
    assert content["path"] == "a"


def test_evaluate_with_labels(run: Run) -> None:
    """With labels the accuracies are printed; --json gives the same figures to a machine."""
    onnx.save(gemm(), "model.onnx")
    x = weights(6, 4, seed=3)
    np.savez("data.npz", x=x)
    labels = (x @ weights(4, 3) + weights(3)).argmax(1)
    labels[:3] = (labels[:3] + 1) % 3
    np.savetxt("labels.txt", labels, fmt="%d")
    np.savez("many.npz", x=np.concatenate([x, weights(36, 4, seed=4)]))
    run("quantize model.onnx --data many.npz -o q.onnx")
    table = run("evaluate model.onnx q.onnx --data data.npz --labels labels.txt")
    assert "0.5000" in table and "accuracy" in table
    content = json.loads(run("evaluate model.onnx q.onnx --data data.npz --labels labels.txt --json"))
    assert (content["accuracy"], content["reference"]) == (0.5, "model.onnx")
    assert content["candidates"][0]["candidate"] == "q.onnx"


def test_evaluate_of_several_candidates(
    run: Run, workplace: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """Each candidate has the scores of a separate run, from one run of the float model per feed."""
    Path("other").mkdir()
    stages(run)
    run("quantize model.onnx --data data.npz --recipe onnxruntime-int8 -o other/staged.onnx")
    run("quantize model.onnx --data data.npz --calibrator minmax -o q.onnx")
    names = ["staged.onnx", "other/staged.onnx", "q.onnx"]
    alone = [json.loads(run(f"evaluate model.onnx {name} --data data.npz --json")) for name in names]
    opened: list[str] = []
    whole = onnxruntime.InferenceSession

    def session(*given: object, **options: object) -> object:
        opened.append("one")
        return whole(*given, **options)

    monkeypatch.setattr(onnxruntime, "InferenceSession", session)
    together = json.loads(run(f"evaluate model.onnx {' '.join(names)} --data data.npz --json"))
    # A file for ONNX Runtime has another line, of the session of its users.
    found, each = together["candidates"], [one["candidates"] for one in alone]
    assert [one["candidate"] for one in found[: len(names)]] == names
    assert all(" in ONNX Runtime " in one["candidate"] for one in found[len(names) :])
    separate = [one[0] for one in each] + [one for others in each for one in others[1:]]
    assert [one["outputs"] for one in found] == [one["outputs"] for one in separate]
    # One more tells whether axis 0 counts samples, and one the sizes of the channels of outputs.
    # A session of users opens before the others too, so that a refusal is a note.
    assert len(opened) == 3 + 2 * len(found) - len(names)
    assert len(run(f"evaluate model.onnx {' '.join(names)} --data data.npz").splitlines()) == 1 + len(found)
    assert main("evaluate model.onnx q.onnx q.onnx --data data.npz".split()) == 2
    assert "candidate q.onnx appears twice" in capfd.readouterr().err


def test_evaluate_per_tensor(run: Run) -> None:
    """--per-tensor adds a line for each quantized tensor that the model computes."""
    onnx.save(two_branch(), "model.onnx")
    np.savez("data.npz", x=feed_for(two_branch(), count=40)["x"])
    run("quantize model.onnx --data data.npz -o q.onnx")
    content = json.loads(run("evaluate model.onnx q.onnx --data data.npz --per-tensor --json"))
    assert [t["output"] for t in content["candidates"][0]["tensors"]] == ["h", "r1", "r2"]


def test_inspect(run: Run) -> None:
    """`inspect` prints what `inspect_model` finds, as text and as JSON."""
    run("quantize model.onnx --data data.npz -o q.onnx")
    assert run("inspect q.onnx") == inspect_model("q.onnx").table() + "\n"
    content = json.loads(run("inspect q.onnx --json"))
    assert {row["tensor"] for row in content["quantized"]} == {"x", "w/q"}


def test_casts_are_noted(workplace: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """A change of the data on the way is a note on stderr, once."""
    np.savez("data.npz", x=feed_for(conv_relu(), count=40)["x"].astype(np.float64))
    assert main("quantize model.onnx --data data.npz -o q.onnx".split()) == 0
    assert capfd.readouterr().err.splitlines() == ["onnxfq: note: input x: float64 cast to float32"]


def test_listed_subcommands_have_their_own_help() -> None:
    """--help lists each subcommand by the docstring that the subcommand itself has."""
    listed = typer.main.get_command(build_app(()))
    real = typer.main.get_command(build_app(COMMANDS))
    assert list(listed.commands) == list(real.commands)  # type: ignore[attr-defined]
    for name, command in real.commands.items():  # type: ignore[attr-defined]
        assert listed.commands[name].get_short_help_str(200) == command.get_short_help_str(200)  # type: ignore[attr-defined]


def test_version_and_help(run: Run) -> None:
    """--version prints the version; no arguments and --help print the subcommands."""
    assert run("--version") == f"onnxfq {VERSION}\n"
    for line in ("--help", ""):
        text = run(line)
        assert all(
            name in text
            for name in ("quantize", "evaluate", "plan", "observe", "calibrate", "insert", "inspect")
        )


def test_module_is_runnable(workplace: Path) -> None:
    """`python -m onnxfq` is the command, without a warning and with its exit code."""
    call = [sys.executable, "-W", "error", "-m", "onnxfq"]
    how = {"capture_output": True, "text": True, "check": False}
    # The package under test, also when it is imported from a checkout.
    how["env"] = os.environ | {"PYTHONPATH": str(Path(onnxfq.__file__).parents[1])}
    good = subprocess.run([*call, *"quantize model.onnx --data data.npz -o q.onnx -q".split()], **how)
    assert (good.returncode, good.stdout, good.stderr) == (0, "", "")
    bad = subprocess.run([*call, "inspect", "none.onnx"], **how)
    assert (bad.returncode, bad.stdout) == (1, "")
    assert bad.stderr == "onnxfq: error: no such file: none.onnx; check the path\n"


@pytest.mark.parametrize(
    "line",
    [
        "observe model.onnx --data data.npz -o out.npz",
        "quantize model.onnx --data data.npz -o out.onnx",
        "evaluate model.onnx model.onnx --data data.npz",
    ],
    ids=lambda line: line.split()[0],
)
def test_devices(workplace: Path, capfd: pytest.CaptureFixture[str], line: str) -> None:
    """On the CPU nothing is said; a GPU that cannot be used is one line with the remedy, and no file."""
    if gpu_problem():
        assert main([*line.split(), "--device", "cuda"]) == 1
        printed = capfd.readouterr()
        assert printed.out == "" and not list(workplace.glob("out.*"))
        assert printed.err == f"onnxfq: error: device 'cuda' cannot be used: {gpu_problem()}\n"
    assert main([*line.split(), "--device", "cpu", "-q"]) == 0
    printed = capfd.readouterr()
    assert printed.err == "" and (printed.out == "" or line.startswith("evaluate"))
    assert main([*line.split(), "--device", "gpu"]) == 2


@pytest.mark.parametrize("name", RECIPES)
def test_recipes_print_recipe_files(name: str, run: Run) -> None:
    """The output of `recipes NAME` prints is a file of the same recipe; JSON has the same fields."""
    Path("printed.yaml").write_text(run(f"recipes {name}"), encoding="utf-8")
    assert load_recipe("printed.yaml") == RECIPES[name]
    assert json.loads(run(f"recipes {name} --json")) == RECIPES[name].model_dump(mode="json")


def test_recipes_lists_all(run: Run) -> None:
    """A line for each recipe, JSON of all, and the schema."""
    assert [line.split()[0] for line in run("recipes").splitlines()[1:]] == [*RECIPES]
    assert json.loads(run("recipes --json")).keys() == RECIPES.keys()
    assert json.loads(run("recipes --schema")) == recipe_schema()


def test_help_in_panels(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
    """--help begins with what most users need; flags show no type, and 80 columns break no word or choice."""
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("TERMINAL_WIDTH", "80")
    app = build_app(COMMANDS)
    shown = CliRunner().invoke(app, ["--help"]).output
    places = [shown.index(title) for title in PANELS]
    assert places == sorted(places) and shown.index("handoff") < places[1]
    for name in COMMANDS:
        assert main([name, "--help"]) == 0
        folded = capfd.readouterr().out
        assert "bool" not in folded and "…" not in folded and len(folded.splitlines()) <= 55
        assert main([name, "--help-all"]) == 0
        page = capfd.readouterr().out
        assert "bool" not in page and "…" not in page
        lines = (folded + page).splitlines()
        assert max(map(len, lines)) <= 80 and not [one for one in lines if re.search(r"<[^>=]*$", one)]
        hidden = set(re.findall(r"--[\w-]+", page)) - set(re.findall(r"--[\w-]+", folded))
        assert not hidden, (name, hidden)
        command = typer.main.get_command(app).commands[name]  # type: ignore[attr-defined]
        fill_names(command)
        for parameter in command.params:
            words = [*(parameter.metavar or "").split(), *parameter.help.split()]
            assert [word for word in words if word not in page] == [], name


def test_every_command_prints_json(workplace: Path) -> None:
    """Each command has --json and --verbose."""
    for name, command in typer.main.get_command(build_app(COMMANDS)).commands.items():  # type: ignore[attr-defined]
        names = {name for parameter in command.params for name in parameter.opts}
        assert {"--json", "--verbose", "-v"} <= names, name


@pytest.mark.share(3)
@pytest.mark.parametrize(
    ("typed", "found"),
    [
        ("onnxfq ev", "evaluate"),
        ("onnxfq quantize --rec", "--recipe"),
        ("onnxfq quantize --recipe openv", "openvino-int8"),
        ("onnxfq quantize --calibrator entr", "entropy"),
        ("onnxfq quantize --gpu l40s", "l40s"),
        ("onnxfq quantize --device cud", "cuda"),
        ("onnxfq check --target openv", "openvino"),
        ("onnxfq evaluate --metric neigh", "neighbours"),
        ("onnxfq evaluate --runtime openv", "openvino"),
    ],
)
def test_completion_of_the_shell(typed: str, found: str) -> None:
    """In bash, subcommands, options and values are completed; the call imports only that subcommand."""
    words = {"COMP_WORDS": typed, "COMP_CWORD": str(len(typed.split()) - 1)}
    program = "import sys; sys.argv = ['onnxfq']; from onnxfq.__main__ import main; sys.exit(main())"
    ended = subprocess.run(
        [sys.executable, "-c", program],
        env=os.environ | words | {"_ONNXFQ_COMPLETE": "complete_bash"},
        capture_output=True,
        text=True,
    )
    assert ended.stdout.split() == [found], ended.stderr


def test_reports_of_all_results(run: Run, capfd: pytest.CaptureFixture[str]) -> None:
    """Results of three commands share a page, under names that differ; any other file is one line."""
    run("quantize model.onnx --data data.npz -o q.onnx --repair off --artifacts one -q")
    run("quantize model.onnx --data data.npz -o r.onnx --artifacts two --calibrator minmax -q")
    Path("e.json").write_text(run("evaluate model.onnx q.onnx --data data.npz --per-tensor --json"))
    run("sensitivity model.onnx --data data.npz -o s.json --report s.html -q")
    files = "one/model.result.json two/model.result.json e.json s.json"
    shown = json.loads(run(f"report {files} -o page.html --json"))
    assert [one["label"] for one in shown] == ["one/model.result", "two/model.result", "e", "s"]
    calibrators = [{row["calibrator"] for row in one["tensors"]} for one in shown[:2]]
    assert any(name.startswith("best_error: ") for name in calibrators[0]) and calibrators[1] == {"minmax"}
    command = dict(shown[0]["facts"])["command"]
    assert command == "onnxfq quantize model.onnx --data data.npz -o q.onnx --repair off --artifacts one -q"
    page = Path("page.html").read_text(encoding="utf-8")
    assert all(label in page for label in ("one/model.result", "two/model.result"))
    before = Path("page.html").read_bytes()
    plan = Path("one/model.plan.json").read_text(encoding="utf-8")
    damaged = Path("e.json").read_text().replace('"feeds":', '"fed": 1, "feeds":')
    for content, reason in (
        (plan, "holds no result: its format is 'onnxfq.plan/1', wanted is one of onnxfq.result/2"),
        ("[1]", "holds no result: its format is None"),
        (damaged, "fed: no such field; nearest: feeds"),
        ("{", "is not valid json"),
    ):
        Path("bad.json").write_text(content, encoding="utf-8")
        assert main(["report", "e.json", "bad.json", "-o", "page.html"]) == 1
        text = capfd.readouterr().err
        assert reason in text and text.count("\n") == 1
    assert Path("page.html").read_bytes() == before
