"""Long chains and stacked diamonds: no stage recurses over the graph, and none walks a path twice."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from builders import build, plain_quantize, scalars, weights

import onnxfq
from onnxfq.graph.io.load import load
from onnxfq.targets.recipes import load_recipe
from onnxfq.targets.tensorrt.rewrites import split_projections

LONG = 1200
"""Nodes of a chain: more than Python's frames."""
STACKED = 60
"""Diamonds: 2^60 paths."""

CHAINS = {
    "Relu": "{o} = Relu ({t})",
    "Reshape": "{o} = Reshape ({t}, shape)",
    "Mul": "{o} = Mul ({t}, one)",
    "Concat": "{o} = Concat <axis = 1> ({t})",
    "Transpose": "{o} = Transpose <perm = [1, 0]> ({t})",
}
DIAMONDS = {
    "Add": "{o} = Add ({t}, {t})",
    "branches": "l{i} = Relu ({t}) r{i} = Tanh ({t}) {o} = Add (l{i}, r{i})",
    "Where": "{o} = Where (yes, {t}, {t})",
    "Split": "l{i}, r{i} = Split <axis = 1> ({t}) {o} = Concat <axis = 1> (r{i}, l{i})",
}
FORMS = [(text, LONG) for text in CHAINS.values()] + [(text, STACKED) for text in DIAMONDS.values()]
NAMES = [*CHAINS, *DIAMONDS]


def stack(text: str, count: int, start: str) -> tuple[str, str]:
    """Return nodes of the form `text`, one behind the other, and the last tensor."""
    names = [start, *(f"{start}{i}" for i in range(count))]
    nodes = [text.format(o=o, t=t, i=i) for i, (t, o) in enumerate(zip(names, names[1:], strict=False))]
    return "\n".join(nodes), names[-1]


@pytest.mark.parametrize(("text", "count"), FORMS, ids=NAMES)
def test_between_products(text: str, count: int, tmp_path: Path) -> None:
    """A product, the stack, attention over it: quantized, and checked."""
    nodes, last = stack(text, count, "h")
    proto = build(
        f"""g (float[16,16] x) => (float[16,16] y, float[16,16] z) {{
            h = MatMul (x, w) {nodes} y = MatMul ({last}, w)
            s = MatMul ({last}, h) a = Softmax (s) z = MatMul (a, {last}) }}""",
        {"w": weights(16, 16) / 16, "shape": np.array([16, 16]), "one": np.float32(1), "yes": np.array(True)},
    )
    wanted = load_recipe("tensorrt-int8").model_copy(update={"small_shapes": "quantize"})
    feeds = [{"x": weights(16, 16)}]
    repair = "auto" if text in (CHAINS["Relu"], DIAMONDS["branches"]) else None
    accuracy = onnxfq.AccuracyTarget(repair=repair)
    result = onnxfq.quantize(proto, feeds, tmp_path / "q.onnx", recipe=wanted, accuracy=accuracy)
    assert result.plan.activations
    assert onnxfq.check(tmp_path / "q.onnx", "tensorrt").coverage


SIZES = [("Identity ({t})", LONG), ("Sub ({t}, zero)", LONG), ("Mul ({t}, {t})", STACKED)]


@pytest.mark.parametrize(("text", "count"), SIZES)
def test_sizes(text: str, count: int, tmp_path: Path) -> None:
    """A split projection whose parts are reshaped to sizes that many nodes calculate."""
    nodes, last = stack("{o} = " + text, count, "n")
    proto = build(
        f"""g (float[1,16] x) => (float[1,16] y) {{
            h = MatMul (x, w) n = Shape (c) {nodes} all = Concat <axis = 0> ({last}, sixteen)
            q, k, v = Split <axis = 1, num_outputs = 3> (h)
            q1 = Reshape (q, all) k1 = Reshape (k, all) v1 = Reshape (v, all)
            kt = Transpose <perm = [1,0]> (k1) s = MatMul (q1, kt) a = Softmax (s) y = MatMul (a, v1) }}""",
        {"w": weights(16, 48) / 16, "c": np.ones(1, np.float32), **scalars(np.int64, zero=[0], sixteen=[16])},
        opset=18,
    )
    plain_quantize(proto, [{"x": weights(1, 16)}], tmp_path / "q.onnx")


def split_behind(depth: int, form: str, asked: str = "p") -> onnx.ModelProto:
    """A projection `p` that is split, and a network behind the size of the tensor `asked`."""
    nodes, last = stack(form, depth, "t")
    return build(
        f"""g (float[1,16,64] x) => (float[1,16,64] y, float[1,N,64] z) {{
            p = MatMul (x, w) q, k, v = Split <axis = 2> (p, parts)
            qh = Reshape (q, heads) kh = Reshape (k, heads) vh = Reshape (v, heads)
            qt = Transpose <perm = [0,2,1,3]> (qh) kt = Transpose <perm = [0,2,3,1]> (kh)
            vt = Transpose <perm = [0,2,1,3]> (vh)
            s = MatMul (qt, kt) a = Softmax (s) o = MatMul (a, vt)
            ot = Transpose <perm = [0,2,1,3]> (o) of = Reshape (ot, flat) y = MatMul (of, wo)
            size = Shape ({asked}) length = Slice (size, zero, two) whole = Concat <axis = 0> (length, last)
            t = Reshape (x, whole) {nodes} z = Identity ({last}) }}""",
        {"w": weights(64, 192) / 8, "wo": weights(64, 64) / 8}
        | scalars(np.int64, parts=[64, 64, 64], heads=[1, 16, 2, 32], flat=[1, 16, 64])
        | scalars(np.int64, zero=[0], two=[2], last=[64]),
    )


BEHIND = [("{o} = Tanh ({t})", LONG), ("{o} = Add ({t}, {t})", STACKED)]


@pytest.mark.parametrize(("form", "depth"), BEHIND)
def test_behind_the_size_of_a_split_product(form: str, depth: int, tmp_path: Path) -> None:
    """Legacy exports ask a product for its size, and all that follows depends on it."""
    result = plain_quantize(split_behind(depth, form), [{"x": weights(1, 16, 64)}], tmp_path / "q.onnx")
    assert "p" not in {skipped.name for skipped in result.plan.skipped if skipped.kind == "node"}


@pytest.mark.sample
def test_a_rewrite_that_fails_is_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A mistake in reading a product, and one in the edit, leave the model as it is without the rewrite."""
    proto, feeds = split_behind(1, "{o} = Tanh ({t})", "x"), [{"x": weights(1, 16, 64)}]
    wanted = "tensorrt-int8-weights"
    monkeypatch.setattr(split_projections, "_divide", lambda *_: 1 / 0)
    plain_quantize(proto, feeds, tmp_path / "a.onnx", recipe=wanted)
    assert "rewriting the given model for tensorrt is left out, because it failed: ZeroDiv" in caplog.text
    monkeypatch.setattr(split_projections, "_divisible", lambda *_: [][1])
    plain_quantize(proto, feeds, tmp_path / "b.onnx", recipe=wanted)
    assert "dividing MatMul 'p' is left out, because it failed: IndexError" in caplog.text
    assert (tmp_path / "a.onnx").read_bytes() == (tmp_path / "b.onnx").read_bytes()
    assert len(load(tmp_path / "a.onnx").proto.graph.node) > 0
