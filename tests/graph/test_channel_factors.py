"""Channel factors: the outputs keep their bits, whatever the factors, and what cannot pass them on blocks."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import onnx
import pytest
from builders import assert_same_outputs, build_used, feed_for, scalars, weights
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from random_graphs import random_feed, random_models

from onnxfq.graph.channels import Analysis, analyze_channels
from onnxfq.graph.channels.ties import reshape_ids
from onnxfq.graph.io.load import load
from onnxfq.numerics.metrics import ErrorSums
from onnxfq.passes.equalize import fold_factors, inexact_folds
from onnxfq.runtime.session import Session

CONV = "c = Conv <pads = [1,1,1,1]> (x, w0, b0)"
IMAGE, ROWS = "float[N,3,8,8] x", "float[N,5,6] x"
SHAPES = {"w0": (8, 3, 3, 3), "b0": (8,), "w1": (4, 8, 3, 3), "w2": (4, 8, 1, 1), "p": (8, 1, 1), "v": (8,)}
SHAPES |= {"wd": (8, 1, 3, 3), "wt": (8, 4, 2, 2), "w16": (4, 16, 1, 1), "wq": (4, 2, 1, 1), "wf": (512, 5)}
SHAPES |= {"m0": (6, 8), "m2": (6, 8), "mb": (8,), "m1": (8, 4), "g": (8,), "m8": (8, 8), "g2": (4, 8)}
SHAPES |= {"e": (8, 8)}
LINEAR = "h = MatMul (x, m0) c = Add (h, mb)"

# Name: nodes behind the first operator of an image.
IMAGES = {
    "relu": "r = Relu (c) y = Conv (r, w1)",
    "leaky": "r = LeakyRelu <alpha = 0.1> (c) y = Conv (r, w1)",
    "prelu": "r = PRelu (c, p) y = Conv (r, w1)",
    "clip at 0": "r = Clip (c, zero) y = Conv (r, w1)",
    "pools": "r = MaxPool <kernel_shape = [2,2]> (c) s = AveragePool <kernel_shape = [2,2]> (r) "
    "g0 = GlobalAveragePool (s) y = Conv (g0, w2)",
    "pad": "r = Pad (c, pads) y = Conv (r, w1)",
    "padded channels": "r = Pad (c, pads8) y = Conv (r, w16)",
    "residual": "d = Conv (c, wd8) r = Relu (d) s = Add (r, c) y = Conv (s, w2)",
    "concat": "d = Conv (c, wd8) r = Concat <axis = 1> (c, d) y = Conv (r, w16)",
    "slice": "r = Slice (c, two, four, one) y = Conv (r, wq)",
    "split": "r, s = Split <axis = 1> (c) t = Concat <axis = 1> (s, r) y = Conv (t, w1)",
    "shuffle": "r = DepthToSpace <blocksize = 2> (c) y = Conv (r, wq)",
    "shuffle crd": 'r = DepthToSpace <blocksize = 2, mode = "CRD"> (c) y = Conv (r, wq)',
    "depthwise": "d = Conv <group = 8> (c, wd) r = Relu (d) y = Conv (r, w1)",
    "groups": "d = Conv <group = 2> (c, wg) y = Conv (d, w1)",
    "transposed": "d = ConvTranspose (c, wt) y = Conv (d, wq4)",
    "batch norm": "d = BatchNormalization (c, v, b0, g, positive) r = Relu (d) y = Conv (r, w1)",
    "instance norm": "d = InstanceNormalization (c, v, b0) y = Conv (d, w1)",
    "resize": "d = Resize (c, none, scales) y = Conv (d, w1)",
    "flatten": "d = Flatten (c) y = Gemm (d, wf)",
    "mean": "d = ReduceMean <axes = [2,3], keepdims = 0> (c) y = Gemm (d, m1)",
}
# And of rows.
TOKENS = {
    "mlp": "r = Relu (c) y = MatMul (r, m1)",
    "transposed weight": "r = Relu (c) m1t = Transpose <perm = [1,0]> (g2) y = MatMul (r, m1t)",
    "gate": "k = MatMul (x, m2) s = Sigmoid (k) r = Mul (c, s) y = MatMul (r, m1)",
    "layer norm": "r = LayerNormalization (c, g, mb) y = MatMul (r, m1)",
    "gelu": "k = Erf (c) k1 = Add (k, single) k2 = Mul (c, k1) r = Mul (k2, half) y = MatMul (r, m1)",
    "division": "k = Tanh (c) r = Div (k, v) y = MatMul (r, m1)",
    "values": "vv = MatMul (x, m2) vh = Reshape (vv, heads) vt = Transpose <perm = [0,2,1,3]> (vh) "
    "h0 = Reshape (c, heads) v0 = Transpose <perm = [0,2,1,3]> (h0) "
    "k0 = Transpose <perm = [0,2,3,1]> (h0) q = MatMul (v0, k0) "
    "a = Softmax (q) o = MatMul (a, vt) o1 = Transpose <perm = [0,2,1,3]> (o) "
    "o2 = Reshape (o1, whole) y = MatMul (o2, m1)",
    "shared vector": "r = LayerNormalization (c, g, mb) s = LayerNormalization (c, g, mb) "
    "y1 = MatMul (r, m1) y2 = MatMul (s, m1) y = Add (y1, y2)",
    "shared and turned": "r = MatMul (c, m8) t = Transpose <perm = [1,0]> (m8) s = MatMul (r, t) "
    "k = MatMul (s, e) y = MatMul (k, m1)",
}
TWO = {"residual", "concat", "depthwise", "groups", "transposed", "shared vector"}
"""In these two operators with weights read channels with free factors, in others one."""


def network(name: str) -> onnx.ModelProto:
    """Return a network of the tables; its attention reads values of a separate projection."""
    given_, first, table = (IMAGE, CONV, IMAGES) if name in IMAGES else (ROWS, LINEAR, TOKENS)
    arrays = {key: weights(*shape, seed=number) for number, (key, shape) in enumerate(SHAPES.items())}
    arrays |= {"wd8": weights(8, 8, 1, 1), "wg": weights(8, 4, 1, 1), "wq4": weights(2, 4, 1, 1)}
    arrays |= {"positive": np.abs(weights(8)) + 1}
    arrays |= scalars(np.float32, half=0.5, single=1, zero=0, scales=[1, 1, 2, 2], none=[])
    arrays |= scalars(np.int64, pads=[0, 0, 1, 1, 0, 0, 2, 0], pads8=[0, 3, 0, 0, 0, 5, 0, 0])
    arrays |= scalars(np.int64, one=[1], two=[2], four=[4], heads=[0, 0, 2, 4], whole=[0, 0, 8])
    return build_used(f"g ({given_}) => (float y) {{ {first} {table[name]} }}", arrays)


def random_factors(analysis: Analysis, seed: int, most: int) -> np.ndarray:
    """Return exponents from -most to most for every free variable."""
    exponents = np.zeros(analysis.count, np.int64)
    rng = np.random.default_rng(seed)
    for group in analysis.groups:
        exponents[group.classes] = rng.integers(-most, most + 1, len(group.classes))
    return exponents


@pytest.mark.parametrize("name", [*IMAGES, *TOKENS])
def test_outputs_keep_their_bits(name: str) -> None:
    """Random powers of two up to 2^11 in every free channel change no bit of the output."""
    model = load(network(name))
    analysis = analyze_channels(model)
    readers = sum(len(group.readers) for group in analysis.groups)
    assert readers == 1 + (name in TWO), analysis.blocked
    scaled = fold_factors(model, analysis, random_factors(analysis, 3, 11))
    onnx.checker.check_model(scaled.proto, full_check=True)
    assert len(scaled.proto.graph.node) == len(model.proto.graph.node)
    assert scaled.proto.graph.SerializeToString() != model.proto.graph.SerializeToString()
    assert_same_outputs(model.proto, scaled.proto, feed_for(model.proto, count=2))


@pytest.mark.sample
@pytest.mark.parametrize(
    ("nodes", "why"),
    [
        (f"{CONV} r = Sigmoid (c) y = Conv (r, w1)", "Sigmoid"),
        (f"{CONV} r = Clip (c, zero, one) y = Conv (r, w1)", "Clip"),
        (f"{CONV} r = Add (c, single) y = Conv (r, w1)", "Add"),
        (f"{CONV} r = Pad (c, pads, single) y = Conv (r, w1)", "Pad"),
        (f"{CONV} d = Conv <pads = [1,1,1,1]> (c, w8) r = Conv <pads = [1,1,1,1]> (d, w8) "
         "t = Softmax <axis = 1> (d) y = Add (r, t)", ""),
    ],
)  # fmt: skip
def test_what_does_not_pass_factors_on_blocks(nodes: str, why: str) -> None:
    """An operator without f(s x) = s f(x), and one that also reads elsewhere, leave the factors at 1."""
    arrays = {key: weights(*shape) for key, shape in SHAPES.items()} | {"w8": weights(8, 8, 3, 3)}
    arrays |= scalars(np.float32, zero=0, one=6, single=1) | {"pads": np.int64([0, 0, 1, 1, 0, 0, 1, 1])}
    model = load(build_used(f"g ({IMAGE}) => (float y) {{ {nodes} }}", arrays))
    analysis = analyze_channels(model)
    assert not [group for group in analysis.groups if group.readers and group.writers]
    assert why in " ".join(analysis.blocked.values())


@settings(max_examples=30, deadline=None, suppress_health_check=list(HealthCheck))
@given(random_models(), st.integers(0, 99))
def test_random_graphs_keep_their_bits(model: onnx.ModelProto, seed: int) -> None:
    """Random graphs with bodies, shared weights and odd names compute the same bits with random factors."""
    loaded = load(model)
    analysis = analyze_channels(loaded)
    scaled = fold_factors(loaded, analysis, random_factors(analysis, seed, 6))
    assert_same_outputs(loaded.proto, scaled.proto, random_feed(model, 1, True))


SIDES = {"yolox_nano": 416, "ppocrv3_det_op12": 64, "resnet20_dynamo_op20_ext": 32}
MODELS = sorted(Path(os.environ.get("ONNXFQ_MODELS", "missing")).glob("*/*.onnx"))


@pytest.mark.parametrize("path", [path for path in MODELS if "silero" not in path.stem], ids=lambda p: p.stem)
def test_real_models_keep_their_function(path: Path) -> None:
    """Real models compute the same bits with factors up to 2^8, float16 ones with factors up to 2^1."""
    model = load(path)
    half = any(tensor.data_type == onnx.TensorProto.FLOAT16 for tensor in model.proto.graph.initializer)
    analysis = analyze_channels(model)
    factors = random_factors(analysis, 1, 1 if half else 8)
    scaled = fold_factors(model, analysis, factors)
    assert not inexact_folds(model, analysis, factors)
    feed = feed_for(model.proto, count=SIDES.get(path.stem, 8))
    if not half:
        assert_same_outputs(model.proto, scaled.proto, feed)
        return
    results = (Session(one.proto, 1, exact=True).run(feed) for one in (model, scaled))
    for one, other in zip(*results, strict=True):
        # Small weights of float16 lose bits, and the model rounds every tensor to 11 bits.
        assert ErrorSums.from_arrays(one, other).sqnr_db > 66


@pytest.mark.parametrize(
    ("before", "after", "at", "same"),
    [
        ((2, 12), (2, 3, 4), (1,), True),
        ((None, None, 12), (None, None, 3, 4), (2,), True),
        ((None, 3, 5, 4), (None, 5, 12), (1, 3), False),
        ((None, 3, 2, 2), (None, 12), (1,), True),
        ((12,), (1, 12), (0,), True),
        ((1, 12, 1, 1), (12,), (1,), True),
        ((None, 4, None), (None, None), (1,), False),
    ],
)
def test_ids_follow_a_reshape(
    before: tuple[int | None, ...], after: tuple[int | None, ...], at: tuple[int, ...], same: bool
) -> None:
    """NumPy's reshape of the expanded variables is the authority, where the sizes are known."""
    shape = [size if place in at else 1 for place, size in enumerate(before)]
    ids = np.arange(1, 1 + int(np.prod(shape))).reshape(shape)
    found = reshape_ids(ids, before, after)
    if not same:
        open_sizes = None in before
        assert found is None or not open_sizes or 5 in before
        return
    assert found is not None
    full_before = [2 if size is None else size for size in before]
    full_after = [2 if size is None else size for size in after]
    want = np.broadcast_to(ids, full_before).reshape(full_after)
    np.testing.assert_array_equal(np.broadcast_to(found, full_after), want)
