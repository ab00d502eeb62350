"""A tensor computed from constants alone is one constant if it is multiplied, else unchanged."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from builders import Arrays, assert_same_outputs, build, feed_for, planned, square, weights

from onnxfq.errors import OnnxfqError
from onnxfq.graph.io.load import load
from onnxfq.quantizing.pipeline import quantize
from onnxfq.runtime.session import Session

NORMALISED = """r = ReduceL2 <axes = [1,2,3]> (v) q = Div (gain, r) w = Mul (v, q)
    [conv] y = Conv (x, w)"""

FOLDED: dict[str, tuple[str, Arrays]] = {
    "weight normalisation": (
        f"g (float[N,3,6,6] x) => (float[N,4,4,4] y) {{ {NORMALISED} }}",
        {"v": weights(4, 3, 3, 3), "gain": weights(4, 1, 1, 1, seed=1)},
    ),
    "keys of a table of positions": (
        """g (float[N,4] x) => (float[N,5] y) {
            k = MatMul (table, w) t = Transpose <perm = [1,0]> (k) [mm] y = MatMul (x, t) }""",
        {"table": weights(5, 4), "w": weights(4, 4, seed=1)},
    ),
    "a product that is added": (
        """g (float[N,3,6,6] x) => (float[N,4,4,4] y) {
            p = Conv (table, w) c = Conv (x, w) y = Add (c, p) }""",
        {"w": weights(4, 3, 3, 3), "table": weights(1, 3, 6, 6, seed=1)},
    ),
    "of a shape": (
        """g (float[3,2] x) => (float[3,3] y) { s = Shape (table) n = ConstantOfShape (s)
            w = Add (n, table) y = MatMul (x, w) }""",
        {"table": weights(2, 3)},
    ),
}


@pytest.mark.parametrize("name", FOLDED)
def test_folded(name: str) -> None:
    """The multiplied constant is evaluated, its makers are gone, and the result stays."""
    proto = build(*FOLDED[name])
    model = load(proto)
    onnx.checker.check_model(model.proto, full_check=True)
    assert any("evaluated" in note for note in model.notes)
    weighted = [n for n in model.proto.graph.node if n.op_type in ("Conv", "MatMul")]
    constants = {tensor.name for tensor in model.proto.graph.initializer}
    assert len(weighted) == 1 and weighted[0].input[1] in constants
    assert constants <= {name for node in model.proto.graph.node for name in node.input}, "none is left over"
    (placement,) = planned(proto).weights
    assert placement.spec.granularity.axis is not None, "it is quantized per channel, as any weight"
    feed = feed_for(proto)
    (got,), (want,) = (Session(p, 1).run(feed) for p in (model.proto, proto))
    # ONNX's reference and ONNX Runtime add in another order.
    np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-6)


W = {"w": weights(4, 5)}
PLAIN = "g (float[N,4] x) => (float[N,5] y)"
KEPT: dict[str, tuple[str, Arrays]] = {
    "a transposed weight": (
        f"{PLAIN} {{ t = Transpose <perm = [1,0]> (w) y = MatMul (x, t) }}", {"w": weights(5, 4)},
    ),
    "an input has a part in it": (
        "g (float[N,4] x, float[4,5] z) => (float[N,5] y) { t = Mul (w, z) y = MatMul (x, t) }", W,
    ),
    "random numbers": (
        f"{PLAIN} {{ r = RandomNormalLike <seed = 1.0> (w) t = Mul (w, r) y = MatMul (x, t) }}", W,
    ),
    "an output": (
        "g (float[N,4] x) => (float[N,5] y, float[4,5] t) { t = Mul (w, w) y = MatMul (x, t) }", W,
    ),
    "it is not multiplied": (
        f"{PLAIN} {{ t = Mul (b, b) m = MatMul (x, w) y = Add (m, t) }}", W | {"b": weights(1, 5)},
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", KEPT)
def test_kept(name: str) -> None:
    """All else stays as it was."""
    proto = build(*KEPT[name])
    loaded = load(proto)
    assert [n.op_type for n in loaded.proto.graph.node] == [n.op_type for n in proto.graph.node]
    assert not any("evaluated" in note for note in loaded.notes)


def test_a_weight_that_has_other_readers() -> None:
    """Other readers of the parts of a weight still find them."""
    proto = build(
        """g (float[N,4] x) => (float[N,4] y, float[4,4] k) {
            d = Mul (w, w) t = Add (d, w) m = MatMul (x, t) y = Add (m, b) k = Relu (d) }""",
        {"w": weights(4, 4), "b": weights(4)},
    )
    loaded = load(proto).proto
    assert [n.op_type for n in loaded.graph.node] == ["Mul", "MatMul", "Add", "Relu"]
    assert_same_outputs(proto, loaded)


def test_constants_that_do_not_go_together() -> None:
    """A tensor that cannot be computed is refused, in one line."""
    proto = square("v = MatMul (a, b) y = MatMul (x, v)", {"a": weights(4, 5), "b": weights(4, 4)})
    with pytest.raises(OnnxfqError, match="5 and 4 are summed over together"):
        quantize(proto, [{"x": np.ones((2, 4), np.float32)}])
