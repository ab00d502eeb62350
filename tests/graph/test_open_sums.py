"""Sums over open lengths and over the samples of a batch have a note, and nothing else has."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from builders import build, plain_quantize, weights

from onnxfq.graph.patterns.open_sums import explain_open_sums

AXIS = {"axes": np.array([1])}
LENGTHS = {
    "ReduceSum": "y = ReduceSum <keepdims = 0> (x, axes)",
    "ReduceMean": "y = ReduceMean <axes = [1], keepdims = 0> (x)",
    "ReduceL2 of all": "y = ReduceL2 <keepdims = 0> (x)",
    "Softmax": "y = Softmax <axis = 1> (x)",
    "MatMul": "t = Transpose <perm = [0, 2, 1]> (x) y = MatMul (t, x)",
    "GlobalAveragePool": "t = Transpose <perm = [0, 2, 1]> (x) y = GlobalAveragePool (t)",
    "attention": """t = Transpose <perm = [0, 2, 1]> (x) s = MatMul (x, t) p = Softmax <axis = -1> (s)
        y = MatMul (p, x)""",
}
ALONE = {
    "Softmax of channels": "y = Softmax <axis = -1> (x)",
    "MatMul of channels": "y = MatMul (x, w)",
    "ReduceMean of channels": "y = ReduceMean <axes = [2]> (x)",
    "Relu": "y = Relu (x)",
}


def model(body: str, shape: str = "N,T,8") -> onnx.ModelProto:
    """A model of these nodes, with inferred shapes."""
    proto = build(f"g (float[{shape}] x) => (float[] y) {{ {body} }}", {"w": weights(8, 8), **AXIS})
    proto.graph.output[0].type.tensor_type.ClearField("shape")
    return onnx.shape_inference.infer_shapes(proto)


def sizes(*shapes: tuple[int, ...]) -> dict[str, list[set[int]]]:
    """Sizes of the axes of `x` in feeds of these shapes."""
    return {"x": [set(axis) for axis in zip(*shapes, strict=True)]}


@pytest.mark.parametrize("body", LENGTHS.values(), ids=LENGTHS)
def test_a_sum_over_an_open_length_has_a_note(body: str) -> None:
    """It names the first tensor and the length; not where lengths differ, or where none is open."""
    (note,) = (line for line in explain_open_sums(model(body), sizes((1, 16, 8))) if "length" in line)
    assert "has 16: other lengths were not measured" in note
    assert ("'x'" in note) == ("Transpose" not in body) or "'t'" in note
    assert not [n for n in explain_open_sums(model(body), sizes((1, 16, 8), (1, 9, 8))) if "length" in n]
    assert not [n for n in explain_open_sums(model(body, "N,16,8"), sizes((1, 16, 8))) if "length" in n]


@pytest.mark.parametrize("body", ALONE.values(), ids=ALONE)
def test_other_operators_have_none(body: str) -> None:
    """They mix neither positions nor samples, and give the same for any length."""
    assert not explain_open_sums(model(body), sizes((1, 16, 8)))


@pytest.mark.parametrize("body", ["y = ReduceMean <axes = [0]> (x)", "y = Softmax <axis = 0> (x)"])
def test_a_sum_over_the_batch_has_a_note(body: str) -> None:
    """Samples that know of each other are measured in one batch size alone."""
    (note,) = explain_open_sums(model(body), sizes((1, 16, 8)))
    assert "samples of a batch, of which 1 ran together: other batches were not measured" in note


def test_the_result_has_the_notes() -> None:
    """`quantize` tells them; of data with several lengths it does not."""
    proto = model("t = MatMul (x, w) p = Relu (t) r = ReduceSum <keepdims = 0> (p, axes) y = MatMul (r, w)")
    random = np.random.default_rng(0)
    for lengths, count in (([16], 1), ([8, 16], 0)):
        data = [
            {"x": random.normal(size=(1, lengths[at % len(lengths)], 8)).astype("f4")} for at in range(40)
        ]
        notes = plain_quantize(proto, data).staged.notes
        assert sum("other lengths were not measured" in note for note in notes) == count
