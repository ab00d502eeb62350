"""Creation and reading of graph constants."""

from __future__ import annotations

import numpy as np
import onnx
import onnx_graphsurgeon as gs
from numpy.typing import NDArray
from onnx import helper, numpy_helper
from onnx_graphsurgeon.ir.tensor import LazyValues

from onnxfq.errors import ModelError, PlanError
from onnxfq.graph.external.scratch_file import current_scratch
from onnxfq.graph.external.sizes import PACKED_TYPES
from onnxfq.graph.external.tensor import tensor_array, tensor_content
from onnxfq.graph.model import Model

_FEW = 1 << 16
"""Largest constant, in bytes, that always stays in memory."""


def make_constant(name: str, values: NDArray[np.generic]) -> gs.Constant:
    """Make a constant of any dtype, including the dtypes of ml_dtypes.

    The constant holds a finished TensorProto, because graphsurgeon 0.6.1 writes its own 4-bit values unpacked
    and refuses 0-d scalars. If a scratch file is open, large values go there.
    """
    return gs.Constant(name, LazyValues(make_tensor(name, np.asarray(values))))


def make_tensor(name: str, values: NDArray[np.generic]) -> onnx.TensorProto:
    """Make a tensor of any dtype; if a scratch file is open, large values go there."""
    array = np.ascontiguousarray(values).reshape(values.shape)
    scratch = current_scratch.get()
    if scratch is None or array.nbytes <= _FEW:
        return numpy_helper.from_array(array, name)
    kind = helper.np_dtype_to_tensor_dtype(array.dtype)
    if kind in PACKED_TYPES:
        tensor = numpy_helper.from_array(array, name)
        return scratch.store(tensor, tensor_content(tensor))
    tensor = onnx.TensorProto(name=name, dims=array.shape, data_type=kind)
    return scratch.store(tensor, array.reshape(-1).view(np.uint8))


def constant_array(tensor: gs.Constant) -> NDArray[np.generic]:
    """Return the values of a constant without changing its export."""
    held = tensor._values
    if isinstance(held, LazyValues):
        return _array(held.tensor)
    return np.asarray(tensor.values)


def weight_array(model: Model, name: str) -> NDArray[np.generic]:
    """Return the values of a constant that the plan calls a weight. Raises PlanError for any other tensor."""
    tensor = model.constants.get(name)
    if tensor is None:
        raise PlanError(
            f"the plan calls {name!r} a weight, but it is not a constant of {model.source}; make a new plan"
        )
    return _array(tensor)


def _array(tensor: onnx.TensorProto) -> NDArray[np.generic]:
    try:
        return np.asarray(tensor_array(tensor))
    except (ValueError, OSError):
        raise ModelError(
            f"constant {tensor.name!r} is damaged: its data does not fit its shape {list(tensor.dims)}; "
            "export the model again"
        ) from None
