"""What other quantizers get wrong, measured with ONNX Runtime 1.31.1 and ModelOpt 0.47.0, as tests."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from builders import build, weights
from numpy.typing import NDArray
from onnx import TensorProto, numpy_helper

from onnxfq.errors import DataError
from onnxfq.pipeline import QuantizeResult, RunOptions, quantize
from onnxfq.recipe import DEFAULT_RECIPE, load_recipe

METHODS = ["minmax", "percentile", "entropy", "mse"]


def product(opset: int = 17) -> onnx.ModelProto:
    """A MatMul whose batch is open."""
    return build(
        "g (float[N,4] x) => (float[N,4] y) { [a] y = MatMul (x, w) }", {"w": weights(4, 4)}, opset=opset
    )


def outlier() -> NDArray[np.float32]:
    """64 samples of normal values, one of which is 40."""
    values = np.random.default_rng(0).standard_normal((64, 1000)).astype(np.float32)
    values[40, 500] = 40
    return values


def scale(result: QuantizeResult) -> float:
    """The scale of the input."""
    return float(result.encodings["x"].scale_array)


@pytest.mark.parametrize("method", METHODS)
def test_neither_batch_nor_order_moves_a_scale(method: str) -> None:
    """Both tools give entropy ranges from 3.96 to 40 for the same data; one batch is no search at all."""
    proto = build("g (float[N,1000] x) => (float[N,4] y) { [a] y = MatMul (x, w) }", {"w": weights(1000, 4)})
    samples = outlier()
    found = {
        scale(quantize(proto, {"x": given}, calibrator=method, options=RunOptions(batch=batch)))
        for given, batch in [(samples, 1), (samples, 8), (samples, 64), (samples[::-1].copy(), 1)]
    }
    assert len(found) == 1
    assert (found.pop() * 127 > 39) == (method == "minmax")


@pytest.mark.parametrize("method", METHODS)
def test_samples_of_different_shapes(method: str) -> None:
    """ONNX Runtime's histograms raise when two samples differ in shape; all methods take them here."""
    rows = weights(9, 4)
    options = RunOptions(batch=0)
    apart = quantize(product(), [{"x": rows[:2]}, {"x": rows[2:]}], calibrator=method, options=options)
    assert scale(apart) == scale(quantize(product(), [{"x": rows}], calibrator=method, options=options))


@pytest.mark.parametrize(("opset", "half"), [(9, False), (11, False), (17, True)])
def test_what_is_written_loads(opset: int, half: bool, tmp_path: Path) -> None:
    """ONNX Runtime writes scales per axis at opset 11, float16 ones at opset 17, and refuses both files."""
    proto = product(opset)
    feed = weights(8, 4)
    if half:
        feed = feed.astype(np.float16)
        for value in (*proto.graph.input, *proto.graph.output):
            value.type.tensor_type.elem_type = TensorProto.FLOAT16
        weight = numpy_helper.to_array(proto.graph.initializer[0]).astype(np.float16)
        proto.graph.initializer[0].CopyFrom(numpy_helper.from_array(weight, "w"))
    result = quantize(proto, [{"x": feed}], tmp_path / "q.onnx")
    assert result.encodings["w"].param_shape == (4,)
    session = onnxruntime.InferenceSession(tmp_path / "q.onnx", providers=["CPUExecutionProvider"])
    assert session.run(None, {"x": feed})[0].dtype == feed.dtype


@pytest.mark.parametrize("value", [np.inf, -np.inf, np.nan])
def test_what_is_not_finite_is_named(value: float, tmp_path: Path) -> None:
    """ONNX Runtime writes infinite scales and is silent; ModelOpt names neither tensor nor sample."""
    samples = weights(6, 4)
    samples[4, 1] = value
    with pytest.raises(DataError, match=r"x.*(sample|feed) 4"):
        quantize(product(), {"x": samples}, tmp_path / "q.onnx", options=RunOptions(batch=1))
    assert not list(tmp_path.iterdir())


def test_a_local_function_is_quantized() -> None:
    """Both tools leave the MatMul inside in float, and say nothing."""
    proto = onnx.parser.parse_model(
        """<ir_version: 8, opset_import: ["" : 17, "mine" : 1]>
        g (float[N,4] x) => (float[N,4] y) { y = mine.dense (x, w) }
        <domain: "mine", opset_import: ["" : 17]>
        dense (a, b) => (c) { c = MatMul (a, b) }"""
    )
    proto.graph.initializer.append(numpy_helper.from_array(weights(4, 4), "w"))
    result = quantize(proto, [{"x": weights(8, 4)}])
    assert [str(row) for row in result.plan.coverage()] == ["MatMul 1/1"]
    assert [node.op_type for node in result.qdq.graph.node].count("DequantizeLinear") == 2


def test_a_name_that_nothing_has(tmp_path: Path) -> None:
    """Both tools take a misspelled exclusion, and quantize what was to stay in float."""
    recipe = tmp_path / "r.yaml"
    recipe.write_text(f"base: {DEFAULT_RECIPE}\nname: r\noverrides: [{{nodes: [aa], keep_float: true}}]\n")
    with pytest.raises(Exception, match=r"'aa', which the model lacks; nearest: a"):
        quantize(product(), [{"x": weights(8, 4)}], recipe=load_recipe(recipe))


def test_no_data_is_no_random_data() -> None:
    """ModelOpt calibrates on random numbers when it gets no data."""
    with pytest.raises(DataError, match="needs data: 1 activations"):
        quantize(product(), None)
