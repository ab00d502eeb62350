"""`handoff`: a folder that TensorRT's own tools can use as it is."""

from __future__ import annotations

import ast
import base64
import importlib
import io
import json
import shlex
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from builders import build, conv_relu, feed_for, gemm, linear, qdq_of, stage, weights

from onnxfq.cli.main import main
from onnxfq.errors import OutputError
from onnxfq.interchange.polygraphy_json import inputs_json, outputs_json
from onnxfq.runtime.session import Session
from onnxfq.stages.insert import TARGET_KEY
from onnxfq.stages.options import RunOptions
from onnxfq.targets.findings import CheckResult
from onnxfq.targets.tensorrt.tools import kit
from onnxfq.tools.handoff import SAMPLES, handoff

PROFILE = {"x": ((1, 3, 6, 6), (4, 3, 6, 6), (8, 3, 6, 6))}


def decoded(held: dict[str, str]) -> np.ndarray:
    """Return the array that Polygraphy would read: base64 of the bytes of an .npy file."""
    assert held["polygraphy_class"] == "ndarray"
    return np.load(io.BytesIO(base64.b64decode(held["array"], validate=True)), allow_pickle=False)


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, onnx.ModelProto, list[dict[str, Any]]]:
    """A folder for the int8 model of one Conv, with the model and the data it was made of."""
    proto = qdq_of(stage(conv_relu()))
    feeds = [feed_for(conv_relu(), seed) for seed in range(6)]
    folder = tmp_path_factory.mktemp("handoff") / "out"
    result = handoff(proto, folder, data=feeds)
    assert sorted(result.files) == sorted(
        str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()
    )
    return folder, proto, feeds


def test_samples_and_outputs(written):
    """Inputs are the first samples of the data; outputs are what ONNX Runtime gives for them, to the bit."""
    folder, proto, feeds = written
    inputs = [
        {k: decoded(v) for k, v in one.items()} for one in json.loads((folder / "inputs.json").read_text())
    ]
    results = json.loads((folder / "outputs.json").read_text())
    assert results["polygraphy_class"] == "RunResults" and len(results["lst"]) == 1
    name, iterations = results["lst"][0]
    assert len(inputs) == len(iterations) == SAMPLES
    session = Session(proto, 1, exact=True)
    np.testing.assert_array_equal(np.concatenate([one["x"] for one in inputs]), feeds[0]["x"])
    for number, (feed, one) in enumerate(zip(inputs, iterations, strict=True)):
        assert one["runner_name"] == name
        expected = session.run(feed)[0]
        np.testing.assert_array_equal(decoded(one["outputs"]["y"]["values"]), expected)
        with np.load(folder / f"outputs/{number}.npz") as stored:
            np.testing.assert_array_equal(stored["y"], expected)
    raw = np.frombuffer((folder / "raw/x.bin").read_bytes(), np.float32)
    np.testing.assert_array_equal(raw, inputs[0]["x"].ravel())


def test_the_model_shapes_and_findings(written):
    """The model is the given one; the profile covers the samples; the findings equal `check`."""
    folder, proto, _ = written
    assert onnx.load(folder / "model.onnx") == proto
    profile = json.loads((folder / "profiles.json").read_text())["x"]
    assert profile == {"min": [1, 3, 6, 6], "opt": [1, 3, 6, 6], "max": [8, 3, 6, 6]}
    found = CheckResult.model_validate_json((folder / "findings.json").read_text())
    assert found.passed and str(found.coverage[0]) == "Conv 1/1 low"
    assert "coverage   Conv 1/1 low" in (folder / "README.md").read_text()


@pytest.mark.parametrize("release", kit.RELEASES)
def test_scripts(written, release):
    """A shell reads the scripts; the files that they name are there; 10 gets the flag for strong types."""
    folder, _, _ = written
    script = folder / f"tensorrt{release}.sh"
    assert subprocess.run(["sh", "-n", str(script)], check=False).returncode == 0
    head, tool, otherwise, note, build, listing, end, compared = script.read_text().splitlines()[3:]
    assert (head, otherwise, end) == ("if command -v trtexec > /dev/null; then", "else", "fi")
    assert "container" in note and shlex.split(listing) == ["python3", "layers.py"]
    assert shlex.split(build)[:2] == ["polygraphy", "convert"] and (folder / "layers.py").exists()
    assert ("--strongly-typed" in build) == (release == 10) and "x:[8,3,6,6]" in build
    trtexec, polygraphy = shlex.split(tool), shlex.split(compared)
    pair = {"--exportLayerInfo=layers.json", "--exportProfile=profile.json", "--separateProfileRun"}
    assert pair < set(trtexec) and "--profilingVerbosity=detailed" in trtexec
    assert (trtexec[0], polygraphy[:2]) == ("trtexec", ["polygraphy", "run"])
    assert ("--stronglyTyped" in trtexec) == ("--strongly-typed" in polygraphy) == (release == 10)
    assert not {"--fp16", "--int8", "--best", "--fp8"} & {*trtexec, *polygraphy}
    files = [word.partition("=")[2] for word in trtexec if word.startswith("--onnx=")]
    files += [word.rpartition(":")[2] for word in trtexec if word.startswith("--loadInputs=")]
    files += [word for word in polygraphy if word.endswith((".json", ".onnx"))]
    assert len(files) == 5 and all((folder / name).is_file() for name in files)


