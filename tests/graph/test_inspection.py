"""`inspect_model`: what stands in float, Q/DQ and fake-quant models."""

from __future__ import annotations

import pytest
from builders import build, conv_relu, stage, weights, with_weights

from onnxfq.graph.inspection import inspect_model
from onnxfq.graph.load import load
from onnxfq.pipeline import insert_fake_quantize, insert_qdq
from onnxfq.recipe import Recipe, load_recipe


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


@pytest.mark.parametrize("switchable", [False, True], ids=["fixed", "switchable"])
def test_fake_quant_model(switchable: bool) -> None:
    """FakeQuantize nodes tell their type by attribute; the switch is no input to feed."""
    staged = stage(conv_relu(), "onnxruntime-int8")
    proto = insert_fake_quantize(staged.model, staged.plan, staged.encodings, switchable=switchable)
    found = inspect_model(proto)
    assert found.inputs == ("x float32 [?, 3, 6, 6]",)
    rows = {(q.tensor, q.op_type, q.qtype) for q in found.quantized}
    assert ("x", "FakeQuantize", "uint8") in rows
    assert (("w", "FakeQuantize", "int8") in rows) == switchable


def test_blocked_weights() -> None:
    """Blocks are told with their size and axis, from the node's attributes."""
    recipe = with_weights("onnxruntime-int8", qtype="int4", granularity="blocked", block_size=2)
    text = "g (float[N,4] x) => (float[N,3] y) { y = MatMul (x, w) }"
    staged = stage(build(text, {"w": weights(4, 3)}, opset=21, ir=10), recipe)
    found = inspect_model(insert_qdq(staged.model, staged.plan, staged.encodings))
    assert ("w/q", "int4", "blocks of 2 on axis 0") in {
        (q.tensor, q.qtype, q.granularity) for q in found.quantized
    }


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
    """N-D blocks of a fake-quant model are told with all their sizes."""
    recipe = with_weights("onnxruntime-int8", granularity="block_shape", block_shape=[2, -1])
    staged = stage(
        build("g (float[N,4] x) => (float[N,3] y) { y = MatMul (x, w) }", {"w": weights(4, 3)}), recipe
    )
    proto = insert_fake_quantize(staged.model, staged.plan, staged.encodings, switchable=True)
    assert "blocks of [2, -1]" in {q.granularity for q in inspect_model(proto).quantized}


def test_foreign_quantization_is_told() -> None:
    """A model quantized by operators without scales in the graph is not called float."""
    proto = build("g (float[N,4] x) => (uint8[N,4] y) { y, s, z = DynamicQuantizeLinear (x) }")
    assert inspect_model(load(proto).proto).table().endswith("quantized  by DynamicQuantizeLinear")
