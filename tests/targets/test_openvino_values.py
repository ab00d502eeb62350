"""Forms that OpenVINO computes otherwise, which its recipe avoids; a failed `still` lets a rule go."""

from __future__ import annotations

import importlib
from copy import deepcopy
from pathlib import Path

import numpy as np
import onnx
import pytest
from builders import build, build_used, feed_for, plain_quantize, weights
from diagnosed_networks import network
from onnxruntime.quantization import QuantFormat, QuantType
from ort_quantizer import by_ort

import onnxfq
from onnxfq.runtime.session import Session
from onnxfq.targets.openvino.other_values import LEAST

pytest.importorskip("openvino", reason="OpenVINO is not installed")

from onnxfq.targets.openvino.runtime import open_model  # noqa: E402  only once it is known to be there

SIGNED = onnxfq.load_recipe("openvino-int8").override(activations={"qtype": "int8", "symmetric": True})
BEHIND = {
    "alone": "d = Concat <axis = 1> (x, z)",
    "Relu": "c = Concat <axis = 1> (x, z) d = Relu (c)",
    "Add": "c = Concat <axis = 1> (x, z) d = Add (c, half)",
    "Reshape": "c = Concat <axis = 1> (x, z) d = Reshape (c, shape)",
    "Sigmoid": "c = Concat <axis = 1> (x, z) d = Sigmoid (c)",
}
READERS = {
    "two readers": "r = Relu (c) y = Add (c, r)",
    "an output": "y = Relu (c)",
    "pool": "r = MaxPool <kernel_shape = [3, 3], pads = [1, 1, 1, 1]> (c) y = Add (c, r)",
}
PRODUCTS = {
    "Conv": ("c = Conv (x, w)", (8, 8, 1, 1)),
    "depthwise": ("c = Conv <group = 8, pads = [1, 1, 1, 1]> (x, w)", (8, 1, 3, 3)),
    "ConvTranspose": ("c = ConvTranspose <pads = [1, 1, 1, 1]> (x, w)", (8, 8, 3, 3)),
    "zero bias": ("c = Conv (x, w, b)", (8, 8, 1, 1)),
}


def compare(model: onnx.ModelProto, feed: dict[str, np.ndarray]) -> float:
    """Return the SQNR in dB of OpenVINO against ONNX Runtime without optimizations."""
    got, wanted = open_model(model, 1)(feed)["y"], Session(model, 1, exact=True).run(feed)[0]
    return float(10 * np.log10(np.square(wanted).sum() / max(np.square(wanted - got).sum(), 1e-30)))


@pytest.mark.parametrize("behind", BEHIND)
def test_no_signed_grid_behind_a_concat(behind: str) -> None:
    """Also where a recipe wants int8; a signed grid still gives other numbers, unless the pair stays."""
    text = f"g (float[1,4,6,6] x, float[1,4,6,6] z) => (y) {{ {BEHIND[behind]} y = Conv (d, w, b) }}"
    constants = {"w": weights(8, 8, 1, 1), "b": weights(8), "half": np.full((1, 8, 1, 1), 0.5, np.float32)}
    proto = build(text, constants | {"shape": np.asarray([1, 8, 36, 1])})
    feeds = [feed_for(proto, seed) for seed in range(4)]
    result = plain_quantize(proto, feeds, recipe=SIGNED)
    folded = behind not in ("Sigmoid", "Reshape")
    (placement,) = (p for p in result.plan.activations if p.tensor == "d")
    assert placement.spec.qtype.name == ("uint8" if folded else "int8")
    assert compare(result.qdq, feeds[0]) > 60
    signed = deepcopy(result.qdq)
    (q,) = (node for node in signed.graph.node if node.op_type == "QuantizeLinear")
    for tensor in signed.graph.initializer:
        if tensor.name == q.input[2]:
            tensor.CopyFrom(onnx.numpy_helper.from_array(np.asarray(0, np.int8), tensor.name))
    del signed.graph.value_info[:]
    assert (compare(signed, feeds[0]) < 40) == folded, "still"
    rules = [{found.rule for found in onnxfq.check(m, "openvino").findings} for m in (result.qdq, signed)]
    assert ["signed-concat" in found for found in rules] == [False, folded]


@pytest.mark.grid
@pytest.mark.parametrize("readers", READERS)
@pytest.mark.parametrize("product", PRODUCTS)
def test_convolutions_keep_their_scale(product: str, readers: str) -> None:
    """With open shapes and several readers, a bias changes no bit; without, the numbers are still others."""
    text, shape = PRODUCTS[product]
    outputs = "float[N,8,6,6] y, float[N,8,6,6] c" if readers == "an output" else "float[N,8,6,6] y"
    proto = build_used(
        f"g (float[N,8,6,6] x) => ({outputs}) {{ {text} {READERS[readers]} }}",
        {"w": weights(*shape), "b": np.zeros(8, np.float32)},
    )
    feeds = [feed_for(proto, seed) for seed in range(4)]
    made = plain_quantize(proto, feeds, recipe="openvino-int8").qdq
    assert compare(made, feeds[0]) > 60
    bare = deepcopy(made)
    (node,) = (node for node in bare.graph.node if node.op_type in ("Conv", "ConvTranspose"))
    bias = next(onnx.numpy_helper.to_array(t) for t in bare.graph.initializer if t.name == node.input[2])
    assert set(bias.tolist()) == {LEAST}
    node.input[:] = node.input[:2]
    runs = [Session(one, 1, exact=True).run(feeds[0])[0].tobytes() for one in (made, bare)]
    assert runs[0] == runs[1]
    assert compare(bare, feeds[0]) < 40, "still"
    rules = [{found.rule for found in onnxfq.check(m, "openvino").findings} for m in (made, bare)]
    assert ["lost-scale" in found for found in rules] == [False, True]


