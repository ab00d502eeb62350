"""N-D blocks written as blocks along one axis: the same numbers, the fewest scales."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from agreement import twins
from builders import (
    build,
    constants,
    conv_relu,
    graph_text,
    one_format,
    planned,
    qdq_of,
    stage,
    transposed_weight,
    weights,
)
from keyword_numerics import fake_quantize

from onnxfq.graph.model import default_opset

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
    proto = build(
        f"g (float[N,{shape[0]}] x) => (float[N,{shape[1]}] y) {{ [mm] y = MatMul (x, w) }}",
        {"w": weights(*shape)},
    )
    staged = stage(proto, one_format(qtype, granularity="block_shape", block_shape=blocks))
    direct = fake_quantize(
        constants(proto)["w"],
        staged.encodings["w"].scale,
        staged.encodings["w"].zero_point,
        qtype=qtype,
        block_shape=blocks,
    )
    names, simulated, deployed = twins(staged)
    at = names.index("w")
    np.testing.assert_array_equal(simulated[at], direct)
    np.testing.assert_array_equal(deployed[at], direct)
    onnx.checker.check_model(qdq_of(staged), full_check=True)


def test_fewest_scales_are_stored() -> None:
    """Blocks go along the allowed axis with the fewest scales."""
    proto = build("g (float[N,8] x) => (float[N,12] y) { y = MatMul (x, w) }", {"w": weights(8, 12)})
    written = qdq_of(stage(proto, one_format("int8", granularity="block_shape", block_shape=[2, 6])))
    assert constants(written)["w/scale"].shape == (8, 2)
    assert "axis=1 block_size=6" in next(line for line in graph_text(written) if line.startswith("[w/dq]"))
    assert default_opset(written) == 21


@pytest.mark.parametrize("blocks", [[-1, -1], [-1, 1], [1, -1]], ids=str)
def test_simple_blocks_need_no_new_opset(blocks: list[int]) -> None:
    """N-D blocks that are per tensor or per axis are written so, for every opset."""
    proto = build("g (float[N,4] x) => (float[N,6] y) { y = MatMul (x, w) }", {"w": weights(4, 6)}, opset=13)
    written = qdq_of(stage(proto, one_format("int8", granularity="block_shape", block_shape=blocks)))
    assert default_opset(written) == 13
    assert constants(written)["w/scale"].ndim == (blocks != [-1, -1])


def test_blocks_follow_a_transpose() -> None:
    """block_shape speaks of the axes that the operator reads; the constant is stored the other way round."""
    plan = planned(transposed_weight(), one_format("int8", granularity="block_shape", block_shape=[2, 1]))
    assert plan.weights[0].spec.granularity.block_shape == (1, 2)


def test_blocks_of_another_rank_fall_back() -> None:
    """A weight with another number of axes is quantized per output channel, and the plan says why."""
    plan = planned(conv_relu(), one_format("int8", granularity="block_shape", block_shape=[2, 1]))
    assert plan.weights[0].spec.granularity.axis == 0
    assert plan.weights[0].why == (
        "weight of Conv, per output channel: block_shape [2, 1] is not for its 4 axes"
    )