def test_shapes_in_commands():
    """Both tools get each end of each open input, in their own spelling; names with colons are quoted."""
    words = kit.trtexec(11, PROFILE, {"x": (4, 3, 6, 6), "t:0": (1,)}, kit.raw_files(["x", "t:0"]))
    assert "--minShapes=x:1x3x6x6" in words and "--maxShapes=x:8x3x6x6" in words
    assert "--shapes=x:4x3x6x6" in words
    assert "--loadInputs=x:raw/x.bin,'t:0':raw/t_0.bin" in words
    assert shlex.split(kit.script([words]).splitlines()[3]) == words
    words = kit.polygraphy(11, PROFILE, expected=False, limits={})
    at = words.index("--trt-opt-shapes")
    assert words[at : at + 2] == ["--trt-opt-shapes", "x:[4,3,6,6]"]
    assert "--load-outputs" not in words
    fixed = kit.trtexec(10, {}, {"x": (1, 3)}, {"x": "x.bin"})
    assert not any("Shapes" in word or "--shapes" in word for word in fixed)


def test_polygraphy_reads_the_files(tmp_path: Path):
    """Polygraphy itself loads inputs and outputs as it would its own."""
    pytest.importorskip("polygraphy")
    polygraphy_json = importlib.import_module("polygraphy.json")
    results = importlib.import_module("polygraphy.comparator").RunResults
    x, y = np.arange(6, dtype=np.float32).reshape(2, 3), np.asarray([1, 2], np.int64)
    (tmp_path / "i.json").write_text(inputs_json([{"x": x}, {"x": x + 1}]))
    (tmp_path / "o.json").write_text(outputs_json([{"y": y}, {"y": y + 1}]))
    loaded = polygraphy_json.load_json(str(tmp_path / "i.json"))
    np.testing.assert_array_equal(loaded[1]["x"], x + 1)
    ((_, iterations),) = results.load(str(tmp_path / "o.json")).items()
    np.testing.assert_array_equal(iterations[1]["y"], y + 1)


def test_without_data(tmp_path: Path):
    """Random samples of the right types stand in, and a note says so."""
    proto = build(
        """g (float[N,4] x, int64[N] ids, bool flag) => (float[N,4] y) {
            [look] e = Gather <axis = 0> (table, ids)
            [cast] f = Cast <to = 1> (flag)
            [add] a = Add (e, x) [mul] y = Mul (a, f) }""",
        {"table": weights(5, 4)},
    )
    onnx.helper.set_model_props(proto, {TARGET_KEY: "qnn"})
    result = handoff(proto, tmp_path / "out")
    other = "the file is for qnn: a recipe of tensorrt makes one for this folder"
    assert result.notes == ("the samples are random numbers: no data was given", other)
    with np.load(tmp_path / "out/inputs/0.npz") as feed:
        assert {k: (v.dtype.name, v.shape) for k, v in feed.items()} == {
            "x": ("float32", (4, 4)),
            "ids": ("int64", (4,)),
            "flag": ("bool", ()),
        }


def test_texts_sequences_and_long_names(tmp_path: Path):
    """Values other than arrays are left out with a note; a file gets a name that a file can have."""
    proto = build(
        f"""g (float[N,4] {"x" * 300}, string[M] words)
            => (float[N,4] y, seq(float[N,4]) s, string[M] said) {{
            y = MatMul ({"x" * 300}, w) s = SequenceConstruct (y, y) said = Identity (words) }}""",
        {"w": weights(4, 4)},
    )
    feed = {"x" * 300: weights(3, 4), "words": np.asarray(["a", "bc"])}
    result = handoff(proto, tmp_path / "out", data=[feed], options=RunOptions(batch=0))
    assert "left out of the samples, because they hold no numbers: s, said, words" in result.notes
    (raw,) = (tmp_path / "out/raw").iterdir()
    assert raw.read_bytes() == feed["x" * 300].tobytes() and len(raw.name) < 256
    with np.load(tmp_path / "out/outputs/0.npz") as stored:
        assert stored.files == ["y"]


