"""Files that other quantizers write and ONNX Runtime refuses, or that mean something else."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from builders import Arrays, build, feed_for, linear, weights
from onnx import TensorProto, numpy_helper
from onnxruntime.quantization import CalibrationMethod, QuantFormat, QuantType
from ort_quantizer import MEASURED, by_ort, loads

from onnxfq.quantizing.pipeline import quantize
from onnxfq.runtime.session import Session

FP8 = {
    "activation_type": QuantType.QFLOAT8E4M3FN,
    "weight_type": QuantType.QFLOAT8E4M3FN,
    "calibrate_method": CalibrationMethod.Distribution,
}
pytestmark = pytest.mark.filterwarnings("ignore")  # ONNX Runtime's quantizer is not under test


def product(opset: int = 17, half: bool = False) -> onnx.ModelProto:
    """A MatMul at some opset, in float16 if asked for."""
    weight = weights(4, 4).astype(np.float16 if half else np.float32)
    kind = "float16" if half else "float"
    text = f"g ({kind}[N,4] x) => ({kind}[N,4] y) {{ [a] y = MatMul (x, w) }}"
    return build(text, {"w": weight}, opset=opset, ir=4 if opset < 10 else 8)


def far(proto: onnx.ModelProto, made: onnx.ModelProto, feed: Arrays) -> float:
    """Return the largest difference between two models over the largest value."""
    want, got = (Session(one, 1).run(feed)[0] for one in (proto, made))
    return float(np.abs(got - want).max() / np.abs(want).max())


@pytest.mark.parametrize(("opset", "half"), [(9, False), (11, False), (17, True)])
def test_what_is_written_loads(opset: int, half: bool, tmp_path: Path) -> None:
    """ONNX Runtime 1.31.1 writes scales per axis at opset 11, float16 ones at 17, and refuses both files.

    https://github.com/microsoft/onnxruntime/issues/1950 is of its first releases.
    """
    proto = product(opset, half)
    feed = {"x": weights(8, 4).astype(np.float16 if half else np.float32)}
    result = quantize(proto, [feed], tmp_path / "q.onnx")
    assert result.encodings["w"].param_shape == (4,)
    session = onnxruntime.InferenceSession(tmp_path / "q.onnx", providers=["CPUExecutionProvider"])
    assert session.run(None, feed)[0].dtype == feed["x"].dtype
    if MEASURED:
        assert not loads(by_ort(proto, [feed], tmp_path, per_channel=True))


def test_float8_runs_in_onnxruntime(tmp_path: Path) -> None:
    """ONNX Runtime 1.31.1 refuses the float8 model that it writes: it fuses it into QLinearMatMul."""
    proto, feed = product(), {"x": weights(64, 4)}
    result = quantize(proto, [feed], tmp_path / "q.onnx", recipe="tensorrt-fp8")
    assert far(proto, result.qdq, feed) < 0.1
    if MEASURED:
        assert not loads(by_ort(proto, [feed], tmp_path, **FP8))


def test_four_bits_are_standard_operators(tmp_path: Path) -> None:
    """ONNX Runtime 1.31.1 writes int4 into IR version 8 and opset 17, with operators of its own domain."""
    proto = linear(256, 4)
    feed = feed_for(proto)
    made = quantize(proto, [feed], tmp_path / "q.onnx", recipe="tensorrt-int4").qdq
    assert {node.domain for node in made.graph.node} == {""}
    assert TensorProto.INT4 in {tensor.data_type for tensor in made.graph.initializer}
    assert next(o.version for o in made.opset_import if not o.domain) >= 21 and made.ir_version >= 10
    onnx.checker.check_model(made, full_check=True)
    if MEASURED:
        theirs = by_ort(proto, [feed], tmp_path, weight_type=QuantType.QInt4)
        assert theirs.ir_version == 8 and "com.microsoft" in {n.domain for n in theirs.graph.node}


def test_a_layer_that_is_used_twice(tmp_path: Path) -> None:
    """ONNX Runtime's QOperator form gives both uses the bias of one, in the scale of its input (1.31.1).

    https://github.com/microsoft/onnxruntime/issues/11530, https://github.com/microsoft/onnxruntime/pull/7982
    """
    proto = build(
        "g (float[1,4,3,3] x) => (float[1,4,3,3] y) { a = Conv (x, w, b) y = Conv (a, w, b) }",
        {"w": weights(4, 4, 1, 1), "b": weights(4)},
    )
    feed = {"x": weights(1, 4, 3, 3)}
    result = quantize(proto, [feed], tmp_path / "q.onnx")
    assert far(proto, result.qdq, feed) < 0.05
    assert [t.name for t in result.qdq.graph.initializer if t.name.startswith("w/q")] == ["w/q"]
    if MEASURED:
        assert far(proto, by_ort(proto, [feed], tmp_path, quant_format=QuantFormat.QOperator), feed) > 0.1


def test_functions_keep_their_defaults(tmp_path: Path) -> None:
    """Onnx's inliner (1.23.2) loses the default of a function's attribute: tools on it change the model."""
    proto = onnx.parser.parse_model(
        """<ir_version: 9, opset_import: ["" : 18, "mine" : 1]>
        g (float[N,4] x) => (float[N,4] y) { h = mine.dense (x, w) y = mine.dense <slope = 1.0> (h, w) }
        <domain: "mine", opset_import: ["" : 18]>
        dense <slope: float = 0.5> (a, b) => (c) {
            m = MatMul (a, b) c = LeakyRelu <alpha: float = @slope> (m) }"""
    )
    proto.graph.initializer.append(numpy_helper.from_array(weights(4, 4), "w"))
    feed = {"x": weights(64, 4)}
    result = quantize(proto, [feed], tmp_path / "q.onnx")
    assert far(proto, result.qdq, feed) < 0.05
    if onnx.__version__ == "1.23.2":
        assert far(proto, onnx.inliner.inline_local_functions(proto), feed) > 0.1
