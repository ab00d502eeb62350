"""`inspect_model`: what stands in float, Q/DQ and fake-quant models."""

from __future__ import annotations

import shlex
from pathlib import Path

import numpy as np
import onnx
import pytest
from builders import build, conv_relu, linear, one_format, planned, qdq_of, stage, weights, with_weights
from onnx import numpy_helper

from onnxfq.cli.main import main
from onnxfq.documents.recipe import Recipe
from onnxfq.graph.io.load import load
from onnxfq.passes.insert_fake_quantize import Switches
from onnxfq.stages.insert import insert_fake_quantize, insert_qdq
from onnxfq.targets.recipes import load_recipe
from onnxfq.tools.inspect import inspect_model


def test_float_model() -> None:
    """Inputs, outputs, operators, weighted operators and the size of the constants are listed."""
    found = inspect_model(conv_relu())
    assert found.inputs == ("x float32 [?, 3, 6, 6]",)
    assert found.outputs == ("y",)
    assert found.operators == {"Conv": 1, "Relu": 1}
    assert found.weighted == {"Conv": 1}
    assert found.weight_bytes == 4 * (4 * 27 + 4)
    assert found.quantized == ()
    assert found.table().endswith("quantized  no")


def test_the_next_command_runs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """What `inspect` says of the data makes data, and the commands that it prints run with it."""
    folder = tmp_path / "a b"
    folder.mkdir()
    model, data = folder / "m.onnx", tmp_path / "d.npz"
    onnx.save(conv_relu(), model)
    result = inspect_model(model)
    assert (
        result.data
        == "an .npz with x float32 [any, 3, 6, 6], axis 0 for samples; or a folder of images with --scale"
    )
    np.savez(data, x=np.random.default_rng(0).normal(size=(16, 3, 6, 6)).astype(np.float32))
    for path in (model, folder / "m.int8.onnx"):
        assert main(["inspect", str(path)]) == 0
        line = next(one for one in capsys.readouterr().out.splitlines() if one.startswith("next"))
        command = shlex.split(line.removeprefix("next"))
        assert command[0] == "onnxfq"
        assert main([str(data) if word == "DATA" else word for word in command[1:]]) == 0
        capsys.readouterr()


@pytest.mark.parametrize(
    ("inputs", "data"),
    [
        ("float[2,4] x, int64[2] n", "x float32 [2, 4], n int64 [2], one sample a file or list element"),
        ("float[N,4] x, int64[N,any] n", "x float32 [any, 4], n int64 [any, any], axis 0 for samples"),
    ],
)
def test_data_is_described(inputs: str, data: str) -> None:
    """Each input has its type and shape; open axes may be any size."""
    proto = build(f"g ({inputs}) => (float[a,b] y) {{ y = Identity (x) }}")
    assert inspect_model(proto).data == f"an .npz with {data}"


def test_qdq_model() -> None:
    """Each quantizer is listed with type, granularity, range of scales and zero points."""
    staged = stage(conv_relu())
    found = inspect_model(insert_qdq(staged.model, staged.plan, staged.encodings))
    rows = {(q.tensor, q.op_type, q.qtype, q.granularity, q.zero_points) for q in found.quantized}
    assert rows == {
        ("x", "QuantizeLinear", "int8", "per-tensor", "0"),
        ("w/q", "DequantizeLinear", "int8", "per-axis 0", "0"),
    }
    scales = staged.encodings["w"].scale
    weight = next(q for q in found.quantized if q.tensor == "w/q")
    assert (weight.scale_min, weight.scale_max) == (min(scales), max(scales))
    assert found.metadata["onnxfq.recipe"] == "tensorrt-int8"
    assert "w/q" in found.table()


@pytest.mark.parametrize("switches", ["none", "one"])
def test_fake_quant_model(switches: Switches) -> None:
    """FakeQuantize nodes tell their type by attribute; the switch is not an input to feed."""
    staged = stage(conv_relu(), "onnxruntime-int8")
    proto = insert_fake_quantize(staged.model, staged.plan, staged.encodings, switches=switches)
    found = inspect_model(proto)
    assert found.inputs == ("x float32 [?, 3, 6, 6]",)
    rows = {(q.tensor, q.op_type, q.qtype) for q in found.quantized}
    assert ("x", "FakeQuantize", "uint8") in rows
    assert (("w", "FakeQuantize", "int8") in rows) == (switches == "one")


def test_blocked_weights() -> None:
    """Blocks are listed with their size and axis, from the node's attributes."""
    recipe = with_weights("onnxruntime-int8", qtype="int4", granularity="blocked", block_size=2)
    text = "g (float[N,4] x) => (float[N,3] y) { y = MatMul (x, w) }"
    staged = stage(build(text, {"w": weights(4, 3)}, opset=21, ir=10), recipe)
    found = inspect_model(insert_qdq(staged.model, staged.plan, staged.encodings))
    assert ("w/q", "int4", "blocks of 2 on axis 0") in {
        (q.tensor, q.qtype, q.granularity) for q in found.quantized
    }


