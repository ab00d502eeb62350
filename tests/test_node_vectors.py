"""ONNX's own QuantizeLinear and DequantizeLinear vectors go through our insertion."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import onnx
import pytest
from builders import constants
from numpy.typing import NDArray
from onnx import helper, numpy_helper
from onnx.backend.test.case.node import collect_testcases

from onnxfq.documents.encodings import Encoding, Encodings
from onnxfq.documents.plan import Placement, Plan
from onnxfq.graph.io.load import load
from onnxfq.graph.model import Model
from onnxfq.numerics.qtypes import QTYPES
from onnxfq.numerics.spec import QuantSpec
from onnxfq.runtime.session import Session
from onnxfq.stages.insert import with_target_qdq

QUANTIZE = """quantizelinear quantizelinear_axis quantizelinear_uint16 quantizelinear_int16
    quantizelinear_uint4 quantizelinear_int4 quantizelinear_e4m3fn quantizelinear_e5m2 quantizelinear_uint2
    quantizelinear_int2 quantizelinear_blocked_asymmetric quantizelinear_blocked_symmetric""".split()
DEQUANTIZE = """dequantizelinear dequantizelinear_axis dequantizelinear_uint16 dequantizelinear_int16
    dequantizelinear_uint4 dequantizelinear_int4 dequantizelinear_e4m3fn dequantizelinear_e5m2
    dequantizelinear_uint2 dequantizelinear_int2 dequantizelinear_blocked""".split()


@dataclass(frozen=True)
class Vector:
    """One case: x and y as arrays, and the spec with its parameters in the form of an Encoding."""

    x: NDArray[Any]
    y: NDArray[Any]
    spec: QuantSpec
    scale: NDArray[np.float32]
    zero_point: NDArray[np.int32]


def as_array(value: Any) -> NDArray[Any]:
    """Return a vector's array; arrays of 4 bits may be TensorProtos."""
    return numpy_helper.to_array(value) if isinstance(value, onnx.TensorProto) else np.asarray(value)


@cache
def cases() -> dict[str, Any]:
    """Return ONNX's node cases of the two operators by name."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # onnx makes the cases of all operators, and overflows in some casts
        collected = collect_testcases(None)
    found = {c.name.removeprefix("test_"): c for c in collected}
    assert set(QUANTIZE + DEQUANTIZE) <= set(found)
    return found


def vector(name: str) -> Vector:
    """Translate the case called `name`."""
    case = cases()[name]
    node = case.model.graph.node[0]
    attributes = {a.name: helper.get_attribute_value(a) for a in node.attribute}
    inputs = [as_array(v) for v in case.data_sets[0][0]]
    y = as_array(case.data_sets[0][1][0])
    scale = inputs[1].astype(np.float32)
    integers = y if node.op_type == "QuantizeLinear" else inputs[0]
    zero = inputs[2].astype(np.int32) if len(inputs) > 2 else np.zeros(scale.shape, np.int32)
    if scale.ndim == 0:  # a zero point of shape [1] is as good as a scalar
        zero = zero.reshape(())
    (qtype,) = (q for q in QTYPES.values() if q.onnx_type is not None and q.dtype == integers.dtype)
    spec = QuantSpec(
        qtype=qtype,
        symmetric=qtype.is_float,
        axis=None if scale.ndim == 0 else attributes.get("axis", 1),
        block_size=attributes.get("block_size") or None,
    )
    return Vector(inputs[0], y, spec, scale, zero)


def placed(one: Vector, constant: bool, values: NDArray[np.float32]) -> onnx.ModelProto:
    """Quantize tensor `t`, holding `values`, by our pass with the vector's parameters."""
    shape = list(values.shape)
    graph = helper.make_graph(
        [helper.make_node("Identity" if not constant else "Neg", ["t"], ["out"], name="read")],
        "vector",
        [] if constant else [helper.make_tensor_value_info("t", 1, shape)],
        [helper.make_tensor_value_info("out", 1, shape)],
        [numpy_helper.from_array(values, "t")] if constant else [],
    )
    # As low as the type is; the pass raises it for blocks, and to 25 for 2 bits.
    opset = min(21, one.spec.qtype.min_opset)
    opsets = [helper.make_opsetid("", opset)]
    model: Model = load(helper.make_model(graph, opset_imports=opsets, ir_version=10))
    use = Placement(tensor="t", role="weight", spec=one.spec, uses=(("read", 0),), why="vector")
    plan = Plan(
        model_sha256=model.sha256, recipe="r", target="onnxruntime", placements=(use,), nodes=(), skipped=()
    )
    encoding = Encoding.of("t", one.spec, one.scale, one.zero_point)
    encodings = Encodings(model_sha256=model.sha256, encodings=(encoding,))
    return with_target_qdq(model, plan, encodings).proto


def with_cast(proto: onnx.ModelProto, tensor: str) -> onnx.ModelProto:
    """Add integers `tensor` as float output: 4-bit values cannot be fetched through Python."""
    proto.graph.node.append(helper.make_node("Cast", [tensor], ["integers"], to=onnx.TensorProto.FLOAT))
    proto.graph.output.append(helper.make_empty_tensor_value_info("integers"))
    return proto


@pytest.mark.parametrize("name", QUANTIZE)
def test_activation_vectors(name: str) -> None:
    """Onnxruntime gives the vector's integers at our Q node, and their real values at our DQ node."""
    one = vector(name)
    session = Session(with_cast(placed(one, False, one.x), "t/q"), 1, exact=True)
    real, integers = session.run({"t": one.x})
    np.testing.assert_array_equal(integers, one.y.astype(np.float32))
    assert real.dtype == np.float32


@pytest.mark.parametrize("name", QUANTIZE)
def test_weight_vectors(name: str) -> None:
    """The integers that we store for a weight of the vector's values are the vector's."""
    one = vector(name)
    proto = placed(one, True, one.x)
    stored = constants(proto)["t/q"]
    assert stored.dtype == one.y.dtype
    np.testing.assert_array_equal(stored.astype(np.float32), one.y.astype(np.float32))
    _, integers = Session(with_cast(proto, "t/q"), 1, exact=True).run({})
    np.testing.assert_array_equal(integers, one.y.astype(np.float32))


@pytest.mark.parametrize("name", [*QUANTIZE, "quantizelinear_float4e2m1"])
def test_weight_vectors_are_valid_at_the_lowest_opset(name: str) -> None:
    """The checker takes the model at the lowest opset with the type; float4 too, which onnxruntime lacks."""
    one = vector(name)
    proto = placed(one, True, one.x)
    onnx.checker.check_model(proto, full_check=True)
    lowest = max(one.spec.qtype.min_opset, 21 if one.spec.granularity.block_size else 13)
    assert proto.opset_import[0].version == lowest
    np.testing.assert_array_equal(constants(proto)["t/q"].astype(np.float32), one.y.astype(np.float32))


@pytest.mark.parametrize("name", DEQUANTIZE)
def test_dequantize_vectors(name: str) -> None:
    """Values on the vector's grid are stored as its integers, and onnxruntime gives them back exactly."""
    one = vector(name)
    y = one.y.astype(np.float32)
    proto = placed(one, True, y)
    np.testing.assert_array_equal(constants(proto)["t/q"].astype(np.float32), one.x.astype(np.float32))
    (negated,) = Session(proto, 1, exact=True).run({})
    np.testing.assert_array_equal(-negated, y)
