"""Broken attributes, shapes and parameters are refused in one line that names the rule and the remedy."""

from __future__ import annotations

import numpy as np
import pytest
from keyword_numerics import dynamic_fake_quantize
from loops import loop_over
from onnx import TensorProto, helper, numpy_helper

from onnxfq.errors import RuntimeLibraryError, SpecError
from onnxfq.runtime import custom_ops as library
from onnxfq.runtime import kernels

X = np.zeros((2, 3, 4), np.float32)

# attributes, scale, zero_point, words that the message must hold
BROKEN = {
    "qtype": ({"qtype": "int17"}, 1, None, ["unknown qtype 'int17'", "int16"]),
    "no-qtype": ({}, 1, None, ["unknown qtype ''"]),
    "rounding": ({"qtype": "int8", "rounding": "down"}, 1, None, ["unknown rounding 'down'", "half_even"]),
    "arithmetic": ({"qtype": "int8", "arithmetic": "fast"}, 1, None, ["unknown arithmetic 'fast'", "divide"]),
    "block-size": ({"qtype": "int8", "block_size": -1}, 1, None, ["block_size", "-1"]),
    "axis": ({"qtype": "int8", "axis": 3}, [1, 1, 1], None, ["axis 3", "rank 3", "[-3, 2]"]),
    "length": ({"qtype": "int8", "axis": 1}, [1, 1], None, ["[2]", "axis 1", "[2, 3, 4]", "give 3 scales"]),
    "rank": ({"qtype": "int8"}, [[1, 1]], None, ["[1, 2]", "[2, 3, 4]"]),
    "blocks": ({"qtype": "int8"}, np.ones((2, 3, 3)), None, ["[2, 3, 3]", "dimension 2", "blocks of 2"]),
    "zero-points": ({"qtype": "int8"}, [1, 1, 1], [0, 0], ["2 elements", "3"]),
    "scale-zero": ({"qtype": "int8"}, [1, 0, 1], None, ["finite and positive", "index 1"]),
    "scale-nan": ({"qtype": "int8"}, np.nan, None, ["finite and positive", "nan"]),
    "scale-inf": ({"qtype": "int8"}, np.inf, None, ["finite and positive", "inf"]),
    "scale-tiny": (
        {"qtype": "int8", "arithmetic": "reciprocal"},
        np.float32(1e-40),
        None,
        ["reciprocal", "divide"],
    ),
    "zero-point-outside": ({"qtype": "uint4"}, 1, 16, ["zero_point", "[0, 15]", "16"]),
    "zero-point-nan": ({"qtype": "int8"}, 1, np.nan, ["zero_point", "[-128, 127]", "nan"]),
    "zero-point-of-float": ({"qtype": "float8e5m2"}, 1, 1, ["zero_point", "0 for a float type"]),
    "limits": ({"qtype": "int8[-129,127]"}, 1, None, ["unknown qtype 'int8[-129,127]'", "limits"]),
    "limits-open": ({"qtype": "int8[-127,127"}, 1, None, ["unknown qtype"]),
    "limits-without-0": ({"qtype": "int8[1,127]"}, 1, None, ["unknown qtype"]),
    "limits-twice": ({"qtype": "int8[-1,1][-1,1]"}, 1, None, ["unknown qtype"]),
    "huge-limits": ({"qtype": "int8[-99999999999,1]"}, 1, None, ["unknown qtype"]),
    "leading-zero": ({"qtype": "int08"}, 1, None, ["unknown qtype"]),
    "block-shape-rank": (
        {"qtype": "int8", "block_shape": [1, 2]},
        1,
        None,
        ["block_shape [1, 2]", "[2, 3, 4]"],
    ),
    "block-shape-0": ({"qtype": "int8", "block_shape": [1, 0, 2]}, 1, None, ["block_shape [1, 0, 2]", "-1"]),
    "block-shape-scale": (
        {"qtype": "int8", "block_shape": [1, 3, -1]},
        np.ones((2, 1, 4)),
        None,
        ["[2, 1, 4]", "dimension 2", "needs 1"],
    ),
    "block-shape-scalar": ({"qtype": "int8", "block_shape": [2, 3, 4]}, 1, None, ["as many dimensions"]),
    "both-blocks": ({"qtype": "int8", "block_shape": [1, 1, 1], "block_size": 2}, 1, None, ["give one"]),
}


@loop_over("case", BROKEN)
def test_operator_refuses(ops, case):
    """The session reports the operator's name and our message instead of wrong numbers."""
    attributes, scale, zero_point, words = BROKEN[case]
    with pytest.raises(Exception, match="FakeQuantize: ") as caught:
        ops.fake_quantize(X, scale, zero_point, **attributes)
    assert all(word in str(caught.value) for word in words)


@loop_over("case", sorted(BROKEN.keys() - {"no-qtype", "block-size", "zero-points"}))
def test_kernel_refuses(case):
    """The NumPy function refuses the same with SpecError."""
    attributes, scale, zero_point, _ = BROKEN[case]
    with pytest.raises(SpecError):
        kernels.fake_quantize(X, scale, 0 if zero_point is None else zero_point, **attributes)


def test_observe_refuses_other_flags(ops):
    """The attribute is a flag, not a number of bins."""
    with pytest.raises(Exception, match="Observe: histogram must be 0 or 1, got 2048"):
        ops.observe(X, histogram=2048)


@pytest.mark.parametrize(
    "options",
    [
        {"scale": np.ones(3)},
        {"scale": np.ones((2, 3, 2)), "block_size": 2},
        {"scale": np.ones(3), "zero_point": np.zeros(2), "axis": 1},
        {"scale": 1, "out": np.zeros((2, 3), np.float32)},
        {"scale": 1, "out": np.zeros((2, 3, 4))},
    ],
    ids=["no-axis", "no-axis-blocked", "zero-points", "out-shape", "out-dtype"],
)
def test_kernel_refuses_its_own(options):
    """Mistakes that only the NumPy function allows are SpecErrors too, before any memory is touched."""
    with pytest.raises(SpecError):
        kernels.fake_quantize(X, **options, qtype="int8")