def test_a_weight_without_values() -> None:
    """It stays in float, with the reason; a quantizer that another tool put there has no scales to tell."""
    proto = build(
        "g (float[N,4] x) => (float[N,0] e, float[N,3] y) { e = MatMul (x, v) y = MatMul (x, w) }",
        {"v": weights(4, 0), "w": weights(4, 3)},
    )
    plan = planned(proto)
    assert [str(row) for row in plan.coverage()] == ["MatMul 1/2"]
    assert {s.why for s in plan.skipped if s.kind == "node"} == {"weight 'v' has no values"}
    empty = {"q": np.zeros((4, 0), np.int8), "s": np.zeros(0, np.float32)}
    foreign = build(
        "g (float[N,4] x) => (float[N,0] y) { d = DequantizeLinear <axis = 1> (q, s) y = MatMul (x, d) }",
        empty,
    )
    assert inspect_model(foreign).quantized == ()


@pytest.mark.parametrize("qtype", ["float8e4m3fn", "int2", "int16"])
def test_formats_are_told(qtype: str) -> None:
    """Inspection names the format of a Q/DQ model and of its fake-quant twin."""
    base = load_recipe("onnxruntime-int8").model_dump()
    scheme = {"qtype": qtype, "symmetric": True, "calibrator": "minmax"}
    staged = stage(conv_relu(), Recipe.model_validate(base | {"activations": scheme, "weights": scheme}))
    for insert in (insert_qdq, insert_fake_quantize):
        found = inspect_model(insert(staged.model, staged.plan, staged.encodings))
        assert {q.qtype for q in found.quantized} == {qtype}


def test_block_shapes_are_told() -> None:
    """N-D blocks of a fake-quant model are listed with all their sizes."""
    recipe = with_weights("onnxruntime-int8", granularity="block_shape", block_shape=[2, -1])
    staged = stage(
        build("g (float[N,4] x) => (float[N,3] y) { y = MatMul (x, w) }", {"w": weights(4, 3)}), recipe
    )
    proto = insert_fake_quantize(staged.model, staged.plan, staged.encodings, switches="one")
    assert "blocks of [2, -1]" in {q.granularity for q in inspect_model(proto).quantized}


def test_foreign_quantization_is_told() -> None:
    """A model quantized by operators without scales in the graph is not called float."""
    proto = build("g (uint8[N,4] a, uint8[4,3] b) => (int32[N,3] y) { y = MatMulInteger (a, b) }")
    assert inspect_model(load(proto).proto).table().endswith("quantized  by MatMulInteger")


DYNAMIC = {
    "onnxruntime-uint8-dynamic": ("DynamicQuantizeLinear", "uint8", "per-tensor", "dynamic"),
    "tensorrt-mxfp8": ("TRT_MXFP8DynamicQuantize", "float8e4m3fn", "blocks of 32 on axis 1", "0"),
    "tensorrt-nvfp4": ("TRT_FP4DynamicQuantize", "float4e2m1", "blocks of 16 on axis 1", "0"),
}


@pytest.mark.parametrize("recipe", DYNAMIC)
def test_scales_made_while_the_model_runs_are_told(recipe: str) -> None:
    """Such a quantizer has a format and blocks and no scales; its weight has those that it is stored with."""
    op_type, qtype, granularity, zero_points = DYNAMIC[recipe]
    staged = stage(linear(64, 6), recipe)
    found = {q.tensor: q for q in inspect_model(qdq_of(staged)).quantized}
    x, w = found["x"], found["w/q"]
    assert (x.op_type, x.qtype, x.granularity, x.zero_points) == (op_type, qtype, granularity, zero_points)
    assert x.scale_min is None and x.scale_max is None
    scales = staged.encodings["w"].scale
    assert (w.scale_min, w.scale_max) == (scales.min(), scales.max())
    assert " dynamic " in inspect_model(qdq_of(staged)).table()


def test_dynamic_nodes_are_told() -> None:
    """The operator of the simulation says format, blocks and symmetry."""
    staged = stage(linear(64, 6), "mxint8")
    (found,) = inspect_model(insert_fake_quantize(staged.model, staged.plan, staged.encodings)).quantized
    assert (found.qtype, found.granularity, found.scale_min) == ("int8", "blocks of 32 on axis 1", None)


@pytest.mark.parametrize("qtype", ["int5", "int8[-127,127]"])
def test_the_format_that_a_wider_type_carries(qtype: str) -> None:
    """The metadata name it, for activations behind a Clip and for weights, and do not fill the table."""
    staged = stage(conv_relu(), one_format(qtype))
    found = inspect_model(insert_qdq(staged.model, staged.plan, staged.encodings))
    assert {q.tensor: q.qtype for q in found.quantized} == {"x/clip": qtype, "w/q": qtype}
    assert "onnxfq.format" not in found.table()


def test_fractional_zero_points_are_told() -> None:
    """A fractional zero point is printed as it is."""
    recipe = one_format("uint8", "simulation").model_dump()
    recipe["activations"]["zero_point"] = "fractional"
    staged = stage(conv_relu(), Recipe.model_validate(recipe))
    proto = insert_fake_quantize(staged.model, staged.plan, staged.encodings)
    (found,) = inspect_model(proto).quantized
    assert found.zero_points == f"{staged.encodings['x'].zero_point:g}" and "." in found.zero_points


def test_zero_point_without_values() -> None:
    """A quantizer whose zero point is an empty tensor is listed with none."""
    proto = qdq_of(stage(conv_relu()))
    for tensor in proto.graph.initializer:
        if tensor.name in {node.input[2] for node in proto.graph.node if len(node.input) > 2}:
            tensor.CopyFrom(numpy_helper.from_array(np.zeros(0, np.int8), tensor.name))
    assert "none" in {one.zero_points for one in inspect_model(proto).quantized}
