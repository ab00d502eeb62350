"""Broken attributes, shapes and parameters are refused in one line that names the rule and the remedy."""

from __future__ import annotations

import numpy as np
import pytest

from onnxfq.errors import RuntimeLibraryError, SpecError
from onnxfq.runtime import kernels, library

X = np.zeros((2, 3, 4), np.float32)

# attributes, scale, zero_point, words that the message must hold
BROKEN = {
    "qtype": ({"qtype": "int7"}, 1, None, ["unknown qtype 'int7'", "int8"]),
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
    "scale-tiny": ({"qtype": "int8", "arithmetic": "reciprocal"}, 1e-40, None, ["reciprocal", "divide"]),
    "zero-point-outside": ({"qtype": "uint4"}, 1, 16, ["zero_point", "[0, 15]", "16"]),
    "zero-point-half": ({"qtype": "int8"}, 1, 0.5, ["zero_point", "integer", "0.5"]),
}


@pytest.mark.parametrize("case", BROKEN)
def test_operator_refuses(ops, case):
    """The session reports the operator's name and our message instead of wrong numbers."""
    attributes, scale, zero_point, words = BROKEN[case]
    with pytest.raises(Exception, match="FakeQuantize: ") as caught:
        ops.fake_quantize(X, scale, zero_point, **attributes)
    for word in words:
        assert word in str(caught.value)


@pytest.mark.parametrize("case", sorted(BROKEN.keys() - {"no-qtype", "block-size", "zero-points"}))
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
    """What only the NumPy function can get wrong is a SpecError too, before any memory is touched."""
    with pytest.raises(SpecError):
        kernels.fake_quantize(X, **options, qtype="int8")


def test_kernels_want_float32():
    """float64 is not converted silently."""
    with pytest.raises(SpecError, match="float32, got float64"):
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

    from onnxfq import package_files

    monkeypatch.setattr(package_files, "__file__", "/nowhere/onnxfq/package_files.py")
    monkeypatch.setattr(importlib.metadata, "files", lambda name: None)
    with pytest.raises(RuntimeLibraryError, match="pip install"):
        library.custom_ops_path()


def test_refused_library_is_one_line(monkeypatch, tmp_path):
    """A file that is no library is reported with its path."""
    import onnxruntime

    broken = tmp_path / "broken.so"
    broken.write_bytes(b"no library")
    monkeypatch.setattr(library, "custom_ops_library", lambda: broken)
    with pytest.raises(RuntimeLibraryError, match="broken.so") as caught:
        library.register_custom_ops(onnxruntime.SessionOptions())
    assert "\n" not in str(caught.value)
