"""Numbers of shapes and bounds: what ONNX's reference computes, or nothing."""

from __future__ import annotations

import numpy as np
import pytest
from builders import build, build_used
from onnx import shape_inference
from onnx.reference import ReferenceEvaluator

from onnxfq.graph.constant_integers import evaluate_integers
from onnxfq.graph.io.load import load

CONSTANTS = {
    "one": np.asarray(1, np.int64),
    "last": np.asarray(-1, np.int64),
    "places": np.asarray([2, 0], np.int64),
    "three": np.asarray([3], np.int64),
    "zero": np.asarray([0], np.int64),
    "two": np.asarray([2], np.int64),
    "many": np.asarray([5, 6, 7], np.int64),
}
# The computation, as text of a graph that reads x [N, 6, 9], and whether the open size has a part in it.
TEXTS = {
    "a size": ("s = Shape (x) y = Gather (s, one)", False),
    "the last size": ("s = Shape (x) y = Gather (s, last)", False),
    "the batch": ("s = Shape (x) y = Gather (s, zero)", True),
    "both": ("s = Shape (x) y = Gather (s, places)", True),
    "thirds": (
        "s = Shape (x) g = Gather (s, last) u = Unsqueeze (g, zero) d = Div (u, three) y = Mul (d, two)",
        False,
    ),
    "sums": ("s = Shape (x) p = Add (s, many) y = Sub (p, three)", True),
    "joined": ("s = Shape (x) g = Slice (s, zero, two) y = Concat <axis = 0> (g, three)", True),
    "cast": ("s = Shape (x) c = Cast <to = 6> (s) y = Cast <to = 7> (c)", True),
    "squeezed": ("s = Shape (x) g = Gather (s, two) y = Squeeze (g, zero)", False),
}


@pytest.mark.parametrize("case", TEXTS)
def test_as_the_reference_computes(case: str) -> None:
    """Each number that is known is the one that is computed, and none is but by an open size."""
    text, is_open = TEXTS[case]
    model = build_used(f"g (float[N,6,9] x) => (int64[M] y) {{ {text} }}", CONSTANTS)
    model.graph.output[0].type.tensor_type.ClearField("shape")
    expected = ReferenceEvaluator(model).run(None, {"x": np.zeros((4, 6, 9), np.float32)})[0].reshape(-1)
    graph = load(shape_inference.infer_shapes(model)).graph()
    found = evaluate_integers(graph.outputs[0])
    assert found is not None and len(found) == len(expected)
    assert all(a in (None, b) for a, b in zip(found, expected, strict=True))
    assert (None in found) == is_open


@pytest.mark.parametrize(
    "text",
    [
        "y = NonZero (x)",
        "s = Shape (x) y = Gather (s, i)",
        "s = Shape (x) f = Cast <to = 1> (s) r = Sqrt (f) y = Cast <to = 7> (r)",
    ],
)
def test_what_is_not_known(text: str) -> None:
    """Sizes that data decides, or that no rule covers, are unknown."""
    extra = ", int64[1] i" if "i)" in text else ""
    model = build(f"g (float[N,6,9] x{extra}) => (int64[M] y) {{ {text} }}")
    assert evaluate_integers(load(model).graph().outputs[0]) is None
