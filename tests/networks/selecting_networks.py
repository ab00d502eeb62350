"""Networks most of which lies behind a choice: experts, queries of a detector, codes of a book, durations."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import onnx
from builders import Arrays, build, open_as_written, scalars
from numpy.typing import NDArray

from onnxfq.graph.signature import with_outputs


def normal(*shape: int, seed: int, scale: float = 1.0) -> NDArray[np.float32]:
    """Return random float32 of a normal distribution."""
    return (np.random.default_rng([seed, *shape]).normal(size=shape) * scale).astype(np.float32)


@dataclass(frozen=True)
class SelectingNetwork:
    """A network that chooses.

    Attributes:
        proto: the float model.
        shape: of a sample of its input x.
        choices: tensors that it gives to other models.
        outputs: those that lie behind them.
    """

    proto: onnx.ModelProto
    shape: tuple[int, ...]
    choices: tuple[str, ...]
    outputs: tuple[str, ...]

    def data(self, samples: int, seed: int) -> Arrays:
        """Return samples that decide clearly and unclearly."""
        return {"x": normal(samples, *self.shape, seed=seed)}


def open_run(proto: onnx.ModelProto, names: Sequence[str]) -> Callable[[Arrays], list[NDArray[np.generic]]]:
    """Return what runs a model in ONNX Runtime, without graph optimization, and returns tensors."""
    session = open_as_written(with_outputs(proto, names))
    return lambda feed: list(session.run(list(names), feed))


def run(proto: onnx.ModelProto, feed: Arrays, names: Sequence[str]) -> list[NDArray[np.generic]]:
    """Return tensors of one run."""
    return open_run(proto, names)(feed)


def sqnr_where_equal(network: SelectingNetwork, file: onnx.ModelProto, feed: Arrays) -> tuple[float, int]:
    """Return the SQNR in dB of the worst output behind choices, and the samples that count.

    These are the samples for which both models choose the same by themselves.
    """
    signal = np.zeros(len(network.outputs))
    noise, count = signal.copy(), 0
    split, names = len(network.choices), [*network.choices, *network.outputs]
    runs = [open_run(one, names) for one in (network.proto, file)]
    for x in feed["x"]:
        want, have = (one({"x": x[None]}) for one in runs)
        if all(np.array_equal(a, b) for a, b in zip(want[:split], have[:split], strict=True)):
            count += 1
            for at, (a, b) in enumerate(zip(want[split:], have[split:], strict=True)):
                signal[at] += np.square(a, dtype=np.float64).sum()
                noise[at] += np.square(a - b, dtype=np.float64).sum()
    with np.errstate(divide="ignore"):  # weights alone may leave a network as it is
        return float(np.min(10 * np.log10(signal / noise))), count


def detector() -> SelectingNetwork:
    """A detector with queries: the best 8 of 40 proposals go through a decoder."""
    text = """g (float[N,40,32] x) => (float[N,8,4] boxes, float[N,8,6] classes) {
        e0 = MatMul (x, w0) e1 = Relu (e0) e = MatMul (e1, w1)
        s = MatMul (e, ws) m = ReduceMax <axes = [2], keepdims = 0> (s) v, i = TopK <axis = 1> (m, eight)
        iu = Unsqueeze (i, two) ie = Expand (iu, wide) q = GatherElements <axis = 1> (e, ie)
        qt = MatMul (q, wq) et = Transpose <perm = [0, 2, 1]> (e) a = MatMul (qt, et) p = Softmax (a)
        c = MatMul (p, e) d = Add (c, q) d1 = MatMul (d, w2) d2 = Relu (d1) d3 = MatMul (d2, w3)
        d4 = Add (d3, d) b0 = MatMul (d4, wb) boxes = Sigmoid (b0) classes = MatMul (d4, wc) }"""
    constants: Arrays = {
        "w0": normal(32, 64, seed=1, scale=0.18),
        "w1": normal(64, 32, seed=2, scale=0.18),
        "ws": normal(32, 6, seed=3, scale=0.2),
        **scalars(np.int64, eight=[8], two=[2], wide=[1, 8, 32]),
        "wq": normal(32, 32, seed=4, scale=0.05),
        "w2": normal(32, 64, seed=5, scale=0.18),
        "w3": normal(64, 32, seed=6, scale=0.18),
        "wb": normal(32, 4, seed=7, scale=0.2),
        "wc": normal(32, 6, seed=8, scale=0.2),
    }
    return SelectingNetwork(build(text, constants), (40, 32), ("i",), ("boxes", "classes"))


def codec() -> SelectingNetwork:
    """A codec: the nearest of 32 vectors of a book goes through a decoder of heavy channels."""
    book = normal(32, 8, seed=9)
    text = """g (float[N,4,64] x) => (float[N,4,64] y) {
        c1 = Conv <pads = [1, 1]> (x, k1) r1 = Relu (c1) c2 = Conv <pads = [1, 1], strides = [2]> (r1, k2)
        t = Transpose <perm = [0, 2, 1]> (c2) dot = MatMul (t, turned) far = Mul (dot, minus)
        dist = Add (far, sizes) code = ArgMin <axis = 2, keepdims = 0> (dist)
        z = Gather <axis = 0> (book, code) zt = Transpose <perm = [0, 2, 1]> (z)
        u = ConvTranspose <strides = [2], pads = [1, 1]> (zt, k3) r2 = Relu (u)
        y = Conv <pads = [1, 1]> (r2, k4) }"""
    large = np.r_[np.float32([30]), np.ones(15, np.float32)]
    constants: Arrays = {
        "k1": normal(16, 4, 3, seed=1, scale=0.3),
        "k2": normal(8, 16, 3, seed=2, scale=0.2),
        "turned": np.ascontiguousarray(book.T),
        "minus": np.float32(-2),
        "sizes": np.square(book).sum(1).astype(np.float32),
        "book": book,
        "k3": normal(8, 16, 4, seed=3, scale=0.3) * large[:, None],
        "k4": normal(4, 16, 3, seed=4, scale=0.2) / large[:, None],
    }
    return SelectingNetwork(build(text, constants), (4, 64), ("code",), ("y",))


def experts() -> SelectingNetwork:
    """Two experts whose inner channels are heavy; the first value of a token decides between them."""
    heavy = np.r_[np.float32([30]), np.ones(63, np.float32)]
    router = np.concatenate([np.float32([[10, -10]]), np.zeros((15, 2), np.float32)])
    constants: Arrays = {"zero": np.float32(0), "router": router, "flat": np.int64([-1, 16])}
    nodes, last = "", "zeros"
    for at in range(2):
        nodes += f"""e{at} = Equal (best, i{at}) n{at} = NonZero (e{at})
            t{at} = Transpose <perm = [1, 0]> (n{at})
            g{at} = GatherND (f, t{at}) h{at} = MatMul (g{at}, a{at}) r{at} = Relu (h{at})
            o{at} = MatMul (r{at}, b{at}) s{at} = ScatterND ({last}, t{at}, o{at}) """
        constants |= {
            f"i{at}": np.int64(at),
            f"a{at}": normal(16, 64, seed=at, scale=0.3) * heavy,
            f"b{at}": normal(64, 16, seed=9 + at, scale=0.3) / heavy[:, None],
        }
        last = f"s{at}"
    text = f"""g (float[N,9,16] x) => (float[N,9,16] y) {{ f = Reshape (x, flat) l = MatMul (f, router)
        best = ArgMax <axis = 1, keepdims = 0> (l) zeros = Mul (f, zero) {nodes} h = Shape (x)
        y = Reshape ({last}, h) }}"""
    return SelectingNetwork(build(text, constants), (9, 16), ("best",), ("y",))


def voice() -> SelectingNetwork:
    """A voice that predicts how many frames each of 12 sounds takes, one sample at a time."""
    text = """g (float[1,12,16] x) => (float[1,16,F] y) {
        h = MatMul (x, w1) r = Relu (h) d = MatMul (r, wd) dd = Add (d, bd) e = Exp (dd) rd = Round (e)
        sq = Squeeze (rd, two) cs = CumSum (sq, one) tot = ReduceMax <keepdims = 0> (cs)
        ti = Cast <to = 7> (tot) fr = Range (z0, ti, s1) frf = Cast <to = 1> (fr)
        f1 = Unsqueeze (frf, both) c1 = Unsqueeze (cs, two)
        lt = Less (f1, c1) ltf = Cast <to = 1> (lt) c0 = Sub (cs, sq) c0u = Unsqueeze (c0, two)
        ge = Less (f1, c0u) gef = Cast <to = 1> (ge) al = Sub (ltf, gef) rt = Transpose <perm = [0, 2, 1]> (r)
        up = MatMul (rt, al) k1 = Conv <pads = [1, 1]> (up, a1) k2 = Relu (k1)
        y = Conv <pads = [1, 1]> (k2, a2) }"""
    constants: Arrays = {
        "w1": normal(16, 16, seed=1, scale=0.3),
        "wd": normal(16, 1, seed=2, scale=0.15),
        "bd": np.float32([1.5]),
        **scalars(np.int64, two=[2], both=[0, 1], one=1, z0=0, s1=1),
        "a1": normal(16, 16, 3, seed=3, scale=0.2),
        "a2": normal(16, 16, 3, seed=4, scale=0.2),
    }
    return SelectingNetwork(build(text, constants), (12, 16), ("rd", "ti"), ("y",))


NETWORKS = {"detector": detector, "codec": codec, "experts": experts, "voice": voice}