BARE = {
    "Conv": ("c = Conv (a, w)", (8, 8, 1, 1)),
    "ConvTranspose": ("c = ConvTranspose (a, w)", (8, 8, 1, 1)),
    "Gemm": ("c = Gemm <transB = 1> (a, w)", (16, 16)),
    "MatMul": ("c = MatMul (a, w)", (16, 16)),
}
RECTIFIED = {
    "Neg": "r = Relu (c) y = Neg (r)",
    "Mul": "r = LeakyRelu (c) y = Mul (r, f)",
    "Div": "d = Mul (c, two) r = PRelu (d, two) y = Div (r, f)",
}


@pytest.mark.grid
@pytest.mark.parametrize("behind", RECTIFIED)
@pytest.mark.parametrize("product", BARE)
def test_products_keep_their_sign(product: str, behind: str) -> None:
    """In front of a Relu and a factor below 0 they have a bias; without it the sign is still lost."""
    text, shape = BARE[product]
    sizes = "16,16" if len(shape) == 2 else "2,8,6,6"
    proto = build_used(
        f"g (float[{sizes}] x) => (float[] y) {{ a = Sigmoid (x) {text} {RECTIFIED[behind]} }}",
        {"w": weights(*shape), "f": np.float32(-0.5), "two": np.float32([2])},
    )
    feeds = [feed_for(proto, seed) for seed in range(4)]
    result = plain_quantize(proto, feeds, recipe="openvino-int8")
    assert result.proof is not None and not result.proof.kept_float and compare(result.qdq, feeds[0]) > 60
    bare = deepcopy(result.qdq)
    (node,) = (node for node in bare.graph.node if node.op_type in BARE)
    node.input[:] = node.input[:2]
    assert compare(bare, feeds[0]) < 20, "still"
    rules = [{found.rule for found in onnxfq.check(m, "openvino").findings} for m in (result.qdq, bare)]
    assert ["lost-scale" in found for found in rules] == [False, True]


@pytest.mark.parametrize("rows", [6, 16])
@pytest.mark.parametrize("behind", ["", "r = Relu (m) p = Mul (r, two)"])
def test_a_left_constant_has_one_scale_in_front_of_a_pair(rows: int, behind: str) -> None:
    """OpenVINO has the right numbers; scales of rows are still refused, or taken for scales of columns."""
    text = f"a = Sigmoid (x) {'m' if behind else 'p'} = MatMul (w, a) {behind} y = MatMul (p, v)"
    values = {"w": weights(rows, 8), "v": weights(16, 4), "two": np.float32([2])}
    proto = build_used(f"g (float[2,8,16] x) => (float[] y) {{ {text} }}", values)
    feeds = [feed_for(proto, seed) for seed in range(4)]
    result = plain_quantize(proto, feeds, recipe="openvino-int8")
    assert result.proof is not None and not result.proof.kept_float and compare(result.qdq, feeds[0]) > 60
    assert onnxfq.check(result.qdq, "openvino").passed
    left = deepcopy(result.qdq)
    (read,) = (node for node in left.graph.node if "w/q" in node.input)
    read.attribute.append(onnx.helper.make_attribute("axis", 0))
    for tensor in left.graph.initializer:
        if tensor.name in read.input[1:]:
            one = onnx.numpy_helper.to_array(tensor)
            numbers = (one * np.arange(1, rows + 1)).astype(one.dtype)
            tensor.CopyFrom(onnx.numpy_helper.from_array(numbers, tensor.name))
    del left.graph.value_info[:]
    assert "row-scale" in {found.rule for found in onnxfq.check(left, "openvino").findings}
    if rows == 16:
        assert compare(left, feeds[0]) < 20, "still"
    else:
        with pytest.raises(onnxfq.OnnxfqError, match="cannot compile"):
            open_model(left, 1)


def test_half_types_get_a_bias_of_their_type() -> None:
    """The least number of float16 is not zero, and the file is as in ONNX Runtime."""
    text = "g (float16[N,8,6,6] x) => (float16[N,8,6,6] y) { c = Conv (x, w) r = Relu (c) y = Add (c, r) }"
    proto = build(text, {"w": weights(8, 8, 1, 1).astype(np.float16)}, opset=21, ir=10)
    feeds = [{"x": feed_for(proto, seed)["x"].astype(np.float16)} for seed in range(4)]
    result = plain_quantize(proto, feeds, recipe="openvino-int8")
    (bias,) = (t for t in result.qdq.graph.initializer if t.name.endswith("least_bias"))
    assert onnx.numpy_helper.to_array(bias).dtype == np.float16 and onnx.numpy_helper.to_array(bias).all()
    assert result.proof is not None and result.proof.runtime and not result.proof.difference


@pytest.mark.parametrize("per_channel", [False, True])
@pytest.mark.parametrize("name", ["conv", "detector"])
def test_integer_operators(name: str, per_channel: bool, tmp_path: Path) -> None:
    """A finding stands where the frontend of OpenVINO ends in an error, for one scale and for several."""
    net = network(name)
    kinds = {"activation_type": QuantType.QUInt8, "weight_type": QuantType.QUInt8}
    options = {"quant_format": QuantFormat.QOperator, "per_channel": per_channel}
    made = by_ort(net.float_model, net.feeds(8, seed=1), tmp_path, **kinds, **options)
    found = [one for one in onnxfq.check(made, "openvino").findings if one.severity == "refused"]
    try:
        importlib.import_module("openvino").Core().compile_model(str(tmp_path / "static.onnx"), "CPU")
    except RuntimeError:
        assert found
    else:
        assert not found