def test_what_onnxruntime_cannot_run(tmp_path: Path):
    """There are no expected outputs then, nothing names them, and a note says why."""
    proto = qdq_of(stage(linear(64, 6), "tensorrt-nvfp4"))
    result = handoff(proto, tmp_path / "out", data=[feed_for(linear(64, 6))])
    assert "there are no expected outputs: ONNX Runtime has no TRT_FP4DynamicQuantize" in result.notes[0]
    assert not (tmp_path / "out/outputs.json").exists()
    assert "outputs.json" not in (tmp_path / "out/tensorrt11.sh").read_text()


def test_a_failure_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """If the disk is full in the middle, a new folder goes again and an empty one is empty again."""

    def refuse(*given: object) -> None:
        raise OutputError("no space left")

    monkeypatch.setattr(importlib.import_module("onnxfq.tools.handoff"), "write_npz", refuse)
    (tmp_path / "empty").mkdir()
    for name in ("new", "empty"):
        with pytest.raises(OutputError, match="no space left"):
            handoff(qdq_of(stage(gemm())), tmp_path / name)
    assert [path.name for path in tmp_path.rglob("*")] == ["empty"]


def test_a_folder_with_files_is_left_alone(tmp_path: Path):
    """Nothing is mixed with what is there."""
    (tmp_path / "kept").write_text("mine")
    with pytest.raises(OutputError, match="exists and is not an empty folder"):
        handoff(qdq_of(stage(conv_relu())), tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["kept"]


def test_the_command_line(tmp_path: Path, capfd: pytest.CaptureFixture[str]):
    """`handoff -o DIR` prints the findings and the files."""
    onnx.save(qdq_of(stage(conv_relu())), tmp_path / "q.onnx")
    np.savez(tmp_path / "d.npz", x=feed_for(conv_relu())["x"])
    line = f"handoff {tmp_path}/q.onnx -o {tmp_path}/out --data {tmp_path}/d.npz --shape x:16x3x6x6"
    assert main(line.split()) == 0
    assert "findings   none" in capfd.readouterr().out
    assert "--maxShapes=x:16x3x6x6" in (tmp_path / "out/tensorrt10.sh").read_text()


def tokens() -> tuple[onnx.ModelProto, list[dict[str, Any]]]:
    """A model with an open length, and data of ten lengths, 20 most often; the first four are short."""
    proto = build("g (float[N,L,4] x) => (float[N,L,4] y) { y = MatMul (x, w) }", {"w": weights(4, 4)})
    lengths = [11, 12, 13, 14, 20, 63, 20, 20, 30, 40]
    return qdq_of(stage(proto)), [{"x": weights(1, length, 4)} for length in lengths]


def test_profiles_are_those_of_all_data(tmp_path: Path):
    """Smallest, most frequent and largest length come from every feed; the batch keeps its usual range."""
    proto, feeds = tokens()
    found = handoff(proto, tmp_path / "out", data=iter(feeds)).profiles
    assert found == {"x": ((1, 11, 4), (1, 20, 4), (8, 63, 4))}


def test_ends_of_profiles_are_set(tmp_path: Path, capfd: pytest.CaptureFixture[str]):
    """`--min-shapes` and the like replace an end; what cannot be built or run is refused in one line."""
    proto, feeds = tokens()
    onnx.save(proto, tmp_path / "q.onnx")
    (tmp_path / "d").mkdir()
    for number, feed in enumerate(feeds):
        np.savez(tmp_path / f"d/{number:02}.npz", **feed)
    line = [f"{tmp_path}/q.onnx", "-q", "-o", f"{tmp_path}/out", "--data", f"{tmp_path}/d"]
    for words, says in (
        (["--max-shapes", "x:8x12x4"], "out of order"),
        (["--max-shapes", "x:8x13x4", "--opt-shapes", "x:1x12x4"], "sample 3 has 'x' 1x14x4, outside of"),
        (["--max-shapes", "x:8x13x5"], "but the given shape is 8x13x5"),
        (["--max-shapes", "z:8"], "'z', which the model does not take"),
        (["--max-shapes", "x8"], "a shape is NAME:1x3x224x224"),
    ):
        assert main(["handoff", *line, *words]) != 0
        assert says in capfd.readouterr().err and not (tmp_path / "out").exists()
    assert main(["handoff", *line, "--max-shapes", "x:16x128x4", "--min-shapes", "x:1x1x4"]) == 0
    ends = json.loads((tmp_path / "out/profiles.json").read_text())
    assert ends == {"x": {"min": [1, 1, 4], "opt": [1, 20, 4], "max": [16, 128, 4]}}


def test_names_that_are_alike_or_numpys_own(tmp_path: Path):
    """Every input has its own raw file, and arrays may be called as arguments of NumPy."""
    names = ("a/b", "a_b", "A_b", "file", "allow_pickle")
    proto = named_inputs(names)
    feed = {name: weights(1, 4) + np.float32(number) for number, name in enumerate(names)}
    handoff(proto, tmp_path / "out", data=[feed])
    script = shlex.split((tmp_path / "out/tensorrt11.sh").read_text())
    (given,) = (word.partition("=")[2] for word in script if word.startswith("--loadInputs="))
    files = dict(one.rsplit(":", 1) for one in given.split(","))
    assert set(files) == set(names) and len(set(map(str.casefold, files.values()))) == len(names)
    for name, file in files.items():
        assert (tmp_path / "out" / file).read_bytes() == feed[name].tobytes()
    with np.load(tmp_path / "out/inputs/0.npz") as stored:
        assert {name: stored[name].tobytes() for name in names} == {n: a.tobytes() for n, a in feed.items()}


def named_inputs(names: Sequence[str]) -> onnx.ModelProto:
    """A sum of inputs of these names."""
    made = [onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, [1, 4]) for name in names]
    y = onnx.helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, [1, 4])
    graph = onnx.helper.make_graph([onnx.helper.make_node("Sum", names, ["y"], "sum")], "g", made, [y])
    return onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 17)], ir_version=8)


