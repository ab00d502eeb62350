"""Rounds of planted faults drawn by a seed, in networks that no rule was written on.

A round is drawn before the rules that it scores, and another seed is another round.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache

import numpy as np
from builders import build
from diagnosed_networks import BUILDERS, Network, Weights, frames, image, network, normalized_image, tokens
from diagnosis_score import SAMPLES, sqnr_db
from onnxruntime.capi.onnxruntime_pybind11_state import InvalidArgument, InvalidGraph
from planted_cases import Case, centered, raw_pixels, swapped_channels, times_255
from planted_faults import (
    Fault,
    double,
    foreign,
    foreign_weight,
    inside_fusion,
    left_in_float,
    lost_bias,
    missing_pair,
    narrow,
    one_sided,
    saturated_bias,
    unsigned,
    wide,
)
from quantized_files import sound

COUNT = 40
"""Files of a round."""

HARMFUL_DB = 1.0
"""Loss of a fault of numbers that counts as planted: of a smaller one there is nothing to find."""

Rng = np.random.Generator


def strided() -> Network:
    """A residual network with a projection in its shortcut and a MaxPool."""
    w = Weights(11)
    w.layers("stem 12 3 5 5, a 12 12 3 3, b 12 12 3 3, c 20 12 3 3, d 20 20 3 3, short 20 12 1 1, head 7 20")
    text = """g (float[N,3,16,16] x) => (float[N,7] y) {
        [stem] s = Conv <pads=[2,2,2,2]> (x, stem_w, stem_b) [stem_relu] sr = Relu (s)
        [pool] p = MaxPool <kernel_shape=[2,2], strides=[2,2]> (sr)
        [a] a1 = Conv <pads=[1,1,1,1]> (p, a_w, a_b) [a_relu] a2 = Relu (a1)
        [b] b1 = Conv <pads=[1,1,1,1]> (a2, b_w, b_b)
        [sum1] m = Add (b1, p) [sum1_relu] mr = Relu (m)
        [c] c1 = Conv <pads=[1,1,1,1], strides=[2,2]> (mr, c_w, c_b) [c_relu] c2 = Relu (c1)
        [d] d1 = Conv <pads=[1,1,1,1]> (c2, d_w, d_b)
        [short] e = Conv <strides=[2,2]> (mr, short_w, short_b)
        [sum2] n = Add (d1, e) [sum2_relu] nr = Relu (n)
        [mean] q = GlobalAveragePool (nr) [flat] f = Flatten (q)
        [head] y = Gemm <transB=1> (f, head_w, head_b) }"""
    return Network(build(text, w.arrays), normalized_image)


def decoder() -> Network:
    """A network from picture to picture: down, up by a transposed convolution, and a Concat."""
    w = Weights(12)
    w.layers("first 8 3 3 3, down 16 8 3 3, mid 16 16 3 3")
    w.layer("up", 16, 8, 2, 2, fan_in=16)
    w.arrays["up_b"] = w.arrays["up_b"][:8]
    w.layers("join 8 16 3 3, last 2 8 1 1")
    text = """g (float[N,3,16,16] x) => (float[N,2,16,16] y) {
        [first] a = Conv <pads=[1,1,1,1]> (x, first_w, first_b) [first_relu] ar = Relu (a)
        [down] b = Conv <pads=[1,1,1,1], strides=[2,2]> (ar, down_w, down_b) [down_relu] br = Relu (b)
        [mid] c = Conv <pads=[1,1,1,1]> (br, mid_w, mid_b) [mid_leaky] cr = LeakyRelu <alpha=0.1> (c)
        [up] u = ConvTranspose <strides=[2,2]> (cr, up_w, up_b) [up_relu] ur = Relu (u)
        [both] j = Concat <axis=1> (ur, ar)
        [join] k = Conv <pads=[1,1,1,1]> (j, join_w, join_b) [join_relu] kr = Relu (k)
        [last] y = Conv (kr, last_w, last_b) }"""
    return Network(build(text, w.arrays), image)


def mixer() -> Network:
    """Two blocks that mix tokens and features in turn, behind normalisation, without attention."""
    w = Weights(13)
    for at in ("1", "2"):
        w.matrix(f"t{at}", 8, 8)
        w.matrix(f"u{at}", 16, 24)
        w.matrix(f"v{at}", 24, 16)
    w.matrix("head", 16, 5)
    body, before = "", "x"
    for at in ("1", "2"):
        body += f"""
            [norm{at}] n{at} = LayerNormalization <axis=-1> ({before}, g, z)
            [turn{at}] o{at} = Transpose <perm=[0,2,1]> (n{at})
            [t{at}] p{at} = MatMul (o{at}, t{at}_w) [t{at}_add] q{at} = Add (p{at}, t{at}_b)
            [back{at}] r{at} = Transpose <perm=[0,2,1]> (q{at})
            [skip{at}] s{at} = Add ({before}, r{at})
            [u{at}] a{at} = MatMul (s{at}, u{at}_w) [u{at}_add] b{at} = Add (a{at}, u{at}_b)
            [act{at}] c{at} = Relu (b{at})
            [v{at}] d{at} = MatMul (c{at}, v{at}_w) [v{at}_add] e{at} = Add (d{at}, v{at}_b)
            [sum{at}] h{at} = Add (s{at}, e{at})"""
        before = f"h{at}"
    text = f"""g (float[N,8,16] x) => (float[N,8,5] y) {{ {body}
        [head] i = MatMul ({before}, head_w) [head_add] y = Add (i, head_b) }}"""
    ends = {"g": np.ones(16, np.float32), "z": np.zeros(16, np.float32)}
    return Network(build(text, w.arrays | ends), tokens)


def gated() -> Network:
    """Inverted residuals whose channels are weighed by a gate of the whole picture, with HardSwish."""
    w = Weights(14)
    w.layers(
        "stem 10 3 3 3, up 20 10 1 1, dw 20 1 3 3, less 5 20 1 1, more 20 5 1 1, down 10 20 1 1, "
        "last 16 10 1 1, head 6 16"
    )
    text = """g (float[N,3,16,16] x) => (float[N,6] y) {
        [stem] s = Conv <pads=[1,1,1,1], strides=[2,2]> (x, stem_w, stem_b) [stem_hs] sr = HardSwish (s)
        [up] a = Conv (sr, up_w, up_b) [up_relu] ar = Relu (a)
        [dw] b = Conv <pads=[1,1,1,1], group=20> (ar, dw_w, dw_b) [dw_relu] br = Relu (b)
        [mean] c = GlobalAveragePool (br)
        [less] d = Conv (c, less_w, less_b) [less_relu] dr = Relu (d)
        [more] e = Conv (dr, more_w, more_b) [gate] eg = Sigmoid (e)
        [times] f = Mul (br, eg)
        [down] h = Conv (f, down_w, down_b)
        [sum] i = Add (h, sr)
        [last] k = Conv (i, last_w, last_b) [last_relu] kr = Relu (k)
        [pool] p = GlobalAveragePool (kr) [flat] q = Flatten (p)
        [head] y = Gemm <transB=1> (q, head_w, head_b) }"""
    return Network(build(text, w.arrays), image)


def dilated() -> Network:
    """Convolutions over time with growing dilation, each with a residual sum."""
    w = Weights(15)
    w.layer("in", 12, 12, 1)
    for name in ("a", "b", "c"):
        w.layer(name, 12, 12, 3)
    w.layer("out", 3, 12, 1)
    body, before = "", "xi"
    for at, name in enumerate("abc"):
        pad = 2**at
        body += f"""
            [{name}] {name}1 = Conv <pads=[{pad},{pad}], dilations=[{pad}]> ({before}, {name}_w, {name}_b)
            [{name}_relu] {name}2 = Relu ({name}1)
            [{name}_sum] {name}3 = Add ({name}2, {before})"""
        before = f"{name}3"
    text = f"""g (float[N,10,12] x) => (float[N,3,10] y) {{
        [turn] xt = Transpose <perm=[0,2,1]> (x)
        [in] xi = Conv (xt, in_w, in_b) {body}
        [out] y = Conv ({before}, out_w, out_b) }}"""
    return Network(build(text, w.arrays), frames)


_UNSEEN = {one.__name__: one for one in (strided, decoder, mixer, gated, dilated)}
BUILDERS.update(_UNSEEN)
NETS = tuple(_UNSEEN)

MAKERS = ("qdq", "qdq-tensor", "qdq-signed", "qdq-percentile", "qoperator", "own", "own-cpu")
PICTURES = {
    "strided": (times_255, raw_pixels, swapped_channels),
    "decoder": (times_255, centered, swapped_channels),
    "gated": (times_255, centered),
}


def _place(rng: Rng) -> int:
    return int(rng.integers(12))


_DRAWN: dict[str, Callable[[Rng], Fault]] = {
    "wide": lambda rng: wide(_place(rng), float(rng.uniform(4, 60))),
    "wide-weak": lambda rng: wide(_place(rng), float(rng.uniform(2, 4))),
    "narrow": lambda rng: narrow(_place(rng), float(rng.uniform(4, 10))),
    "narrow-weak": lambda rng: narrow(_place(rng), float(rng.uniform(2, 4))),
    "one-sided": lambda rng: one_sided(_place(rng)),
    "foreign": lambda rng: foreign(_place(rng), _place(rng)),
    "unsigned": lambda rng: unsigned(_place(rng)),
    "weight": lambda rng: foreign_weight(_place(rng), float(rng.choice([0.3, 0.5, 2, 4]))),
    "bias": lambda rng: lost_bias(_place(rng)),
    "full-bias": lambda rng: saturated_bias(_place(rng)),
    "double": lambda rng: double(_place(rng), float(rng.uniform(1.2, 3))),
    "inside": lambda rng: inside_fusion("Relu"),
    "missing": lambda rng: missing_pair,
    "left": lambda rng: left_in_float(_place(rng)),
}
_SHAPES = ("inside", "missing", "left", "double")
# Faults of the shape of a file, which may cost nothing.


def _cost_db(case: Case) -> float:
    """Return the SQNR that the faults of a case cost; nan for a file that a fault cannot be planted in."""
    net, feeds = network(case.net), network(case.net).feeds(SAMPLES, seed=2)
    try:
        damaged = sqnr_db(net.proto, case.plant().proto, feeds)
    except (AssertionError, IndexError, KeyError, StopIteration, TypeError, ValueError, ZeroDivisionError):
        return math.nan
    except (InvalidArgument, InvalidGraph):
        return math.nan
    return sqnr_db(net.proto, sound(case.net, case.maker), feeds) - damaged


@cache
def draw_round(seed: int) -> dict[str, Case]:
    """Return COUNT files: each kind of fault in turn, in a network and by a tool that are drawn."""
    rng = np.random.default_rng(seed)
    kinds = [*_DRAWN, "change", "few", "spread", "two"]
    cases: dict[str, Case] = {}
    while len(cases) < COUNT:
        kind = kinds[len(cases) % len(kinds)]
        net, maker = str(rng.choice(NETS)), str(rng.choice(MAKERS))
        if kind == "change":
            net = str(rng.choice(list(PICTURES)))
            case = Case(net, maker, change=PICTURES[net][int(rng.integers(len(PICTURES[net])))])
        elif kind == "few":
            case = Case(net, maker, samples=1)
        elif kind == "spread":
            layer = {"strided": "a", "decoder": "mid", "mixer": "u1", "gated": "up", "dilated": "b"}[net]
            case = Case(net, "qdq-tensor", spread=(layer, float(rng.uniform(20, 60))))
        elif kind == "two":
            case = Case(
                net, maker, tuple(_DRAWN[str(k)](rng) for k in rng.choice(["wide", "narrow", "bias"], 2))
            )
        else:
            case = Case(net, maker, (_DRAWN[kind](rng),))
        cost = _cost_db(case)
        if cost >= HARMFUL_DB or (kind in _SHAPES and not math.isnan(cost)):
            cases[f"{len(cases):02} {net}-{case.maker}-{kind}"] = case
    return cases


def sound_cases() -> dict[str, Case]:
    """Return the sound file of each network by each tool."""
    return {f"{net}-{maker}": Case(net, maker) for net in NETS for maker in MAKERS}
