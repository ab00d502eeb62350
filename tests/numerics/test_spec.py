"""`QuantSpec`: what goes together, and what it is written as."""

from __future__ import annotations

import pytest
from loops import loop_over

from onnxfq.errors import SpecError
from onnxfq.numerics.granularity import PER_TENSOR, Granularity
from onnxfq.numerics.qtypes import QTYPES, qtype_by_name
from onnxfq.numerics.spec import QuantSpec


@pytest.mark.parametrize(
    ("fields", "granularity", "text"),
    [
        ({}, PER_TENSOR, "int8 symmetric per-tensor"),
        ({"axis": 0}, Granularity(0), "int8 symmetric per-axis 0"),
        ({"axis": -1, "block_size": 32}, Granularity(-1, 32), "int8 symmetric blocks of 32 on axis -1"),
        ({"symmetric": False}, PER_TENSOR, "int8 asymmetric per-tensor"),
        ({"block_shape": (1, -1)}, Granularity(block_shape=(1, -1)), "int8 symmetric blocks of [1, -1]"),
        ({"power_of_two": True}, PER_TENSOR, "int8 symmetric per-tensor with power-of-two scales"),
        (
            {"axis": 1, "block_size": 32, "scale_type": "e8m0", "dynamic": True},
            Granularity(1, 32),
            "int8 symmetric blocks of 32 on axis 1 with e8m0 scales, dynamic",
        ),
        (
            {"symmetric": False, "zero_point": "fractional"},
            PER_TENSOR,
            "int8 asymmetric per-tensor with fractional zero points",
        ),
    ],
    ids=str,
)
def test_granularity_follows_from_axis_and_block(fields, granularity, text):
    """The axis and block size are ONNX's attributes; together they say the granularity."""
    spec = QuantSpec(qtype="int8", **fields)
    assert spec.granularity == granularity
    assert str(spec) == text


@loop_over("name", QTYPES)
def test_json_round_trip(name):
    """A qtype is written by its name and read back as the value."""
    spec = QuantSpec(qtype=QTYPES[name], symmetric=QTYPES[name].is_float, axis=1, block_size=2)
    assert spec.model_dump(mode="json")["qtype"] == name
    assert QuantSpec.model_validate_json(spec.model_dump_json()) == spec


@pytest.mark.parametrize(
    ("granularity", "fields"),
    [
        (PER_TENSOR, '"axis":null,"block_size":null,"block_shape":null'),
        (Granularity(-1, 32), '"axis":-1,"block_size":32,"block_shape":null'),
        (Granularity(block_shape=(1, -1)), '"axis":null,"block_size":null,"block_shape":[1,-1]'),
    ],
    ids=str,
)
def test_files_have_the_granularity_as_fields_of_the_spec(granularity, fields):
    """Files of the versions before are read, and new ones look the same."""
    spec = QuantSpec(qtype="int8", granularity=granularity)
    text = spec.model_dump_json()
    assert f',{fields},"dynamic":false,"equalized":false}}' in text
    assert QuantSpec.model_validate_json(text) == spec


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"qtype": "int8", "axis": "x"}, "granularity.axis"),
        ({"qtype": "int8", "block_size": 4}, "block_size without axis; give the axis the blocks run along"),
        ({"qtype": "int8", "axis": 0, "block_size": 0}, "block_size must be at least 1, got 0"),
        ({"qtype": "uint4"}, "symmetric needs a signed qtype, got uint4; use int4 or symmetric: false"),
        ({"qtype": "int17", "axis": 0}, "unknown qtype 'int17'; nearest: int"),
        ({"qtype": "float8e5m2", "symmetric": False}, "float8e5m2 has no zero point; use symmetric: true"),
        ({"qtype": "int8[0,9]"}, "symmetric needs numbers on both sides of 0, got int8[0,9]"),
        ({"qtype": "int8", "axis": 0, "block_shape": (2, 2)}, "block_shape covers every axis"),
        ({"qtype": "int8", "block_shape": (2, 0)}, "a size of at least 1, or -1 for a whole axis"),
        ({"qtype": "int8", "block_shape": ()}, "for each dimension, got []"),
        ({"qtype": 8}, "unknown qtype '8'"),
        ({"qtype": "int8", "bits": 8}, "no such field"),
        ({"qtype": "int8", "scale_type": "e5m2"}, "Input should be 'float32', 'e8m0' or 'e4m3'"),
        (
            {"qtype": "int8", "scale_type": "e8m0", "symmetric": False},
            "scale_type e8m0 needs symmetric: true, or use scale_type float32",
        ),
        (
            {"qtype": "int8", "scale_type": "e4m3"},
            "scale_type e4m3 needs a float qtype, got int8; use float4e2m1 (NVFP4), or scale_type float32",
        ),
        (
            {"qtype": "int8", "scale_type": "e8m0", "power_of_two": True},
            "power_of_two is for scale_type float32, got e8m0; remove it",
        ),
        (
            {"qtype": "int8", "zero_point": "fractional"},
            "zero_point fractional needs symmetric: false; a symmetric zero point is 0",
        ),
        (
            {"qtype": "int8", "dynamic": True, "power_of_two": True},
            "dynamic scales are not rounded; remove power_of_two, or use scale_type e8m0",
        ),
        (
            {"qtype": "int8", "dynamic": True, "symmetric": False, "zero_point": "fractional"},
            "dynamic zero points are integers; use zero_point: integer, or dynamic: false",
        ),
    ],
    ids=lambda value: str(value)[:40],
)
def test_what_does_not_go_together(fields, words):
    """Each contradiction is refused with its remedy."""
    with pytest.raises(SpecError, match=".*") as caught:
        QuantSpec(**fields)
    assert words in str(caught.value)


@pytest.mark.parametrize(
    ("qtype", "scale_type", "grid"),
    [
        ("int8", "e8m0", "int8[-127,127]"),
        ("int8", "float32", "int8"),
        ("int4[-7,7]", "e8m0", "int4[-7,7]"),
        ("float4e2m1", "e8m0", "float4e2m1"),
    ],
)
def test_grid(qtype, scale_type, grid):
    """MXINT8 leaves -128 out, as OCP MX recommends; other formats have all their numbers."""
    assert QuantSpec(qtype=qtype, scale_type=scale_type).grid == qtype_by_name(grid)
