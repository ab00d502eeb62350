"""Bodies of TensorRT's MXFP8 operators: ONNX Runtime gives the bits of the simulation."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest
from builders import BUILDERS, assert_forms_agree, build, constants, feed_for, linear, qdq_of, stage, weights
from keyword_numerics import dynamic_fake_quantize
from onnx import TensorProto

from onnxfq.errors import ModelError
from onnxfq.graph.io.load import load
from onnxfq.quantizing.pipeline import quantize
from onnxfq.runtime.session import Session
from onnxfq.runtime.unsupported_ops import explain_unsupported
from onnxfq.stages.options import RunOptions
from onnxfq.stages.plan import make_plan
from onnxfq.targets.recipes import load_recipe
from onnxfq.targets.tensorrt.rewrites.mxfp8_functions import DEQUANTIZE, QUANTIZE, with_mxfp8_functions


def pair(shape: tuple[int, ...], axis: int, opset: int = 19) -> onnx.ModelProto:
    """A tensor quantized to MXFP8 and back, with the exponents of its scales as an output."""
    at = axis % len(shape)
    blocks = [*shape[:at], shape[at] // 32, *shape[at + 1 :]]
    dims, scales = (",".join(map(str, one)) for one in (shape, blocks))
    proto = build(
        f"""g (float[{dims}] x) => (float[{dims}] y, uint8[{scales}] s) {{
            [q] c, s = trt.{QUANTIZE} <axis = {axis}, block_size = 32, output_dtype = 17> (x)
            [dq] y = trt.{DEQUANTIZE} <axis = {axis}, block_size = 32, output_dtype = 1> (c, s) }}""",
        opset=opset,
        ir=10,
        trt=1,
    )
    return with_mxfp8_functions(proto)


def edges(count: int) -> np.ndarray:
    """Powers of two, their neighbours, all magnitudes, zeros, NaN and infinities, mixed by rows of 32."""
    rng = np.random.default_rng(0)
    wide = rng.normal(size=(count, 32)) * 10.0 ** rng.uniform(-44, 38, size=(count, 1))
    with np.errstate(over="ignore"):
        x = wide.astype(np.float32)
    x[1::4] = np.ldexp(np.float32(1), rng.integers(-149, 128, size=x[1::4].shape))
    x[2::4] = np.nextafter(x[1::4], np.float32(0))
    x[3::4] = np.nextafter(x[1::4], np.float32(np.inf))
    x[4], x[5, 3], x[6, 4], x[7], x[8, 5] = 0, np.nan, np.inf, -0.0, -np.inf
    x[9] = np.finfo(np.float32).max
    return x


@pytest.mark.parametrize(
    ("shape", "axis"),
    [((400, 32), 1), ((400, 32), -1), ((32, 400), 0), ((5, 64, 40), 1), ((2, 2, 100, 32), 3)],
)
def test_the_functions_are_the_simulation(shape, axis):
    """Values and exponents equal `dynamic_fake_quantize` with e8m0 to the bit, on every axis."""
    flat = edges(int(np.prod(shape)) // 32)
    at = axis % len(shape)
    moved = flat.reshape(*(n for d, n in enumerate(shape) if d != at), shape[at])
    x = np.ascontiguousarray(np.moveaxis(moved, -1, at))
    proto = pair(shape, axis)
    onnx.checker.check_model(proto, full_check=True)
    y, codes = Session(proto, 1).run({"x": x})
    form = {"qtype": "float8e4m3fn", "axis": axis, "block_size": 32, "scale_type": "e8m0"}
    expected, scale, _ = dynamic_fake_quantize(x, **form)
    np.testing.assert_array_equal(np.isnan(y), np.isnan(expected))
    finite = ~np.isnan(expected)
    np.testing.assert_array_equal(y.view(np.uint32)[finite], expected.view(np.uint32)[finite])
    np.testing.assert_array_equal(np.ldexp(np.float32(1), codes.astype(np.int32) - 127), scale)


@pytest.mark.parametrize("opset", [19, 21, 23])
def test_opsets(opset):
    """The functions are written for the opset of their model."""
    proto = pair((4, 64), 1, opset)
    assert {o.version for f in proto.functions for o in f.opset_import} == {opset}
    Session(proto, 1)


def test_empty_batches():
    """No rows give no rows."""
    y, codes = Session(pair((0, 64), 1), 1).run({"x": np.zeros((0, 64), np.float32)})
    assert (y.shape, codes.shape) == ((0, 64), (0, 2))


GEMM = build(
    "g (float[N,64] x) => (float[N,8] y) { [gemm] y = Gemm <transB = 1> (x, w, b) }",
    {"w": weights(8, 64), "b": weights(8)},
)


@pytest.mark.parametrize("proto", [linear(64, 6), GEMM], ids=["matmul", "gemm"])
def test_the_written_model_runs(proto, tmp_path: Path):
    """`quantize` measures the MXFP8 model too, and it is its simulation to the bit."""
    options = RunOptions(exact=True)
    result = quantize(proto, [feed_for(proto)], tmp_path / "m.onnx", recipe="tensorrt-mxfp8", options=options)
    assert [c.candidate for c in result.evaluation.candidates] == ["simulated", "Q/DQ"]
    assert result.evaluation.notes == ()
    assert result.evaluation.candidates[0].outputs == result.evaluation.candidates[1].outputs
    assert sorted(f.name for f in onnx.load(tmp_path / "m.onnx").functions) == [DEQUANTIZE, QUANTIZE]


def test_a_written_model():
    """It gives the fake-quant model's bits, is known as quantized, and cannot run without its functions."""
    staged = stage(linear(64, 6), "tensorrt-mxfp8")
    proto = assert_forms_agree(replace(staged, feed={"x": edges(200).reshape(100, 64)}))
    with pytest.raises(ModelError, match="already quantized"):
        make_plan(load(proto), load_recipe("tensorrt-int8"))
    assert explain_unsupported(proto) == ""
    del proto.functions[:]
    assert explain_unsupported(proto).startswith("ONNX Runtime has no TRT_MXFP8")
    proto = qdq_of(stage(BUILDERS["gemm"]()))
    assert not proto.functions and with_mxfp8_functions(proto) is proto


def test_functions_for_bodies():
    """Operators that are in bodies alone have their functions too, and ONNX Runtime runs them."""
    proto = build(
        """g (float[N,64] x, bool c) => (float[N,64] y) { y = If (c) <
            then_branch = yes () => (float[N,64] t) { t = MatMul (x, w) },
            else_branch = no () => (float[N,64] e) { e = Relu (x) }> }""",
        {"w": weights(64, 64)},
    )
    staged = stage(proto, "tensorrt-mxfp8")
    written = qdq_of(staged)
    assert not {node.domain for node in written.graph.node} - {""} and explain_unsupported(written) == ""
    assert_forms_agree(replace(staged, feed={"x": edges(64).reshape(-1, 64), "c": np.asarray(True)}))


def test_weights_alone_in_int8():
    """`tensorrt-int8-weights` writes int8 constants with a DequantizeLinear and nothing else."""
    proto = qdq_of(stage(linear(64, 6), "tensorrt-int8-weights"))
    assert [node.op_type for node in proto.graph.node] == ["DequantizeLinear", "MatMul"]
    assert constants(proto)["w/q"].dtype == np.int8 and constants(proto)["w/scale"].shape == (6,)
    assert {t.data_type for t in proto.graph.initializer} == {TensorProto.INT8, TensorProto.FLOAT}
    plan = stage(BUILDERS["attention"](), "tensorrt-int8-weights").plan
    assert [str(row) for row in plan.coverage()] == ["MatMul 3/5"]
