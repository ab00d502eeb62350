"""Sessions: optimisation levels that keep Q/DQ models right, and errors in one line."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from builders import build, conv_relu, stage

from onnxfq.errors import DataError, ModelError
from onnxfq.runtime.session import PlacedFeed, Session
from onnxfq.stages.insert import insert_fake_quantize, insert_qdq


@pytest.mark.parametrize("exact", [False, True], ids=["optimised", "exact"])
@pytest.mark.parametrize("opset", [13, 21])
def test_qdq_models_load(opset: int, exact: bool) -> None:
    """Q/DQ models run at each opset form, and both levels agree closely."""
    staged = stage(conv_relu(opset), "onnxruntime-int8")
    session = Session(insert_qdq(staged.model, staged.plan, staged.encodings), 1, exact)
    assert session.output_names == ["y"]
    assert session.run(staged.feed)[0].shape == (4, 4, 6, 6)


def test_valid_model_that_full_optimisation_breaks() -> None:
    """A Q/DQ pair around MaxPool with a zero point at opset 21 runs: it is kept below full optimisation."""
    proto = build(
        """g (float[1,1,4,4] x) => (float[1,1,2,2] y) {
            q = QuantizeLinear (x, s, z) d = DequantizeLinear (q, s, z)
            m = MaxPool <kernel_shape = [2,2], strides = [2,2]> (d)
            q2 = QuantizeLinear (m, s, z) y = DequantizeLinear (q2, s, z) }""",
        {"s": np.float32(1), "z": np.int8(0)},
        opset=21,
        ir=10,
    )
    x = np.arange(16, dtype=np.float32).reshape(1, 1, 4, 4)
    np.testing.assert_array_equal(Session(proto, 1).run({"x": x})[0].ravel(), [5, 7, 13, 15])


def test_custom_operators_are_known(tmp_path: Path) -> None:
    """A model of domain onnxfq loads, from a file too, without a step by the caller."""
    staged = stage(conv_relu())
    onnx.save(insert_fake_quantize(staged.model, staged.plan, staged.encodings), tmp_path / "m.onnx")
    assert Session(tmp_path / "m.onnx", 1).run(staged.feed, ["y"])[0].shape == (4, 4, 6, 6)


def test_models_that_do_not_load() -> None:
    """A refusal of onnxruntime is a ModelError of one line."""
    with pytest.raises(ModelError, match="onnxruntime cannot load the model"):
        Session(build("g (float[N] x) => (float[N] y) { y = Odd (x) }"))


def test_feeds_that_do_not_run() -> None:
    """A failing run is a DataError of one line that tells the shapes."""
    with pytest.raises(DataError, match=r"the model cannot run on x \[1, 3, 5, 5\]"):
        Session(conv_relu()).run({"x": np.zeros((1, 3, 5, 5), np.float32)})


def test_a_feed_on_a_device_runs_in_several_sessions() -> None:
    """Copied feeds give the bits of the arrays, with sequences too; faults are reported alike."""
    proto = build(
        """g (float[N,4] x, int64 n) => (float[N,4] y, seq(float[N,4]) s) {
            y = Relu (x) z = Neg (x) s = SequenceConstruct (y, z) }"""
    )
    feed = {"x": np.linspace(-1, 1, 12, dtype=np.float32).reshape(3, 4), "n": np.array(3)}
    placed = PlacedFeed.from_feed(feed, "cpu")
    for session in (Session(proto, 1), Session(proto, 1, exact=True)):
        (y, parts), (expected, _) = session.run(placed), session.run(feed)
        np.testing.assert_array_equal(y, expected)
        assert not isinstance(parts, np.ndarray)
    with pytest.raises(DataError, match=r"the model cannot run on x \[1, 3, 5, 5\]"):
        Session(conv_relu()).run(PlacedFeed.from_feed({"x": np.zeros((1, 3, 5, 5), np.float32)}, "cpu"))
    strings = {"x": np.array(["a"])}
    assert PlacedFeed.from_feed(strings, "cpu") is strings
    with pytest.raises(DataError, match=r"the model cannot run on x \[2\]"):
        PlacedFeed.from_feed({"x": np.zeros(2, np.complex64)}, "cpu")
