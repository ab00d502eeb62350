"""Facts about operators: the channel axis and the summed axis of every layout, against NumPy."""

from __future__ import annotations

from copy import deepcopy

import numpy as np
import onnx
import onnx_graphsurgeon as gs
import pytest
from builders import BUILDERS, gemm, weights
from onnx.reference import ReferenceEvaluator

from onnxfq.graph.io.load import load
from onnxfq.graph.ops import channel_axis, find_summed_axis
from onnxfq.graph.queries import WeightSource, distances_upward, weight_source

CASES = {
    "conv": (BUILDERS["conv_relu"](), 1, 0, None),
    "conv_transpose": (BUILDERS["conv_transpose"](), 1, 1, None),
    "gemm": (gemm(), 1, 1, 0),
    "gemm_trans_b": (gemm(0, 1), 1, 0, 1),
    "gemm_trans_a": (gemm(1, 0), 1, 1, 0),
    "gemm_trans_ab": (gemm(1, 1), 1, 0, 1),
    "matmul_left": (BUILDERS["left_constant"](), 0, 0, 1),
    "matmul_vector": (BUILDERS["vector_weight"](), 1, None, 0),
    "matmul_transposed": (BUILDERS["transposed_weight"](), 1, 1, 0),
}


def weight_of(proto: onnx.ModelProto, slot: int) -> tuple[gs.Node, WeightSource]:
    """Return the product of a network, and its weight."""
    node = next(n for n in load(proto).graph().nodes if n.op in ("Conv", "ConvTranspose", "Gemm", "MatMul"))
    source = weight_source(node, slot)
    assert source is not None
    return node, source


@pytest.mark.parametrize("name", CASES)
def test_axes(name: str) -> None:
    """The axes of a constant input, in the axes of that input."""
    proto, slot, channel, summed = CASES[name]
    node, source = weight_of(proto, slot)
    rank = len(source.permutation)
    assert channel_axis(node, slot, rank) == channel
    assert find_summed_axis(node, slot, rank) == summed


@pytest.mark.parametrize("name", [name for name in CASES if name != "matmul_vector"])
def test_a_channel_scales_one_output_channel(name: str) -> None:
    """Doubling one index of the channel axis changes one index of one output axis: its scale moves out."""
    proto, slot, _, _ = CASES[name]
    node, source = weight_of(proto, slot)
    axis = source.permutation[channel_axis(node, slot, len(source.permutation)) or 0]
    model = deepcopy(proto)
    model.graph.ClearField("output")
    model.graph.output.append(onnx.helper.make_empty_tensor_value_info(node.outputs[0].name))
    for tensor in model.graph.initializer:
        if tensor.name == "b":  # a bias would not be doubled
            tensor.CopyFrom(onnx.numpy_helper.from_array(np.zeros(tensor.dims[0], np.float32), "b"))
    x = {"x": weights(*[d.dim_value or 2 for d in model.graph.input[0].type.tensor_type.shape.dim], seed=5)}
    before = ReferenceEvaluator(model).run(None, x)[0]
    for tensor in model.graph.initializer:
        if tensor.name == "w":
            values = onnx.numpy_helper.to_array(tensor).copy()
            values[(slice(None),) * axis + (1,)] *= 2
            tensor.CopyFrom(onnx.numpy_helper.from_array(values, "w"))
    changed = ReferenceEvaluator(model).run(None, x)[0] != before
    places = [set(index.tolist()) for index in np.nonzero(changed)]
    assert {1} in places


def test_distances_are_the_longest() -> None:
    """`distances_upward` counts nodes along the longest way to each tensor."""
    graph = load(BUILDERS["two_branch"]()).graph()
    add = next(n for n in graph.nodes if n.op == "Add")
    distances = distances_upward(add.outputs[0])
    assert distances == {"s": 0, "n": 1, "c2": 2, "r1": 3, "c1": 4, "h": 5, "x": 6}
