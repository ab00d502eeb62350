"""`inspect_model`: what stands in float, Q/DQ and fake-quant models."""

from __future__ import annotations

import pytest
from builders import build, conv_relu, stage, weights, with_weights

from onnxfq.graph.inspection import inspect_model
from onnxfq.graph.load import load
from onnxfq.pipeline import insert_fake_quantize, insert_qdq


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


def test_foreign_quantization_is_told() -> None:
    """A model quantized by operators without scales in the graph is not called float."""
    proto = build("g (float[N,4] x) => (uint8[N,4] y) { y, s, z = DynamicQuantizeLinear (x) }")
    assert inspect_model(load(proto).proto).table().endswith("quantized  by DynamicQuantizeLinear")
