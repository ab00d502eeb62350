"""Two builds, with and without pairs: counts of both engines, and the sentence that follows."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import onnx
import pytest
from builders import build, conv_relu, feed_for, weights
from engines import needs_builder, unmeasured

import onnxfq
from onnxfq.cli.main import main
from onnxfq.errors import RecipeError
from onnxfq.report.record import ResultRecord
from onnxfq.runtime.session import Session
from onnxfq.targets.engine_figures import EngineComparison, EngineFigures
from onnxfq.targets.reading.context import read
from onnxfq.targets.target import BuildOptions
from onnxfq.targets.tensorrt.builder.without_pairs import without_pairs
from onnxfq.targets.tensorrt.rules.structure import EXTRA

HALF = BuildOptions(against="half")


def perceptron(width: int = 256) -> onnx.ModelProto:
    """Two linear layers with a Relu between."""
    return build(
        f"""g (float[N,{width}] x) => (float[N,{width}] y) {{
        [one] a = MatMul (x, w) [relu] r = Relu (a) [two] y = MatMul (r, v) }}""",
        {"w": weights(width, width), "v": weights(width, width, seed=1)},
        opset=18,
    )


@pytest.mark.sample
@pytest.mark.parametrize(
    "recipe", ["tensorrt-int8", "tensorrt-fp8", "tensorrt-int4", "tensorrt-int8-weights"]
)
def test_the_twin_is_the_graph_without_pairs(recipe: str) -> None:
    """It has no quantizer, the other operators in their order, and runs."""
    proto = unmeasured(perceptron(), recipe, "fp16")
    plain = without_pairs(read(proto, EXTRA))
    left = {"QuantizeLinear", "DequantizeLinear"} & {node.op_type for node in plain.graph.node}
    assert not left
    own, ours = (
        [node.op_type for node in one.graph.node if node.op_type in ("MatMul", "Relu")]
        for one in (proto, plain)
    )
    assert own == ours == ["MatMul", "Relu", "MatMul"]
    onnx.checker.check_model(plain, full_check=True)
    Session(plain, 1).run({"x": np.zeros((1, 256), np.float32)})


def figures(kernels: int, weights_read: int, written: int = 100, attentions: int = 0) -> EngineFigures:
    """Return figures of an engine in float16."""
    counted = {"kernels": kernels, "attentions": attentions, "written": written, "weights": weights_read}
    return EngineFigures(**counted, quantizing=0, floats="float16")


@pytest.mark.parametrize(
    ("ours", "plain", "said"),
    [
        (figures(12, 900_000), figures(10, 1_000_000), "each of 2 kernels more saves 48.8 kB of weights"),
        (figures(12, 1000), figures(10, 1000), "slower at batch 1: each of 2 kernels more saves no weights"),
        (figures(12, 1_000_000), figures(10, 2_000_000), "do not speak against it: 2 kernels more, 0.95 MB"),
        (figures(11, 1000), figures(10, 2000), "do not speak against it: 1 kernels more"),
        (figures(9, 1000, 200), figures(10, 2000), "the counts disagree: 1 kernels less, 0.00 MB"),
        (figures(10, 1000), figures(10, 2000, attentions=2), "; 2 attention(s) in one kernel less"),
    ],
)
def test_the_sentence(ours: EngineFigures, plain: EngineFigures, said: str) -> None:
    """More than 1.1 times the kernels must save 64 kB of weights each; no sentence has a time."""
    compared = EngineComparison(device="SM89", quantized=ours, plain=plain)
    assert said in compared.sentence and " ms" not in "".join(compared.lines())


@needs_builder
def test_check_compares(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """Both engines are counted; the text and the JSON have the figures, and other targets refuse."""
    path = tmp_path / "m.onnx"
    onnx.save(unmeasured(perceptron(), "tensorrt-int8", "fp16"), path)
    result = onnxfq.check(path, build=HALF)
    assert [one.device for one in result.against] == ["SM86", "SM89"] and result.passed
    for one in result.against:
        assert one.quantized.weights < 0.6 * one.plain.weights and one.plain.floats == "float16"
        assert 0 <= one.plain.weights - 2 * 256 * 256 * 2 < 64
    assert main(["check", str(path), "--build", "--against", "half"]) == 0
    assert "against    without pairs, in float16, on SM89: kernels " in capfd.readouterr().out
    assert main(["check", str(path), "--build", "--against", "half", "--json"]) == 0
    assert json.loads(capfd.readouterr().out)["against"][0]["plain"]["floats"] == "float16"
    assert not onnxfq.check(path, build=BuildOptions()).against


def test_what_does_not_fit(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """Without a build, and for a target whose builder compares nothing, one line says so."""
    path = tmp_path / "m.onnx"
    onnx.save(unmeasured(perceptron(), "tensorrt-int8"), path)
    assert main(["check", str(path), "--against", "half"]) == 2
    assert "--against needs --build; add it" in capfd.readouterr().err
    with pytest.raises(RecipeError, match="compares with no graph without pairs; leave out --against"):
        onnxfq.check(path, "openvino", build=HALF)


@needs_builder
def test_quantize_builds_what_it_wrote(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """One recipe: the engine is in the output, the record and the page."""
    monkeypatch.chdir(tmp_path)
    onnx.save(conv_relu(), "m.onnx")
    np.savez("d.npz", **feed_for(conv_relu()))
    line = "quantize m.onnx --data d.npz -o q.onnx --float fp16 --build --shape x:4x3x6x6 --report r.html"
    assert main(line.split()) == 0
    printed = capfd.readouterr().out
    assert "coverage   Conv 1/1 low (built by TensorRT for RTX" in printed
    assert "against    without pairs" in printed and "run        " in printed
    assert "against    without pairs" in Path("r.html").read_text(encoding="utf-8")
    assert main([*line.split(), "--json"]) == 0
    record = ResultRecord.model_validate_json(capfd.readouterr().out)
    assert record.engine is not None and record.engine.check.against and record.engine.run
    assert main(line.replace("x:4x3x6x6", "z:1").split()) == 1
    error = capfd.readouterr().err
    assert "q.onnx is written, but not built: a shape is given for 'z'" in error
