"""Number formats: NumPy, ml_dtypes and ONNX say what they are."""

from __future__ import annotations

from types import SimpleNamespace

import ml_dtypes
import onnx
import pytest
from loops import loop_over

from onnxfq.errors import SpecError
from onnxfq.numerics.qtypes import QTYPES, qtype_by_name


@loop_over("name", QTYPES)
def test_limits_are_the_dtypes(name):
    """The limits are those that NumPy or ml_dtypes gives the type."""
    qtype = QTYPES[name]
    if qtype.is_float:
        limits = ml_dtypes.finfo(qtype.dtype)
    elif qtype.onnx_type is None:  # two's complement of a width that NumPy lacks
        half = 1 << (qtype.bits - 1)
        low, high = (-half, half - 1) if name.startswith("int") else (0, 2 * half - 1)
        limits = SimpleNamespace(min=low, max=high, bits=int(name.lstrip("uint")))
    else:
        limits = ml_dtypes.iinfo(qtype.dtype)
    assert (qtype.qmin, qtype.qmax, qtype.bits) == (limits.min, limits.max, limits.bits)
    assert qtype.signed == (limits.min < 0)
    assert str(qtype) == name == qtype_by_name(name).name


WRITTEN = loop_over("name", [q.name for q in QTYPES.values() if q.onnx_type is not None])


@WRITTEN
def test_onnx_type_and_dtype_belong_together(name):
    """ONNX maps its type to the same NumPy dtype."""
    qtype = QTYPES[name]
    assert onnx.TensorProto.DataType.Name(qtype.onnx_type) == name.upper()
    assert onnx.helper.tensor_dtype_to_np_dtype(qtype.onnx_type) == qtype.dtype


@WRITTEN
@loop_over("operator", ["QuantizeLinear", "DequantizeLinear"])
def test_min_opset_is_the_first_with_the_type_per_axis(name, operator):
    """The operators' schemas have type and axis at min_opset; the version before lacks one of them."""

    def offered(opset):
        schema = onnx.defs.get_schema(operator, opset)
        types = {t for constraint in schema.type_constraints for t in constraint.allowed_type_strs}
        return f"tensor({name})" in types and "axis" in schema.attributes

    assert offered(QTYPES[name].min_opset)
    assert not offered(QTYPES[name].min_opset - 1)


@pytest.mark.parametrize(("name", "hint"), [("int33", "; nearest: int3"), ("INT8", ""), ("", "")])
def test_unknown_name(name, hint):
    """An unknown name is refused with the nearest ones."""
    with pytest.raises(SpecError) as caught:
        qtype_by_name(name)
    assert str(caught.value).startswith(f"unknown qtype {name!r}{hint}")


@pytest.mark.parametrize(
    ("name", "qmin", "qmax", "base"),
    [("int8[-127,127]", -127, 127, "int8"), ("uint4[0,9]", 0, 9, "uint4"), ("int5[-3,0]", -3, 0, "int5")],
)
def test_limits_of_ones_own(name, qmin, qmax, base):
    """Limits in brackets narrow an integer type; everything else stays."""
    qtype = qtype_by_name(name)
    assert (qtype.name, qtype.qmin, qtype.qmax, qtype.base) == (name, qmin, qmax, base)
    assert (qtype.dtype, qtype.full_range) == (QTYPES[base].dtype, False)


def test_limits_that_are_none():
    """Limits equal to the type's are the type; limits outside, or without 0, are refused."""
    assert qtype_by_name("int8[-128,127]") is QTYPES["int8"]
    for name in ("int8[-129,127]", "int8[1,5]", "uint4[-1,3]", "int8[0,0]"):
        with pytest.raises(SpecError, match=r"must hold 0 and lie in \["):
            qtype_by_name(name)
