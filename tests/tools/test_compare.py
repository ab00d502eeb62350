"""`compare`: the first tensor at which two runtimes part."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest
from builders import attention, build, conv_relu, feed_for, qdq_of, stage, two_branch, weights
from onnx import numpy_helper

from onnxfq.cli.main import main
from onnxfq.documents.scores import EqualShare
from onnxfq.errors import DataError, ModelError, RuntimeLibraryError
from onnxfq.graph.signature import boundaries
from onnxfq.interchange.polygraphy_json import outputs_json
from onnxfq.stages.options import RunOptions
from onnxfq.targets.tensorrt.tools.kit import TENSORS_FILE
from onnxfq.tools.compare import Comparison, compare
from onnxfq.tools.handoff import handoff
from onnxfq.tools.runtimes import runner

WHOLE = RunOptions(batch=0)
"""Feeds as they come."""

POLYGRAPHY = Path(sys.executable).parent / "polygraphy"


def three() -> onnx.ModelProto:
    """Three linear layers in a row."""
    return build(
        "g (float[N,16] x) => (float[N,4] y) {"
        "[one] a = MatMul (x, w1) [relu] b = Relu (a) [two] c = MatMul (b, w2) [three] y = MatMul (c, w3) }",
        {"w1": weights(16, 16), "w2": weights(16, 16, seed=1), "w3": weights(16, 4, seed=2)},
    )


def tensors_of(proto: onnx.ModelProto, feeds: list[dict[str, np.ndarray]]) -> list[dict[str, np.ndarray]]:
    """Return what `onnxruntime` gives for each feed."""
    return list(runner("onnxruntime")(proto, feeds, boundaries(proto), 1))


@pytest.mark.parametrize("make", [conv_relu, two_branch, attention, three])
def test_integer_kernels_agree(make) -> None:
    """Whole sums differ from float ones by rounding alone: far below the tolerance."""
    staged = stage(make())
    found = compare(qdq_of(staged), [staged.feed])
    assert found.first is None and found.tensors and found.missing == ()
    assert [one.tensor for one in found.tensors] == boundaries(qdq_of(staged))


@pytest.mark.parametrize("wrong", ["b", "c", "y"])
def test_the_first_wrong_tensor_is_named(wrong: str, tmp_path: Path) -> None:
    """From one tensor on all are wrong, as behind a wrong kernel: it is the one that is named."""
    staged = stage(three())
    proto = qdq_of(staged)
    order = boundaries(proto)
    results = tensors_of(proto, [staged.feed])
    for name in order[order.index(wrong) :]:
        results[0][name] = results[0][name] * 1.1
    path = tmp_path / "other.json"
    path.write_text(outputs_json(results))
    found = compare(proto, [staged.feed], candidate=str(path), options=WHOLE)
    assert found.first is not None and found.first.tensor == wrong
    assert found.table().splitlines()[0].startswith(f"onnxruntime and {path} part at {wrong!r}")
    node = next(n for n in proto.graph.node if wrong in n.output)
    assert (found.first.node, found.first.op_type) == (node.name, node.op_type)


def test_steps_are_those_of_the_scale(tmp_path: Path) -> None:
    """An error of two steps of a tensor's scale is reported as two steps."""
    staged = stage(three())
    proto = qdq_of(staged)
    results = tensors_of(proto, [staged.feed])
    q = next(n for n in proto.graph.node if n.op_type == "QuantizeLinear" and n.input[0] == "c")
    scale = next(numpy_helper.to_array(t) for t in proto.graph.initializer if t.name == q.input[1])
    results[0]["c"] = results[0]["c"] + np.float32(2 * scale)
    path = tmp_path / "other.json"
    path.write_text(outputs_json(results))
    found = {
        one.tensor: one for one in compare(proto, [staged.feed], candidate=str(path), options=WHOLE).tensors
    }
    # float32 numbers are added: exact to their own rounding.
    assert found["c"].steps == pytest.approx(2, rel=1e-4)
    assert found["y"].steps is None and found["y"].largest_error == 0


def test_outputs_that_are_no_tensors_of_floats() -> None:
    """Sequences have an error by position; indices a share, which decides nothing."""
    text = "h = MatMul (x, w) s = SequenceConstruct (h, h) i = SequenceAt (s, zero)"
    constants = {"w": weights(4, 4), "zero": np.int64(0)}
    proto = build(
        f"""g (float[N,4] x) => (float[N,4] y, seq(float[N,4]) s, int64[N] c) {{
            {text} y = MatMul (i, w) c = ArgMax <axis = 1, keepdims = 0> (y) }}""",
        constants,
    )
    made = compare(qdq_of(stage(proto)), [feed_for(proto)], candidate="onnxruntime")
    assert [one.tensor for one in made.tensors] == ["s", "i", "y"] and made.first is None
    assert made.shares == (EqualShare(output="c", equal=1.0),) and "output 'c': equal" in made.table()


def test_what_is_missing_is_told(tmp_path: Path) -> None:
    """A tensor that the other runtime does not have is named, and the others are compared."""
    staged = stage(three())
    proto = qdq_of(staged)
    results = tensors_of(proto, [staged.feed])
    del results[0]["b"]
    path = tmp_path / "other.json"
    path.write_text(outputs_json(results))
    found = compare(proto, [staged.feed], candidate=str(path), options=WHOLE)
    assert found.missing == ("b",) and "has no b" in found.table()
    assert [one.tensor for one in found.tensors] == ["c", "y"]


