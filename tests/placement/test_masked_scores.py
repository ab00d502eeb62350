"""Masks of attentions set no range, whatever form they have, and hide nothing less behind it."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from builders import build, build_used, plain_quantize, weights
from onnxruntime import InferenceSession

import onnxfq
from onnxfq.graph.index import GraphIndex
from onnxfq.placement.masked_scores import find_masked_scores

HEAD = """g (float[N,6,16] x, {mask}) => (float[N,6,16] y) {{
    q = MatMul (x, wq) k = MatMul (x, wk) v = MatMul (x, wv) t = Transpose <perm = [0,2,1]> (k)
    s = MatMul (q, t) {scores} p = Softmax <axis = -1> (scores) y = MatMul (p, v) }}"""
FORMS = {
    "added": ("float[N,1,6] m", "scores = Add (s, m)"),
    "selected": ("bool[N,1,6] m", "scores = Where (m, s, low)"),
    "a summand of two": (
        "bool[N,1,6] m",
        "a = Where (m, zero, low) b = Add (s, a) scores = Reshape (b, shape)",
    ),
}
SEEN = {"part of the data": np.arange(6) < 4, "nothing": np.arange(6) < 6}
LOWEST = float(np.finfo(np.float32).min)
LOWS = (-1e4, LOWEST, -np.inf)
"""Masks as exporters and people write them; an input may hold no infinity unless the user says so."""


def make_attention(form: str, low: float) -> tuple[onnx.ModelProto, list[dict[str, np.ndarray]]]:
    """Return an attention, and its feeds with three of six places hidden."""
    mask, scores = FORMS[form]
    values = {name: weights(16, 16, seed=at) / 4 for at, name in enumerate(("wq", "wk", "wv"))}
    values |= {"low": np.float32(low), "zero": np.float32(0), "shape": np.asarray([-1, 6, 6], np.int64)}
    proto = build_used(HEAD.format(mask=mask, scores=scores), values)
    feeds = [{"x": weights(4, 6, 16, seed=at), "m": mask_of(form, np.arange(6) < 3, low)} for at in range(6)]
    return proto, feeds


def mask_of(form: str, open_places: np.ndarray, low: float) -> np.ndarray:
    """Return a mask in the type of the form."""
    kept = np.tile(open_places, (4, 1, 1))
    return np.where(kept, 0, low).astype(np.float32) if form == "added" else kept


def sqnr(want: np.ndarray, got: np.ndarray) -> float:
    """Return the SQNR in dB."""
    return float(10 * np.log10(np.square(want).sum() / np.square(got - want).sum()))


@pytest.mark.grid
@pytest.mark.parametrize("seen", SEEN)
@pytest.mark.parametrize(
    ("form", "low"), [(f, low) for f in FORMS for low in LOWS if f != "added" or low > -np.inf]
)
def test_masks_hide_and_leave_steps(form: str, low: float, seen: str) -> None:
    """Hidden places stay hidden in ONNX Runtime, also where the data for calibration hid none."""
    proto, feeds = make_attention(form, low)
    data = [feed | {"m": mask_of(form, SEEN[seen], low)} for feed in feeds]
    written = plain_quantize(proto, data, recipe="qnn-int8").qdq
    float_run, run = (InferenceSession(one.SerializeToString()).run for one in (proto, written))
    hidden = [float_run(None, feed)[0] for feed in feeds]
    seen_all = [float_run(None, feed | {"m": mask_of(form, SEEN["nothing"], low)})[0] for feed in feeds]
    worst = min(sqnr(want, run(None, feed)[0]) for want, feed in zip(hidden, feeds, strict=True))
    # Eight bits leave over 15 dB of these steep scores.
    assert worst > 15 > max(map(sqnr, hidden, seen_all)) + 12


def test_infinities_elsewhere_are_refused() -> None:
    """A tensor that not Softmax alone reads may hold no infinity."""
    text = "g (float[N,8] x) => (float[N,8] p, float[N,8] y) { y = Log (x) p = Softmax (y) z = Relu (y) }"
    proto = build(text.replace("float[N,8] y)", "float[N,8] z)"))
    with pytest.raises(onnxfq.errors.StatisticsError, match="'y' has 0 NaN and 8 infinite values"):
        onnxfq.quantize(proto, [{"x": np.zeros((2, 8), np.float32)}], recipe="qnn-int8")


def test_tensors_that_softmax_alone_reads() -> None:
    """Both summands are such tensors; what another operator reads is none."""
    proto, _ = make_attention("added", LOWEST)
    assert find_masked_scores(onnxfq.load(proto).index).tensors == {"scores", "s", "m"}
    proto.graph.output.append(onnx.helper.make_tensor_value_info("s", 1, ["N", 6, 6]))
    assert find_masked_scores(onnxfq.load(proto).index).tensors == {"scores", "m"}


def test_long_chains_end() -> None:
    """A tensor beside a Softmax may be read along a hundred thousand sums."""
    count = 100_000
    nodes = [onnx.helper.make_node("Softmax", ["s"], ["p"]), onnx.helper.make_node("Add", ["s", "s"], ["t0"])]
    nodes += [onnx.helper.make_node("Add", [f"t{at}", "x"], [f"t{at + 1}"]) for at in range(count)]
    nodes.insert(0, onnx.helper.make_node("Add", ["x", "x"], ["s"]))
    values = [onnx.helper.make_tensor_value_info(name, 1, [4]) for name in ("x", "p", f"t{count}")]
    index = GraphIndex(onnx.helper.make_graph(nodes, "g", values[:1], values[1:]))
    assert find_masked_scores(index).tensors == set()