def test_two_at_once_and_a_killed_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """The folder appears whole or not at all: of two at a time one is refused, and leftovers are removed."""
    module = importlib.import_module("onnxfq.tools.handoff")
    proto, usual = qdq_of(stage(gemm())), module.write_npz

    def race(path: Path, arrays: Any) -> None:
        assert not (tmp_path / "out").exists()
        monkeypatch.setattr(module, "write_npz", usual)
        handoff(proto, tmp_path / "out")
        usual(path, arrays)

    monkeypatch.setattr(module, "write_npz", race)
    with pytest.raises(OutputError, match="was filled by another process meanwhile"):
        handoff(proto, tmp_path / "out")
    assert [path.name for path in tmp_path.iterdir()] == ["out"] and (tmp_path / "out/README.md").exists()
    (tmp_path / ".new.killed.part/raw").mkdir(parents=True)
    handoff(proto, tmp_path / "new")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["new", "out"]


def test_the_limit_fits_the_expected_outputs():
    """Twice the angle between two ways of rounding: 0.979 asks for 0.9168, near 1 for the usual 0.99."""
    limits = kit.cosine_limits({"a": 0.979, "b": 0.9999, "c": 0.5})
    assert limits == {"a": 0.9168, "c": 0.0}
    words = kit.polygraphy(11, {}, True, limits)
    at = words.index("--cosine-similarity-threshold")
    assert words[at + 1 : at + 4] == ["0.99", "a:0.9168", "c:0.0000"]


def test_the_scripts_do_without_trtexec(written: tuple[Path, Any, Any], tmp_path: Path) -> None:
    """A machine without trtexec is told what has it, and Polygraphy and layers.py take its place."""
    folder, _, _ = written
    for name in ("polygraphy", "python3"):
        (tmp_path / name).write_text(f'#!/bin/sh\necho "{name} $1" >> "{tmp_path}/ran"\n')
        (tmp_path / name).chmod(0o755)
    (tmp_path / "dirname").symlink_to("/usr/bin/dirname")
    run = subprocess.run(
        ["/bin/sh", str(folder / "tensorrt11.sh")],
        check=True,
        capture_output=True,
        text=True,
        env={"PATH": str(tmp_path)},
    )
    assert (tmp_path / "ran").read_text().split("\n")[:3] == [
        "polygraphy convert",
        "python3 layers.py",
        "polygraphy run",
    ]
    assert "trtexec is not installed: it comes with TensorRT's container" in run.stderr
    program = ast.parse((folder / "layers.py").read_text())
    trt = pytest.importorskip("tensorrt_rtx")
    known = {name for one in (trt, *vars(trt).values()) for name in dir(one)} | {*dir(Path), *dir("")}
    assert {node.attr for node in ast.walk(program) if isinstance(node, ast.Attribute)} <= known