def test_mistakes(tmp_path: Path) -> None:
    """One line each: no Q/DQ model, unknown runtimes, other data, files of something else."""
    staged = stage(three())
    proto = qdq_of(staged)
    with pytest.raises(ModelError, match="has no QuantizeLinear; give a Q/DQ model"):
        compare(three(), [staged.feed])
    with pytest.raises(DataError, match="unknown runtime 'tensorr'; nearest: tensorrt"):
        runner("tensorr")
    path = tmp_path / "other.json"
    path.write_text(outputs_json(tensors_of(proto, [staged.feed]) * 2))
    with pytest.raises(DataError, match="has results for 2 feeds, the data has 1"):
        compare(proto, [staged.feed], candidate=str(path), options=WHOLE)
    path.write_text(outputs_json(tensors_of(proto, [feed_for(three(), count=2)])))
    with pytest.raises(DataError, match=r"has shape \[4, 16\] in onnxruntime and \[2, 16\]"):
        compare(proto, [staged.feed], candidate=str(path), options=WHOLE)
    cut = '{"lst": [["r", [{"outputs": {"y": {"values": {"array": ""}}}}]]]}'
    for text in ("{}", "[", cut, '{"lst": [["r", [{"outputs": []}]]]}'):
        path.write_text(text)
        with pytest.raises(DataError, match="does not hold Polygraphy results"):
            compare(proto, [staged.feed], candidate=str(path), options=WHOLE)
    with pytest.raises(DataError, match=r"cannot read .*missing\.json"):
        compare(proto, [staged.feed], candidate=str(tmp_path / "missing.json"))


def test_no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without Polygraphy, or without a GPU, one line says how to get the numbers from where there is one."""
    pytest.importorskip("tensorrt_rtx")
    staged = stage(three())
    monkeypatch.setenv("PATH", "")
    with pytest.raises(RuntimeLibraryError, match="polygraphy is not installed.*layers11.sh"):
        compare(qdq_of(staged), [staged.feed], candidate="tensorrt")
    if not POLYGRAPHY.exists() or shutil.which("nvidia-smi"):
        pytest.skip("Polygraphy is not installed, or there is a GPU")
    monkeypatch.setenv("PATH", str(POLYGRAPHY.parent))
    with pytest.raises(RuntimeLibraryError, match="TensorRT cannot run the model: .*; run layers11.sh"):
        compare(qdq_of(staged), [staged.feed], candidate="tensorrt")


@pytest.mark.whole
@pytest.mark.skipif(not POLYGRAPHY.exists(), reason="Polygraphy is not installed")
@pytest.mark.wide_sums
def test_polygraphy_runs_the_folder(tmp_path: Path) -> None:
    """Polygraphy runs a folder as its scripts say, with ONNX Runtime for TensorRT, and its files compare."""
    staged = stage(three())
    proto = qdq_of(staged)
    handoff(proto, tmp_path / "out", data=[staged.feed])
    folder = tmp_path / "out"
    script = (folder / "tensorrt11.sh").read_text().splitlines()[-1]
    layers = (folder / "layers11.sh").read_text().splitlines()[-1]
    for command in (script, layers):
        words = command.replace("--trt-outputs", "--onnx-outputs").replace("--trt ", "--onnxrt ").split()
        # Shapes of an engine's profile mean nothing to ONNX Runtime.
        shapes = {i for i, word in enumerate(words) if word.endswith("-shapes")}
        kept = [word for i, word in enumerate(words) if not {i, i - 1} & shapes]
        done = subprocess.run(
            [str(POLYGRAPHY), *kept[1:]], cwd=folder, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stdout + done.stderr
    found = Comparison.model_validate_json(compared_by_command(folder))
    # Polygraphy's session packs weights, and sums in another order.
    assert found.tensors and min(one.sqnr_db for one in found.tensors) > 120


def compared_by_command(folder: Path) -> str:
    """Return what the command in the folder's README prints, as JSON."""
    line = next(one for one in (folder / "README.md").read_text().splitlines() if "onnxfq compare" in one)
    words = line.split()[1:]
    at = {name: words.index(name) for name in ("model.onnx", "inputs", TENSORS_FILE)}
    for name, position in at.items():
        words[position] = str(folder / name)
    done = subprocess.run(
        [sys.executable, "-m", "onnxfq", *words, "--json"], capture_output=True, text=True, check=True
    )
    return done.stdout


def test_the_command_line(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """Exit code 3 and the name of the tensor when one differs, 0 when none does."""
    staged = stage(three())
    proto = qdq_of(staged)
    onnx.save(proto, tmp_path / "m.onnx")
    np.savez(tmp_path / "d.npz", **staged.feed)
    common = ["compare", str(tmp_path / "m.onnx"), "--data", str(tmp_path / "d.npz"), "--batch", "0"]
    assert main([*common, "--quiet"]) == 0
    assert main(common) == 0
    assert "onnxruntime and integer agree on 3 tensors, 1 feed:" in capfd.readouterr().out
    results = tensors_of(proto, [staged.feed])
    results[0]["c"] = -results[0]["c"]
    (tmp_path / "o.json").write_text(outputs_json(results))
    assert main([*common, "--candidate", str(tmp_path / "o.json")]) == 3
    assert "part at 'c' of MatMul 'two'" in capfd.readouterr().out
    assert main([*common, "--candidate", str(tmp_path / "o.json"), "--json"]) == 3
    assert json.loads(capfd.readouterr().out)["format"] == "onnxfq.comparison/1"
