"""Axis 0 of the inputs: runs tell whether it counts samples, and what it does not count stays whole."""

from __future__ import annotations

import logging
from pathlib import Path

import numpy as np
import onnx
import pytest
from builders import build, build_used, plain_quantize, weights

import onnxfq
from onnxfq.cli.main import main
from onnxfq.data import Feed
from onnxfq.errors import DataError
from onnxfq.stages.input_axes import take_together
from onnxfq.stages.options import open_feeds

RNG = np.random.default_rng(0)


def small(*shape: int, seed: int = 0) -> np.ndarray:
    """Weights with which states neither vanish nor saturate."""
    return weights(*shape, seed=seed) * np.float32(0.4)


BATCHED = {
    "rows": "g (float[N,8] x) => (float[N,8] y) { a = MatMul (x, w) r = Relu (a) y = MatMul (r, w2) }",
    "recurrent, batch first": """g (float[N,5,8] x) => (float[N,5,8] y, float[1,N,8] h) {
        t = Transpose <perm = [1,0,2]> (x) l, h = LSTM <hidden_size = 8> (t, lw, lr)
        k = Squeeze (l, one) u = Transpose <perm = [1,0,2]> (k) y = MatMul (u, w) }""",
    "rows of positions": """g (float[N,5,8] x) => (float[M,8] y) {
        r = Reshape (x, to_rows) y = MatMul (r, w) }""",
    "attention": """g (float[N,T,8] x) => (float[N,T,8] y) {
        q = MatMul (x, w) t = Transpose <perm = [0,2,1]> (x)
        s = MatMul (q, t) p = Softmax (s) y = MatMul (p, x) }""",
    "a loss": """g (float[N,8] x) => (float[N,8] y, float l) {
        y = MatMul (x, w) l = ReduceMean <keepdims = 0> (y) }""",
    "random": """g (float[N,8] x) => (float[N,8] y) {
        r = RandomNormalLike (x) s = Add (x, r) y = MatMul (s, w) }""",
    "training": """g (float[N,8] x) => (float[N,8] y) {
        a = MatMul (x, w) y, m, v = BatchNormalization <training_mode = 1> (a, ones, zeros, zeros, ones) }""",
    "dynamic": """g (float[N,8] x) => (float[N,8] y) {
        q, s, z = DynamicQuantizeLinear (x) d = DequantizeLinear (q, s, z) y = MatMul (d, w) }""",
    "boxes": """g (float[N,6,4] b, float[N,1,6] c) => (int64[K,3] y) {
        d = Mul (b, b) e = Sigmoid (c) y = NonMaxSuppression (d, e, most, half, half) }""",
    "squeezed": """g (float[N,8] x) => (float[N,8] y) {
        u = Unsqueeze (x, one) s = Squeeze (u) y = MatMul (s, w) }""",
    "one at a time": """g (float[N,8] x) => (float[N,8] y) { r = Reshape (x, one_row) y = MatMul (r, w) }""",
    "anchors too": """g (float[N,8] x) => (float[N,8] y, float[3,4] a) {
        y = MatMul (x, w) a = Identity (anchors) }""",
}
MIXED = {
    "recurrent": """g (float[T,1,8] x) => (float[T,1,8] y) {
        l, h = LSTM <hidden_size = 8> (x, lw, lr) k = Squeeze (l, one) y = MatMul (k, w) }""",
    "backwards": """g (float[T,1,8] x) => (float[T,1,8] y) {
        l, h = LSTM <hidden_size = 8, direction = "reverse"> (x, lw, lr)
        k = Squeeze (l, one) y = MatMul (k, w) }""",
    "attention": """g (float[T,1,8] x) => (float[T,1,8] y) {
        s = Squeeze (x, one) q = MatMul (s, w) t = Transpose <perm = [1,0]> (s) p = MatMul (q, t)
        a = Softmax (p) o = MatMul (a, s) u = MatMul (o, w2) y = Unsqueeze (u, one) }""",
    "sequence to class": """g (float[T,1,8] x) => (float[1,8] y) {
        l, h = LSTM <hidden_size = 8> (x, lw, lr) k = Squeeze (h, zero) y = MatMul (k, w) }""",
    "points": """g (float[points,8] x) => (float[1,8] y) {
        a = MatMul (x, w) r = Relu (a) m = ReduceMax <axes = [0]> (r) y = MatMul (m, w2) }""",
    "points and their scene": """g (float[points,8] x) => (float[points,8] y) {
        a = MatMul (x, w) m = ReduceMax <axes = [0]> (a) s = Sub (a, m) y = MatMul (s, w2) }""",
    "convolution along time": """g (float[T,1,8] x) => (float[1,8,U] y) {
        t = Transpose <perm = [1,2,0]> (x) y = Conv (t, kernel) }""",
    "graph": """g (float[nodes,8] x, int64[edges] a, int64[edges] b) => (float[nodes,8] y) {
        h = MatMul (x, w) m = Gather (h, a) z = Sub (h, h) d = Unsqueeze (b, one) s = Shape (m)
        e = Expand (d, s) g = ScatterElements <axis = 0, reduction = "add"> (z, e, m) t = Add (g, h)
        y = MatMul (t, w2) }""",
}
CONSTANTS = {
    "w": small(8, 8),
    "w2": small(8, 8, seed=1),
    "lw": small(1, 32, 8),
    "lr": small(1, 32, 8, seed=1),
    "one": np.array([1]),
    "to_rows": np.array([-1, 8]),
    "one_row": np.array([1, 8]),
    "ones": np.ones(8, np.float32),
    "zeros": np.zeros(8, np.float32),
    "zero": np.array([0]),
    "most": np.array([3]),
    "half": np.array([0.5], np.float32),
    "anchors": small(3, 4),
    "kernel": small(8, 8, 3),
}


