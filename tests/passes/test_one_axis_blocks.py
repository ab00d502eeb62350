"""Rounded weights as written: N-D blocks as blocks along one axis, and chunks, to the bit."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from agreement import twins
from builders import BUILDERS, build, constants, graph_text, linear, one_format, qdq_of, stage, weights
from hypothesis import given
from hypothesis import strategies as st
from keyword_numerics import fake_quantize

from onnxfq.documents.recipe import Recipe
from onnxfq.graph.model import default_opset
from onnxfq.numerics.affine import quantize
from onnxfq.numerics.granularity import Granularity
from onnxfq.numerics.qtypes import qtype_by_name
from onnxfq.passes import qdq_form


def blocked(shape: list[int], qtype: str = "int8") -> Recipe:
    """Return a recipe with blocks of this shape."""
    return one_format(qtype, granularity="block_shape", block_shape=shape)


BLOCKS = {
    "rows and columns": ((4, 6), [2, 3]),
    "short last": ((5, 7), [2, 3]),
    "whole axis": ((4, 6), [-1, 2]),
    "per tensor": ((4, 6), [-1, -1]),
    "per axis": ((4, 6), [-1, 1]),
    "larger than the axis": ((4, 6), [8, 2]),
    "one each": ((4, 6), [1, 1]),
}


@pytest.mark.parametrize("qtype", ["int8", "uint4", "float8e4m3fn", "int5"])
@pytest.mark.parametrize("case", BLOCKS)
def test_blocks_along_one_axis_are_the_same(case: str, qtype: str) -> None:
    """N-D blocks, which ONNX lacks, become blocks along one axis without a changed bit."""
    shape, blocks = BLOCKS[case]
    proto = linear(*shape)
    staged = stage(proto, blocked(blocks, qtype))
    one = staged.encodings["w"]
    form = {"qtype": qtype, "block_shape": blocks}
    direct = fake_quantize(constants(proto)["w"], one.scale, one.zero_point, **form)
    names, simulated, deployed = twins(staged)
    at = names.index("w")
    np.testing.assert_array_equal(simulated[at], direct)
    np.testing.assert_array_equal(deployed[at], direct)
    onnx.checker.check_model(qdq_of(staged), full_check=True)


def test_fewest_scales_are_stored() -> None:
    """Blocks go along the allowed axis with the fewest scales."""
    written = qdq_of(stage(linear(8, 12), blocked([2, 6])))
    assert constants(written)["w/scale"].shape == (8, 2)
    assert "axis=1 block_size=6" in next(line for line in graph_text(written) if line.startswith("[w/dq]"))
    assert default_opset(written) == 21


@pytest.mark.parametrize("blocks", [[-1, -1], [-1, 1], [1, -1]], ids=str)
def test_simple_blocks_need_no_new_opset(blocks: list[int]) -> None:
    """N-D blocks that are per tensor or per axis are written so, for every opset."""
    proto = build("g (float[N,4] x) => (float[N,6] y) { y = MatMul (x, w) }", {"w": weights(4, 6)}, opset=13)
    written = qdq_of(stage(proto, blocked(blocks)))
    assert default_opset(written) == 13
    assert constants(written)["w/scale"].ndim == (blocks != [-1, -1])


def test_blocks_follow_a_transpose() -> None:
    """block_shape speaks of the axes that the operator reads; the constant is stored the other way round."""
    plan = stage(BUILDERS["transposed_weight"](), blocked([2, 1])).plan
    assert plan.weights[0].spec.granularity.block_shape == (1, 2)


def test_blocks_of_another_rank_fall_back() -> None:
    """A weight with another number of axes is quantized per output channel, and the plan says why."""
    (weight,) = stage(BUILDERS["conv_relu"](), blocked([2, 1])).plan.weights
    assert weight.spec.granularity.axis == 0
    assert weight.why == "weight of Conv, per output channel: block_shape [2, 1] is not for its 4 axes"


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
    given = qdq_form.OnnxParams(scale, zero_point, Granularity(axis, block if axis is not None else None))
    keywords = {"qtype": qtype_by_name("int8"), "granularity": given.granularity}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(qdq_form, "PART", part)
        got = qdq_form.quantize_in_chunks(x, given, qtype_by_name("int8"), np.dtype(np.int8))
    np.testing.assert_array_equal(got, quantize(x, scale, zero_point, **keywords))
