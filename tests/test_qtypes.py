"""Number formats: NumPy, ml_dtypes and ONNX say what they are."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import onnx
import pytest

from onnxfq.errors import SpecError
from onnxfq.qtypes import QTYPES, qtype_by_name

EACH = pytest.mark.parametrize("name", QTYPES)


@EACH
def test_limits_are_the_dtypes(name):
    """The limits are those that NumPy or ml_dtypes gives the type."""
    qtype = QTYPES[name]
    limits = ml_dtypes.iinfo(getattr(ml_dtypes, name)) if qtype.bits < 8 else np.iinfo(name)
    assert (qtype.qmin, qtype.qmax, qtype.bits) == (limits.min, limits.max, limits.bits)
    assert qtype.signed == (limits.min < 0)
    assert str(qtype) == name


@EACH
def test_onnx_type_and_dtype_belong_together(name):
    """ONNX maps its type to the same NumPy dtype."""
    qtype = QTYPES[name]
    assert onnx.TensorProto.DataType.Name(qtype.onnx_type) == name.upper()
    assert onnx.helper.tensor_dtype_to_np_dtype(qtype.onnx_type) == qtype.dtype


@EACH
@pytest.mark.parametrize("operator", ["QuantizeLinear", "DequantizeLinear"])
def test_min_opset_is_the_first_with_the_type_per_axis(name, operator):
    """The operators' schemas have type and axis at min_opset; the version before lacks one of them."""

    def offered(opset):
        schema = onnx.defs.get_schema(operator, opset)
        types = {t for constraint in schema.type_constraints for t in constraint.allowed_type_strs}
        return f"tensor({name})" in types and "axis" in schema.attributes

    assert offered(QTYPES[name].min_opset)
    assert not offered(QTYPES[name].min_opset - 1)


@pytest.mark.parametrize(
    ("name", "hint"),
    [("int3", "; nearest: int8, int4, uint8"), ("INT8", "; known: int16"), ("", "; known: int16")],
)
def test_unknown_name(name, hint):
    """An unknown name is refused with the nearest ones, or all."""
    with pytest.raises(SpecError) as caught:
        qtype_by_name(name)
    assert str(caught.value).startswith(f"unknown qtype {name!r}{hint}")


@EACH
def test_by_name(name):
    """Every type is found by its name."""
    assert qtype_by_name(name).name == name