def made(text: str) -> onnx.ModelProto:
    """The model of a text, with the constants that it reads."""
    return build_used(text, CONSTANTS)


def feeds_of(proto: onnx.ModelProto, rows: int, count: int) -> list[Feed]:
    """Feeds of so many rows along axis 0; integers are numbers of rows."""
    found = []
    for _ in range(count):
        feed: Feed = {}
        for value in proto.graph.input:
            kind = value.type.tensor_type
            sizes = [d.dim_value or (rows if at == 0 else 5) for at, d in enumerate(kind.shape.dim)]
            whole = kind.elem_type == onnx.TensorProto.INT64
            feed[value.name] = RNG.integers(0, rows, sizes) if whole else RNG.normal(size=sizes).astype("f4")
        found.append(feed)
    return found


@pytest.mark.grid
@pytest.mark.parametrize("batch", [1, 2, 0])
@pytest.mark.parametrize("name", sorted(BATCHED))
def test_samples_are_cut(name: str, batch: int, caplog: pytest.LogCaptureFixture) -> None:
    """Rows that do not know of each other are samples, and so they are if runs cannot tell."""
    proto = made(BATCHED[name])
    feeds = open_feeds(proto, feeds_of(proto, 6, 3), batch)
    assert [len(next(iter(feed.values()))) for feed in feeds] == [batch or 6] * (18 // (batch or 6))
    assert feeds.digest is not None and feeds.digest.samples == 18
    assert "--batch 0" not in caplog.text


UNPROVEN = {"random", "training", "one at a time"}
"""Models of BATCHED of which no runs can be compared."""


# In "dynamic" the other row moves the scale, by so much as the values happen to need.
@pytest.mark.parametrize("name", sorted((BATCHED | MIXED).keys() - {"dynamic"}))
def test_samples_are_taken_together_where_runs_prove_it(name: str) -> None:
    """Models that cannot run two samples, or that draw numbers, run one at a time."""
    proto = made((MIXED | BATCHED)[name])
    first, last = feeds_of(proto, 1, 2)
    together = {key: np.concatenate([first[key], last[key]]) for key in first}
    assert take_together(proto, together, [first, last]) == (name in BATCHED and name not in UNPROVEN)


@pytest.mark.grid
@pytest.mark.parametrize("batch", [1, 2, 0])
@pytest.mark.parametrize("name", sorted(MIXED))
def test_what_is_no_sample_stays_whole(name: str, batch: int, caplog: pytest.LogCaptureFixture) -> None:
    """A feed is one sample, in any batch and order; one note says so unless the caller does."""
    proto = made(MIXED[name])
    given = feeds_of(proto, 6, 3)
    for data in (given, given[::-1], iter(given), lambda: iter(given)):
        caplog.clear()
        feeds = open_feeds(proto, data, batch)
        assert [len(next(iter(feed.values()))) for feed in feeds] == [6] * 3
        assert feeds.digest is not None and feeds.digest.samples == 3
        notes = [one for one in caplog.messages if "--batch 0" in one]
        assert len(notes) == (batch > 0) and all("axis 0 of the inputs counts no samples" in n for n in notes)


@pytest.mark.parametrize("name", ["recurrent", "points", "convolution along time"])
def test_one_array_is_one_sample(name: str, tmp_path: Path) -> None:
    """An array that would be cut for the batch is read again, whole."""
    proto = made(MIXED[name])
    (feed,) = feeds_of(proto, 50, 1)
    np.savez(tmp_path / "d.npz", **feed)
    np.save(tmp_path / "d.npy", feed["x"])
    for data in (feed, str(tmp_path / "d.npz"), tmp_path / "d.npy", lambda: feed):
        for batch in (1, 8):
            feeds = open_feeds(proto, data, batch)
            for _ in range(2):  # passes
                assert [array["x"].shape for array in feeds] == [feed["x"].shape]


def test_weak_mixing_is_found_in_quantized_models() -> None:
    """Q/DQ models of sequences and of rows are distinguished, although its values move by whole steps."""
    whole = [MIXED["recurrent"], MIXED["sequence to class"]]
    for text in (*whole, BATCHED["recurrent, batch first"]):
        proto = made(text)
        data = feeds_of(proto, 12, 8)
        sizes = [len(feed["x"]) for feed in open_feeds(plain_quantize(proto, data).qdq, data)]
        assert sizes == ([12] * 8 if text in whole else [1] * 96), text


@pytest.mark.whole
def test_every_command_keeps_sequences_whole(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """Whatever the batch, each command says it, and the result is the same as with --batch 0."""
    proto = made(MIXED["recurrent"])
    onnx.save(proto, tmp_path / "m.onnx")
    (tmp_path / "d").mkdir()
    for number, feed in enumerate(feeds_of(proto, 20, 32)):
        np.savez(tmp_path / "d" / f"{number:02}.npz", **feed)
    model, data = str(tmp_path / "m.onnx"), ["--data", str(tmp_path / "d")]
    assert main(["quantize", model, *data, "-o", str(tmp_path / "qdq.onnx"), "--batch", "0"]) == 0
    qdq = str(tmp_path / "qdq.onnx")
    commands = {
        "quantize": ["quantize", model, *data, "-o", "OUT.onnx"],
        "observe": ["observe", model, *data, "-o", "OUT.npz"],
        "moments": ["observe", "--moments", model, *data, "--rounding", "gptq", "-o", "OUT.npz"],
        "sensitivity": ["sensitivity", model, *data, "-o", "OUT.json"],
        "evaluate": ["evaluate", model, qdq, *data, "--json"],
        "compare": ["compare", qdq, *data, "--json"],
    }
    for name, words in commands.items():
        results = []
        for batch in ("0", "1", "4"):
            file = tmp_path / f"{name}{batch}"
            line = [str(file) + word[3:] if word.startswith("OUT") else word for word in words]
            capfd.readouterr()
            assert main([*line, "--batch", batch]) == 0, name
            said = capfd.readouterr()
            assert said.err.count("stay whole, as with --batch 0") == (batch != "0"), (name, said.err)
            written = [one.read_bytes() for one in tmp_path.glob(f"{name}{batch}.*")]
            results.append(written or said.out)
        assert results[0] == results[1] == results[2], name


def test_a_graph_in_arrays_of_unequal_size(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """One graph in one file is not a number of samples: the error names --batch 0, which takes it."""
    proto = made(MIXED["graph"])
    onnx.save(proto, tmp_path / "m.onnx")
    x = RNG.normal(size=(7, 8)).astype(np.float32)
    np.savez(tmp_path / "d.npz", x=x, a=RNG.integers(0, 7, 20), b=RNG.integers(0, 7, 20))
    line = f"observe {tmp_path}/m.onnx --data {tmp_path}/d.npz -o {tmp_path}/s.npz".split()
    assert main(line) == 1 and "--batch 0" in capfd.readouterr().err
    assert main([*line, "--batch", "0"]) == 0


def test_pairs_of_nodes_are_whole() -> None:
    """One array is whole if some of its rows do not run and another axis has the name of axis 0."""
    proto = made("g (float[N,8] x, float[N,N] p) => (float[N,8] y) { a = MatMul (x, w) y = MatMul (p, a) }")
    (feed,) = open_feeds(proto, {"x": np.ones((7, 8), np.float32), "p": np.eye(7, dtype=np.float32)})
    assert feed["p"].shape == (7, 7)


def test_a_run_that_fails_names_the_option() -> None:
    """A window over time that is larger than the rows that are tried: the error has the remedy."""
    text = MIXED["convolution along time"]
    proto = build(text, {"kernel": small(8, 8, 9)})
    (feed,) = feeds_of(proto, 50, 1)
    with pytest.raises(DataError, match="cannot run on x .*--batch 0"):
        onnxfq.quantize(proto, feed)
    onnxfq.quantize(proto, [feed] * 4)  # each element is a whole feed, which can run


def test_sure_data_costs_no_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """Feeds of one row that are run alone, and a fixed axis 0, need no proof."""
    monkeypatch.setattr(
        "onnxfq.stages.input_axes.Session", lambda *_, **__: pytest.fail("a session was opened")
    )
    proto = made(BATCHED["rows"])
    assert len([*open_feeds(proto, feeds_of(proto, 1, 40))]) == 40
    fixed = build("g (float[2,8] x) => (float[2,8] y) { y = Relu (x) }", {})
    assert len([*open_feeds(fixed, {"x": np.ones((40, 8), np.float32)})]) == 20
    logging.getLogger("onnxfq").handlers.clear()