DYNAMIC = [
    ({"qtype": "int9000"}, ["unknown qtype"]),
    ({"qtype": "uint8"}, ["'uint8' has no two signs", "symmetric"]),
    ({"qtype": "float8e4m3fn", "symmetric": 0}, ["symmetric = 0", "integer qtype"]),
    ({"qtype": "int8", "symmetric": 0, "scale_type": "e8m0"}, ["symmetric = 0", "'e8m0'"]),
    ({"qtype": "int8", "symmetric": 2}, ["symmetric must be 0 or 1, got 2"]),
    ({"qtype": "int8", "scale_type": "e5m2"}, ["unknown scale_type 'e5m2'", "e8m0"]),
    ({"qtype": "int8", "rounding": "up"}, ["unknown rounding 'up'"]),
    ({"qtype": "int8", "axis": 3}, ["axis 3", "rank 3"]),
    ({"qtype": "int8", "block_size": 2}, ["block_size without axis"]),
    ({"qtype": "int8", "axis": 0, "block_size": -2}, ["block_size must be at least 1"]),
    ({"qtype": "int8", "block_shape": [1]}, ["block_shape [1]", "each dimension"]),
    ({"qtype": "int8", "block_shape": [1, 1, -2]}, ["block_shape [1, 1, -2]"]),
    ({"qtype": "int8", "global_scale": 1.0}, ["global_scale is for scale_type 'e4m3'"]),
    ({"qtype": "int8", "scale_type": "e4m3", "global_scale": -1.0}, ["global_scale must be finite"]),
    ({"qtype": "int8", "scale_type": "e4m3", "global_scale": np.inf}, ["global_scale must be finite"]),
    ({"qtype": "int8", "scale_type": "e4m3", "global_scale": [1.0, 2.0]}, ["one element, got 2"]),
    ({"qtype": "int8", "enabled": [True, False]}, ["enabled must have one element, got 2"]),
    ({"qtype": "int8", "scale_type": "e4m3", "global_scale": 0.0}, ["global_scale must be finite"]),
]
OPERATOR_ALONE = ("symmetric must be 0 or 1, got 2", "one element, got 2", "enabled must have one element")
"""Faults of what functions in Python do not have."""


@loop_over(("attributes", "words"), DYNAMIC)
def test_dynamic_operator_refuses(ops, attributes, words):
    """DynamicFakeQuantize names itself and the rule; both functions refuse the same with SpecError."""
    with pytest.raises(Exception, match="DynamicFakeQuantize: ") as caught:
        ops.dynamic_fake_quantize(X, **attributes)
    assert all(word in str(caught.value) for word in words)
    if not words[0].startswith(OPERATOR_ALONE):
        for function in (kernels.dynamic_fake_quantize, dynamic_fake_quantize):
            with pytest.raises(SpecError):
                function(X, **attributes)


@pytest.mark.parametrize("scale_type", [np.float32, np.float64])
@pytest.mark.parametrize("name", ["FakeQuantize", "DynamicFakeQuantize", "Observe"])
def test_operators_refuse_float64(ops, name, scale_type):
    """A double tensor is refused when the session is made, by operator, input and remedy."""
    inputs = ["d", "s"] if name == "FakeQuantize" else ["d"]
    outputs = ["range", "counts", "bins", "y"] if name == "Observe" else ["y"]
    nodes = [
        helper.make_node("Cast", ["x"], ["d"], to=TensorProto.DOUBLE),
        helper.make_node(name, inputs, outputs, domain="onnxfq", qtype="int8"),
    ]
    scale = numpy_helper.from_array(np.array(1, scale_type), "s")
    kind = TensorProto.INT64 if name == "Observe" else TensorProto.DOUBLE
    with pytest.raises(Exception, match=f"{name}: x is float64, which no kernel takes; cast it to float32"):
        ops.session(nodes, ["x"], {"y": kind}, [scale])


def test_kernels_want_floats():
    """float64 is not converted silently."""
    with pytest.raises(SpecError, match="float32, float16 or bfloat16, got float64"):
        kernels.fake_quantize(np.zeros(3), 1, qtype="int8")
    with pytest.raises(SpecError, match="float32, got float64"):
        kernels.observe(np.zeros(3))


def test_out_must_not_overlap_in_part():
    """Shifted overlap would read what was just written."""
    memory = np.zeros(10, np.float32)
    with pytest.raises(SpecError, match="overlaps"):
        kernels.fake_quantize(memory[:8], 1, qtype="int8", out=memory[1:9])


def test_missing_library_names_the_remedy(monkeypatch):
    """Without the build the message says what to run."""
    import importlib.metadata

    from onnxfq.support import resources

    monkeypatch.setattr(resources, "__file__", "/nowhere/onnxfq/support/resources.py")
    monkeypatch.setattr(importlib.metadata, "files", lambda name: None)
    with pytest.raises(RuntimeLibraryError, match="pip install"):
        library.custom_ops_path()


def test_refused_library_is_one_line(monkeypatch, tmp_path):
    """A file that is not a library is reported with its path."""
    import onnxruntime

    broken = tmp_path / "broken.so"
    broken.write_bytes(b"no library")
    monkeypatch.setattr(library, "custom_ops_library", lambda: broken)
    with pytest.raises(RuntimeLibraryError, match="broken.so") as caught:
        library.register_custom_ops(onnxruntime.SessionOptions())
    assert "\n" not in str(caught.value)
