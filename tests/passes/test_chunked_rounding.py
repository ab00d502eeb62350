"""Chunks of a weight, rounded one after another, are the weight rounded at once."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from onnxfq.numerics.affine import quantize
from onnxfq.numerics.granularity import Granularity
from onnxfq.numerics.qtypes import qtype_by_name
from onnxfq.passes import qdq_form
from onnxfq.passes.qdq_form import OnnxParams


@given(
    shape=st.lists(st.integers(1, 9), min_size=0, max_size=3),
    axis=st.one_of(st.none(), st.integers(0, 2)),
    block=st.one_of(st.none(), st.integers(1, 4)),
    part=st.integers(1, 40),
)
def test_chunks_change_nothing(shape: list[int], axis: int | None, block: int | None, part: int) -> None:
    """Any shape, granularity and size of chunks gives NumPy's own result on the whole, to the bit."""
    axis = None if axis is None or axis >= len(shape) else axis
    params = list(shape) if axis is not None and block else [] if axis is None else [shape[axis]]
    if axis is not None and block:
        params[axis] = -(-shape[axis] // block)
    rng = np.random.default_rng(0)
    x = rng.normal(size=shape).astype(np.float32)
    scale = rng.uniform(0.01, 0.1, params).astype(np.float32)
    zero_point = rng.integers(-5, 5, params).astype(np.int32)
    given = OnnxParams(scale, zero_point, Granularity(axis, block if axis is not None else None))
    keywords = {"qtype": qtype_by_name("int8"), "granularity": given.granularity}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(qdq_form, "PART", part)
        got = qdq_form.quantize_in_chunks(x, given, qtype_by_name("int8"), np.dtype(np.int8))
    np.testing.assert_array_equal(got, quantize(x, scale, zero_point, **keywords))
