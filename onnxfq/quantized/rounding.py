"""`ROUNDING`: what quantizers make of constants, by op type."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import helper

from onnxfq.errors import SpecError
from onnxfq.graph.node_fields import attributes_of, numbers_type
from onnxfq.graph.normalize.stored_scales import granularity_of
from onnxfq.graph.ops import FAKE_QUANTIZE_OPS
from onnxfq.numerics.affine import fake_quantize, quantize
from onnxfq.numerics.granularity import PER_TENSOR
from onnxfq.numerics.layout import expand_params
from onnxfq.numerics.qtypes import QTYPES, QType, qtype_by_name

_QTYPES = {qtype.onnx_type: qtype for qtype in QTYPES.values() if qtype.onnx_type is not None}

Inputs = Sequence[NDArray[Any] | None]
"""Values, scale and zero point of a quantizer, None for one that is left out."""


def find_stored_type(node: onnx.NodeProto, zero_point: NDArray[Any] | None) -> np.dtype[Any]:
    """Return the type of the numbers of a QuantizeLinear: of its zero point, or from its attribute."""
    if zero_point is not None:
        return zero_point.dtype
    kind: np.dtype[Any] = helper.tensor_dtype_to_np_dtype(numbers_type(node, None))
    return kind


def find_qtype(node: onnx.NodeProto, zero_point: NDArray[Any] | None) -> QType:
    """Return the format that a quantizer rounds to. Raises SpecError for a type without a range."""
    if node.op_type in FAKE_QUANTIZE_OPS:
        return qtype_by_name(attributes_of(node).get("qtype", b"").decode())
    kind = helper.np_dtype_to_tensor_dtype(find_stored_type(node, zero_point))
    if kind not in _QTYPES:
        raise SpecError(f"its numbers have type {kind}, which has no range")
    return _QTYPES[kind]


def _parameters(node: onnx.NodeProto, inputs: Inputs) -> dict[str, Any]:
    """Return scale, zero point and granularity as `quantize` takes them."""
    scale, zero = inputs[1], inputs[2] if len(inputs) > 2 else None
    assert scale is not None, "it is no optional input"
    given = (scale, np.zeros((), np.float32) if zero is None else zero)
    scale, zero = (values if values.size > 1 else values.reshape(()) for values in given)
    granularity = granularity_of(node) if scale.size > 1 else PER_TENSOR
    return {"scale": scale, "zero_point": zero, "granularity": granularity}


def _quantize(node: onnx.NodeProto, inputs: Inputs) -> NDArray[Any]:
    values, given = np.asarray(inputs[0]), _parameters(node, inputs)
    scale, qtype = given.pop("scale"), find_qtype(node, inputs[2] if len(inputs) > 2 else None)
    # A negative scale turns the numbers around.
    turned = values * np.sign(expand_params(scale, values.shape, given["granularity"])).astype(values.dtype)
    return np.asarray(quantize(turned, np.abs(scale), qtype=qtype, **given))


def _dequantize(node: onnx.NodeProto, inputs: Inputs) -> NDArray[Any]:
    values, given = np.asarray(inputs[0]), _parameters(node, inputs)
    scale, zero, granularity = (given[key] for key in ("scale", "zero_point", "granularity"))
    kind = attributes_of(node).get("output_dtype", 0)
    dtype = np.dtype(helper.tensor_dtype_to_np_dtype(kind)) if kind else scale.dtype
    steps = values.astype(np.float32)
    steps -= expand_params(zero.astype(np.float32), values.shape, granularity if zero.ndim else PER_TENSOR)
    steps *= expand_params(scale.astype(np.float32), values.shape, granularity)
    return steps.astype(dtype, copy=False)


def _fake_quantize(node: onnx.NodeProto, inputs: Inputs) -> NDArray[Any]:
    given = _parameters(node, inputs)
    named = {key: v.decode() for key, v in attributes_of(node).items() if key in ("rounding", "arithmetic")}
    return np.asarray(fake_quantize(np.asarray(inputs[0]), qtype=find_qtype(node, None), **given, **named))


ROUNDING: dict[str, Callable[[onnx.NodeProto, Inputs], NDArray[Any]]] = {
    "DequantizeLinear": _dequantize,
    "FakeQuantize": _fake_quantize,
    "QuantizeLinear": _quantize,
}
