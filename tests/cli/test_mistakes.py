"""Mistakes of users: one line that names the thing and the remedy, and nothing left behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
from builders import build, conv_relu, feed_for, gemm, linear, qdq_of, shared_weight, stage

import onnxfq
from onnxfq.cli.main import main
from onnxfq.stages.insert import insert_qdq
from onnxfq.support import interrupts


def on(data: str) -> str:
    """Return a command that quantizes model.onnx on `data`."""
    return f"quantize model.onnx --data {data} -o out.onnx"


GOOD = on("data.npz")


def recipe(text: str) -> None:
    """Write recipe.yaml."""
    Path("recipe.yaml").write_text(text, encoding="utf-8")


def data(**arrays: object) -> None:
    """Write data.npz."""
    np.savez("data.npz", **{name: np.asarray(array) for name, array in arrays.items()})


def quantized() -> None:
    """Write a quantized model.onnx."""
    staged = stage(conv_relu())
    onnx.save(insert_qdq(staged.model, staged.plan, staged.encodings), "model.onnx")


def damaged() -> None:
    """Write the first half of a model."""
    content = conv_relu().SerializeToString()
    Path("model.onnx").write_bytes(content[: len(content) // 2])


def invalid() -> None:
    """Write a model that reads a tensor that nothing gives."""
    proto = conv_relu()
    proto.graph.node[1].input[0] = "nowhere"
    onnx.save(proto, "model.onnx")


def with_nan() -> None:
    """Write a folder of feeds, the second of which has a NaN."""
    Path("feeds").mkdir()
    for number in range(3):
        x = np.ones((1, 3, 6, 6), np.float32)
        if number == 1:
            x[0, 0, 0, 0] = np.nan
        np.savez(f"feeds/{number}.npz", x=x)


def staged_files(proto: onnx.ModelProto | None = None) -> None:
    """Write p.json, s.npz and e.json of model.onnx, or of another model."""
    staged = stage(proto or conv_relu())
    staged.plan.save("p.json")
    staged.statistics.save("s.npz")
    staged.encodings.save("e.json")


def nvfp4() -> None:
    """Write gemm64.onnx and its nvfp4.onnx for TensorRT, and rows64.npz."""
    staged = stage(linear(64, 6), "tensorrt-nvfp4")
    onnx.save(linear(64, 6), "gemm64.onnx")
    onnx.save(insert_qdq(staged.model, staged.plan, staged.encodings), "nvfp4.onnx")
    np.savez("rows64.npz", **staged.feed)


def own_files() -> None:
    """Write the stages of model.onnx as it lies there."""
    for line in (
        "plan model.onnx -o p.json -q",
        "observe model.onnx --plan p.json --data data.npz -o s.npz -q",
        "calibrate model.onnx --plan p.json --statistics s.npz -o e.json -q",
    ):
        assert main(line.split()) == 0


RECIPE = f"{GOOD} --recipe recipe.yaml"
MISTAKES: dict[str, tuple[str, str]] = {
    # The thing that was wrong: the command, what the line has to say.
    "missing model": (
        "quantize none.onnx --data data.npz -o out.onnx",
        "no such file: none.onnx; check the path",
    ),
    "missing recipe file": (f"{GOOD} --recipe none.yaml", "no such file: none.yaml"),
    "calibrator of dynamic activations": (
        f"{GOOD} --recipe onnxruntime-uint8-dynamic --calibrator mse",
        "has dynamic scales for activations: none needs calibrator 'mse'",
    ),
    "unknown calibrator": (f"{GOOD} --calibrator mean", "unknown calibrator 'mean'"),
    "percentile out of range": (f"{GOOD} --calibrator percentile:101", "must be a number from 50 to 100"),
    "missing data": (on("none.npz"), "no such file or folder: none.npz"),
    "output under a file": (f"{GOOD[:-8]}data.npz/out.onnx", "cannot write data.npz/out.onnx"),
    "name too long": (f"{GOOD[:-8]}{'a' * 300}.onnx", "File name too long"),
    "report is the output": (f"{GOOD} --report out.onnx", "output out.onnx is another file of this command"),
    "half inputs of a float model": (f"{GOOD} --float-io", "--float-io needs --float fp16 or bf16"),
    "unknown float type": (f"{GOOD} --float fp17", "'--float': 'fp17' is not one of 'fp32'"),
    "conversion of a float model": (
        "convert model.onnx -o out.onnx",
        "model.onnx is not quantized; quantize it with `onnxfq quantize`",
    ),
    "no data": ("quantize model.onnx -o out.onnx", "recipe tensorrt-int8 needs data to observe"),
    "option of other commands": (
        f"{GOOD} --tolerance 3",
        "no option --tolerance here, but of `onnxfq compare`",
    ),
    "unknown command": ("quantise model.onnx", "quantise"),
    "negative batch": (f"{GOOD} --batch -1", "--batch"),
    "scale that is no number": (f"{GOOD} --scale big", "--scale is 'big'; give a number, as 0.5"),
    "scale of a fraction": (f"{GOOD} --scale 1/0", "--scale is '1/0'; give a number, as 0.5"),
    "std of zero": (f"{GOOD} --std 0", "std is 0.0; a zero would lose the data"),
    "size that is none": (f"{GOOD} --resize 224x", "--resize is '224x'; give width and height"),
    "size of images for arrays": (
        f"{GOOD} --resize 32x32",
        "resize is for image files, and data.npz holds arrays; prepare them",
    ),
    "color of images for arrays": (f"{GOOD} --color bgr", "color is for image files, and data.npz"),
    "empty path of data": ("quantize model.onnx --data= -o out.onnx", "the path of the data is empty"),
    "too many threads": (f"{GOOD} --threads 1000000", "--threads"),
    "unknown name in a module": (on("os:nosuchthing"), "module 'os' has no 'nosuchthing'"),
    "unknown layout": (f"{GOOD} --layout nchv", "unknown layout 'nchv'; nearest: nchw"),
    "unknown color": (f"{GOOD} --color grey", "unknown color 'grey'; nearest: gray"),
    "limit of none": (f"{GOOD} --limit 0", "--limit"),
    "unknown module": (
        on("nowhere:feeds"),
        "cannot import 'nowhere' of --data nowhere:feeds (ModuleNotFoundError: No module named 'nowhere')",
    ),
    "missing example": (f"{GOOD} --example none.npz", "no such file or folder: none.npz"),
    "missing labels": (
        "evaluate gemm.onnx gemm.onnx --data rows.npz --labels none.npy",
        "no such file: none.npy",
    ),
    "dB of repair with a promise": (
        f"{GOOD} --repair 25 --min-sqnr 30",
        "repair is 25 dB, and a promise has its own aim; leave one of them out",
    ),
    "a metric without a promised drop": (
        f"{GOOD} --metric perplexity --min-sqnr 20",
        "labels and a metric measure a promised --max-drop; give it too, or leave them out",
    ),
    "a promised drop without a measure": (
        f"{GOOD} --max-drop 1",
        "--max-drop needs labels or a metric to measure the drop; give one, or use --min-sqnr",
    ),
    "two promises": (
        f"{GOOD} --min-sqnr 20 --weight-bits 4",
        "a promise is --min-sqnr, --max-drop, --weight-bits or --max-bytes; give one of them",
    ),
    "a former word of repair": (
        f"{GOOD} --repair none",
        "--repair takes off, auto, thorough or a number of dB, got 'none'",
    ),
    "demo under a file": ("demo -o data.npz/demo", "cannot write data.npz/demo: data.npz is a file"),
}
PREPARED: dict[str, tuple[Callable[[], object], str, str]] = {
    # The thing that was wrong: how it comes about, and the same.
    "a folder as model": (
        lambda: Path("d").mkdir(),
        "quantize d --data data.npz -o out.onnx",
        "cannot read d",
    ),
    "damaged model": (damaged, GOOD, "model.onnx is not an ONNX file, or it is damaged; export it again"),
    "invalid model": (invalid, GOOD, "model.onnx is not a valid ONNX model"),
    "quantized model": (
        quantized,
        GOOD,
        "already quantized (it has DequantizeLinear, QuantizeLinear); give the float model, ",
    ),
    "no quantizable operator": (
        lambda: onnx.save(build("g (float[N,4] x) => (float[N,4] y) { y = Relu (x) }"), "model.onnx"),
        GOOD,
        "nothing to quantize: it has no Conv, ConvTranspose, Gemm, MatMul",
    ),
    "broken recipe file": (lambda: recipe("a: [1"), RECIPE, "recipe.yaml is not valid yaml"),
    "unknown qtype": (
        lambda: recipe("weights: {qtype: int99}"),
        RECIPE,
        "unknown qtype 'int99'; nearest: int",
    ),
    "refused by the target": (
        lambda: recipe("weights: {qtype: int16}"),
        RECIPE,
        "TensorRT has no int16 tensors; use int8",
    ),
    "scales of another type": (
        lambda: recipe("weights: {scale_type: e8m1}"),
        RECIPE,
        "recipe.yaml: weights.scale_type: Input should be 'float32', 'e8m0' or 'e4m3'",
    ),
    "MX without its target": (
        lambda: recipe("{base: mxfp4, target: tensorrt}"),
        RECIPE,
        "node 'conv', tensor 'x': TensorRT has no float4e2m1 per-tensor with e8m0 scales; use recipe "
        "tensorrt-mxfp8 or tensorrt-nvfp4, or target simulation",
    ),
    "NVFP4 run by ONNX Runtime": (
        nvfp4,
        "evaluate gemm64.onnx nvfp4.onnx --data rows64.npz",
        "the model cannot be run: ONNX Runtime has no TRT_FP4DynamicQuantize, an operator of TensorRT; run "
        "the fake-quant model instead",
    ),
    "misspelled node": (
        lambda: recipe("overrides: [{nodes: [cnv], keep_float: true}]"),
        RECIPE,
        "override names node 'cnv', which the model lacks; nearest: conv",
    ),
    "empty file as data": (
        lambda: Path("data.npz").write_bytes(b""),
        GOOD,
        "data.npz is not a readable .npz",
    ),
    "half an npz": (
        lambda: Path("data.npz").write_bytes(Path("data.npz").read_bytes()[:200]),
        GOOD,
        "data.npz is not a readable .npz",
    ),
    "an npy as data": (lambda: np.save("data.npy", np.zeros(3)), on("data.npy"), "its rank must be 4 or 5"),
    "empty folder as data": (
        lambda: Path("d").mkdir(),
        on("d"),
        "no .npz, .npy or image file (.png, .jpg, .jpeg, .bmp, .webp, .tif, .tiff, .gif) in folder d",
    ),
    "no samples": (
        lambda: data(x=np.zeros((0, 3, 6, 6), np.float32)),
        GOOD,
        "data.npz holds no samples; give at least one",
    ),
    "one input too many": (
        lambda: data(x=np.zeros((1, 3, 6, 6), np.float32), z=np.zeros(1)),
        GOOD,
        "has 'z', which the model does not take",
    ),
    "wrong shape": (
        lambda: data(x=np.zeros((1, 3, 5, 6), np.float32)),
        GOOD,
        "input 'x' got float32 [1, 3, 5, 6]",
    ),
    "NHWC": (lambda: data(x=np.zeros((1, 6, 6, 3), np.float32)), GOOD, "use array.transpose(0, 3, 1, 2)"),
    "NaN in the data": (
        with_nan,
        on("feeds"),
        "input 'x' has 1 NaN and 0 infinite values in sample 1; remove it",
    ),
    "output is a folder": (
        lambda: Path("d").mkdir(),
        f"{GOOD[:-8]}d",
        "cannot write d: it is a folder; give a file name",
    ),
    "half types without data": (
        own_files,
        "quantize model.onnx --statistics s.npz -o out.onnx --float fp16",
        "--float fp16 needs data",
    ),
    "conversion for an unknown target": (
        quantized,
        "convert model.onnx -o out.onnx --target tensorr",
        "there is no conversion for target 'tensorr'; nearest: tensorrt",
    ),
    "hand-over into a full folder": (
        lambda: (quantized(), Path("full").mkdir(), Path("full/a").write_text("a")),
        "handoff model.onnx -o full",
        "full exists and is not an empty folder; give a new one",
    ),
    "another document": (
        own_files,
        "insert model.onnx --plan p.json --encodings p.json -o out.onnx",
        "format: is 'onnxfq.plan/1', wanted is 'onnxfq.encodings/1'",
    ),
    "plan of another model": (
        lambda: staged_files(shared_weight()),
        "observe model.onnx --plan p.json --data data.npz -o out.npz",
        "the plan was made for a model with SHA-256",
    ),
    "statistics of another model": (
        lambda: (own_files(), stage(shared_weight()).statistics.save("s.npz")),
        "calibrate model.onnx --plan p.json --statistics s.npz -o out.json",
        "observe",
    ),
    "encodings of another model": (
        lambda: (own_files(), stage(shared_weight()).encodings.save("e.json")),
        "insert model.onnx --plan p.json --encodings e.json -o out.onnx",
        "the encodings were made for another model",
    ),
    "plan that is none": (
        lambda: Path("p.json").write_text("{}"),
        "observe model.onnx --plan p.json --data data.npz -o out.npz",
        "p.json: model_sha256",
    ),
    "plan that is no JSON": (
        lambda: Path("p.json").write_text("hello"),
        "observe model.onnx --plan p.json --data data.npz -o out.npz",
        "p.json is not valid json",
    ),
    "statistics that are none": (
        lambda: (own_files(), Path("s.npz").write_bytes(Path("data.npz").read_bytes())),
        "calibrate model.onnx --plan p.json --statistics s.npz -o out.json",
        "s.npz is not a statistics file",
    ),
    "too few labels": (
        lambda: np.save("labels.npy", np.zeros(2)),
        "evaluate gemm.onnx gemm.onnx --data rows.npz --labels labels.npy",
        "2 labels for at least 6 rows of output 'y'; give one label per row",
    ),
    "other outputs": (
        lambda: onnx.save(build("g (float[6,4] x) => (float[6,4] z) { z = Relu (x) }"), "z.onnx"),
        "evaluate gemm.onnx z.onnx --data rows.npz",
        "z.onnx has outputs z, the reference y",
    ),
}


def snapshot(folder: Path) -> dict[str, bytes | None]:
    """Return every path below `folder` with its content."""
    return {str(p): p.read_bytes() if p.is_file() else None for p in sorted(folder.rglob("*"))}


@pytest.mark.parametrize("mistake", [*MISTAKES, *PREPARED])
def test_mistakes(
    mistake: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """One line on stderr with the thing and the remedy, an exit code, no file written, not even half."""
    prepare, line, says = PREPARED.get(mistake) or (lambda: None, *MISTAKES[mistake])
    monkeypatch.chdir(tmp_path)
    onnx.save(conv_relu(), "model.onnx")
    onnx.save(gemm(), "gemm.onnx")
    np.savez("rows.npz", x=np.ones((6, 4), np.float32))
    np.savez("data.npz", x=feed_for(conv_relu(), count=40)["x"])
    prepare()
    capfd.readouterr()
    before = snapshot(tmp_path)
    code = main(line.split())
    printed = capfd.readouterr()
    assert code in (1, 2)
    assert printed.out == ""
    lines = printed.err.splitlines()
    assert len(lines) == 1 and lines[0].startswith("onnxfq: error: "), printed.err
    assert says in lines[0]
    assert "Traceback" not in printed.err
    assert snapshot(tmp_path) == before


def test_folder_without_permission(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """A folder that may not be written into is found before any work."""
    monkeypatch.chdir(tmp_path)
    onnx.save(conv_relu(), "model.onnx")
    np.savez("data.npz", x=feed_for(conv_relu())["x"])
    Path("locked").mkdir()
    # The system's answer is made up: root, as whom tests may run, is allowed everything.
    monkeypatch.setattr(os, "access", lambda path, mode: Path(path).name != "locked")
    assert main(f"{GOOD[:-8]}locked/out.onnx".split()) == 1
    assert "no permission to write in locked" in capfd.readouterr().err


def test_interrupt(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
    """Ctrl-C ends with code 130 and one line."""

    def interrupt(given: list[str]) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("onnxfq.cli.main._call", interrupt)
    assert main(["inspect", "model.onnx"]) == 130
    assert capfd.readouterr().err == "onnxfq: error: interrupted\n"


def test_an_end_from_outside(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
    """SIGTERM ends like Ctrl-C: what was written in part is taken away on the way out."""
    for name in ("_came", "_raised"):  # they are of this process
        monkeypatch.setattr(interrupts, name, getattr(interrupts, name))
    before = signal.signal(signal.SIGTERM, interrupts.interrupt)
    left: list[str] = []

    def stop(given: list[str]) -> None:
        try:
            os.kill(os.getpid(), signal.SIGTERM)
            time.sleep(10)
        finally:
            left.append("cleaned")

    monkeypatch.setattr("onnxfq.cli.main._call", stop)
    try:
        assert main(["inspect", "model.onnx"]) == 130
    finally:
        signal.signal(signal.SIGTERM, before)
    assert left == ["cleaned"]
    assert capfd.readouterr().err == "onnxfq: error: interrupted\n"


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupt_while_importing(number: signal.Signals, tmp_path: Path) -> None:
    """Ctrl-C or SIGTERM in the second that the imports take is one line and an exit code too."""
    (tmp_path / "typer.py").write_text("import time\nprint(1, flush=True)\ntime.sleep(60)\n")
    with subprocess.Popen(
        [sys.executable, "-m", "onnxfq", "doctor"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": f"{tmp_path}{os.pathsep}{Path(onnxfq.__file__).parents[1]}"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        # A job in the background starts with SIGINT ignored, and its children inherit that.
        preexec_fn=lambda: signal.signal(number, signal.SIG_DFL),
    ) as run:
        try:
            assert run.stdout is not None and run.stdout.readline() == "1\n"
            run.send_signal(number)
            assert run.communicate(timeout=30)[1] == "onnxfq: error: interrupted\n"
        finally:
            run.kill()
    assert run.returncode == 130


def test_a_closed_standard_output(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """If the caller closed it, there is no terminal to fit a table into."""
    onnx.save(qdq_of(stage(conv_relu())), tmp_path / "q.onnx")
    monkeypatch.setattr(sys, "stdout", None)
    assert main(["inspect", str(tmp_path / "q.onnx")]) == 0


def test_an_interrupt_that_typer_sees(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """Inside of a command typer turns Ctrl-C into an exit code: there is a line for it too."""

    def stop(path: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("onnxfq.tools.inspect.inspect_model", stop)
    assert main(["inspect", "model.onnx"]) == 130
    assert capfd.readouterr().err == "onnxfq: error: interrupted\n"
