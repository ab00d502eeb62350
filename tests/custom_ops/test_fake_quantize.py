"""FakeQuantize four ways: NumPy = C++ kernel = operator in onnxruntime = onnxruntime's Q/DQ, to the bit."""

from __future__ import annotations

import keyword_numerics as numerics
import numpy as np
import pytest
from builders import build
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from loops import loop_over
from onnx import TensorProto, helper, numpy_helper

from onnxfq.numerics.qtypes import QTYPES, qtype_by_name
from onnxfq.runtime import kernels
from onnxfq.runtime.session import Session

SHAPE = (3, 5, 7)
# Every width that ONNX has, some that it lacks, and other limits.
INTEGERS = "int2 uint2 int3 int4 uint4 uint7 int8 uint8 int8[-127,127] int12 int16 uint16".split()
# name: scale's shape, axis, block_size; for x of SHAPE
LAYOUTS = {
    "per-tensor": ((), None, None),
    "one-element": ((1,), None, None),
    "axis0": ((3,), 0, None),
    "axis1": ((5,), 1, None),
    "axis2": ((7,), 2, None),
    "axis-1": ((7,), -1, None),
    "blocked0": ((2, 5, 7), 0, 2),
    "blocked1": ((3, 2, 7), 1, 3),
    "blocked2": ((3, 5, 4), 2, 2),
    "blocked2-whole": ((3, 5, 1), 2, 7),
}


def edge_values(scale: float, qmin: int, qmax: int) -> np.ndarray:
    """Halves, their neighbours, zeros, infinities, subnormals and both ends of the grid, float32 [105]."""
    steps = np.arange(-12, 13, dtype=np.float32) / 2
    ends = np.array([qmin - 1, qmin - 0.5, qmin, qmax, qmax + 0.5, qmax + 1], np.float32)
    grid = np.concatenate([steps, ends]) * np.float32(scale)
    special = np.array([0, -0.0, np.inf, -np.inf, 1e-45, -1e-45, 1e-39, 3e38, -3e38, 1e30, -1e30, 0.5])
    above, below = (np.nextafter(grid, np.float32(end)) for end in (np.inf, -np.inf))
    return np.concatenate([grid, above, below, special.astype(np.float32)])


def draw_params(rng, qtype, shape, symmetric):
    """Scales over four decades and zero points of the type."""
    scale = np.exp(rng.uniform(-7, 2, shape)).astype(np.float32)
    zero = np.zeros(shape) if symmetric else rng.integers(qtype.qmin, qtype.qmax, shape, endpoint=True)
    return scale, np.asarray(zero, np.int32)


@loop_over("symmetric", [True, False])
@loop_over("layout", LAYOUTS)
@loop_over("qtype", INTEGERS)
def test_four_ways_agree(ops, rng, same_bits, qtype, layout, symmetric):
    """Every type and granularity gives the same bits everywhere, on random and on edge values."""
    qtype = qtype_by_name(qtype)
    shape, axis, block_size = LAYOUTS[layout]
    scale, zero_point = draw_params(rng, qtype, shape, symmetric)
    spread = scale.mean() * (qtype.qmax - qtype.qmin)
    inputs = [rng.standard_normal(SHAPE).astype(np.float32) * np.float32(spread / 3)]
    inputs += [edge_values(float(s), qtype.qmin, qtype.qmax).reshape(SHAPE) for s in scale.flat[:3]]
    for x in inputs:
        where = {"qtype": qtype.name, "axis": axis, "block_size": block_size}
        expected = numerics.fake_quantize(x, scale, zero_point, **where)
        same_bits(kernels.fake_quantize(x, scale, zero_point, **where), expected)
        same_bits(ops.fake_quantize(x, scale, zero_point, **where), expected)
        if not qtype.full_range or qtype.onnx_type is None:
            continue
        # onnxruntime 1.31 converts to int32 before it saturates in its scalar code (blocks, 2 bits, 4 bits
        # along the last axis): from 2^31 steps on its result is undefined there, and not compared.
        scalar_code = block_size is not None or qtype.bits == 2 or (qtype.bits == 4 and axis in (2, -1))
        with np.errstate(over="ignore"):
            steps = np.abs(x / numerics.expand_params(scale, x.shape, axis=axis, block_size=block_size))
        compared = steps < 2**31 if scalar_code else np.full(x.shape, True)
        assert compared.sum() > 90
        same_bits(ops.qdq(x, scale, zero_point, **where)[compared], expected[compared])


@settings(max_examples=150)
@given(data=st.data())
def test_kernel_matches_numpy_on_anything(same_bits, data):
    """Shapes, granularities over several axes, types and values that nobody thought of."""
    qtype = data.draw(st.sampled_from(list(QTYPES.values())))
    shape = data.draw(hnp.array_shapes(min_dims=0, max_dims=4, min_side=0, max_side=6))
    blocks = [data.draw(st.integers(1, max(size, 1))) for size in shape]
    params = tuple(-(-size // block) for size, block in zip(shape, blocks, strict=True))
    # Only shapes whose own block comes back from ceil(size / params): others need block_size.
    own = [p > 0 and -(-n // -(-n // p)) == p for p, n in zip(params, shape, strict=True)]
    params = tuple(p if fits else min(p, 1) for p, fits in zip(params, own, strict=True))
    finite = st.floats(2.0**-100, 2.0**100, width=32)
    scale = data.draw(hnp.arrays(np.float32, params, elements=finite))
    zeros = st.just(0) if qtype.is_float else st.integers(int(qtype.qmin), int(qtype.qmax))
    zero_point = data.draw(hnp.arrays(np.int32, params, elements=zeros))
    x = data.draw(hnp.arrays(np.float32, shape, elements=st.floats(width=32)))
    options = {
        "qtype": qtype,
        "rounding": data.draw(st.sampled_from(list(numerics.ROUNDINGS))),
        "arithmetic": data.draw(st.sampled_from(list(numerics.ARITHMETICS))),
        "saturate": data.draw(st.booleans()),
    }
    expected = numerics.fake_quantize(x, scale, zero_point, **options)
    same_bits(kernels.fake_quantize(x, scale, zero_point, **options), expected)


@pytest.mark.parametrize("arithmetic", numerics.ARITHMETICS)
@pytest.mark.parametrize("rounding", numerics.ROUNDINGS)
def test_modes_match_numpy_in_onnxruntime(ops, rng, same_bits, rounding, arithmetic):
    """The attributes rounding and arithmetic reach the kernel, per tensor and with a vector of scales."""
    x = edge_values(0.37, -128, 127).reshape(SHAPE)
    for scale, axis in ((0.37, None), (np.exp(rng.uniform(-3, 1, 7)), 2)):
        options = {"qtype": "int8", "axis": axis, "rounding": rounding, "arithmetic": arithmetic}
        same_bits(ops.fake_quantize(x, scale, **options), numerics.fake_quantize(x, scale, **options))


@pytest.mark.parametrize("arithmetic", numerics.ARITHMETICS)
def test_nan_stays_nan(ops, arithmetic):
    """A NaN in an activation must show in the output, not turn into a number."""
    x = np.array([1, np.nan, -np.nan, 2], np.float32)
    for function in (numerics.fake_quantize, kernels.fake_quantize, ops.fake_quantize):
        y = function(x, 0.1, qtype="int8", arithmetic=arithmetic)
        assert np.isnan(y).tolist() == [False, True, True, False]


@loop_over("size", range(34))
@loop_over("varying", [False, True])
def test_every_size_and_alignment(size, varying, rng, fills_out):
    """From nothing to two vectors of 16, at odd addresses, in place too."""
    scale = rng.uniform(0.01, 0.1, size if varying else 1).astype(np.float32)
    for offset in range(4):
        source = rng.standard_normal(size + offset).astype(np.float32)[offset:]
        fills_out(kernels.fake_quantize, numerics.fake_quantize, source, scale=scale, qtype="int8", axis=0)


# Each picks another path through the kernel: shape of x, scale's shape, axis, block_size.
PATHS = {
    "rows-of-3": ((70_000, 3), (3,), 1, None),
    "rows-of-100": ((2000, 100), (100,), 1, None),
    "long-rows": ((40, 5000), (5000,), 1, None),
    "channels-of-49": ((16, 100, 7, 7), (100,), 1, None),
    "channels-of-9": ((50, 100, 3, 3), (100,), 1, None),
    "big-channels": ((2, 4, 30_000), (4,), 1, None),
    "blocks-of-3": ((40, 5000), (40, 1667), 1, 3),
    "blocks-of-32": ((40, 5000), (40, 157), 1, 32),
    "whole-blocks-of-50": ((40, 5000), (40, 100), 1, 50),
    "first-axis-in-blocks": ((500, 400), (63, 400), 0, 8),
    "two-axes-in-blocks": ((300, 500), (100, 50), None, None),
    "three-axes-in-blocks": ((60, 50, 70), (20, 1, 7), None, None),
}


@pytest.mark.parametrize("symmetric", [True, False], ids=["symmetric", "asymmetric"])
@pytest.mark.parametrize("path", PATHS)
def test_large_tensors_on_two_threads(ops, rng, same_bits, path, symmetric):
    """Cutting a tensor into pieces for threads changes nothing, wherever the cut falls."""
    shape, params, axis, block_size = PATHS[path]
    x = rng.standard_normal(shape).astype(np.float32)
    qtype = QTYPES["uint8" if not symmetric else "int8"]
    scale, zero_point = draw_params(rng, qtype, params, symmetric)
    where = {"qtype": qtype.name, "axis": axis, "block_size": block_size}
    expected = numerics.fake_quantize(x, scale, zero_point, **where)
    same_bits(kernels.fake_quantize(x, scale, zero_point, **where), expected)
    given = None if symmetric else zero_point
    for threads in (1, 2):
        same_bits(ops.fake_quantize(x, scale, given, threads=threads, **where), expected)


@pytest.mark.parametrize("enabled", [True, False])
@pytest.mark.parametrize("zero_point", [None, 3], ids=["no-zero-point", "zero-point"])
def test_enabled_switches(ops, rng, same_bits, enabled, zero_point):
    """`enabled` false copies x to the bit, also where the zero point before it is left out."""
    x = rng.standard_normal((4, 1000)).astype(np.float32)
    x[0, :3] = np.nan, np.inf, -0.0
    y = ops.fake_quantize(x, 0.1, zero_point, enabled=enabled, qtype="int8")
    same_bits(y, numerics.fake_quantize(x, 0.1, zero_point or 0, qtype="int8") if enabled else x)


def test_enabled_is_read_at_every_run(ops, rng, same_bits):
    """A session switches its quantizers without being rebuilt."""
    node = 'y = onnxfq.FakeQuantize <qtype = "int8"> (x, s, , on)'
    session = Session(build(f"g (float[n] x, float s, bool on) => (float[n] y) {{ {node} }}", onnxfq=1), 1)
    x = rng.standard_normal(50).astype(np.float32)
    for on in (True, False, True):
        feeds = {"x": x, "s": np.array(0.1, np.float32), "on": np.array(on)}
        same_bits(session.run(feeds)[0], numerics.fake_quantize(x, 0.1, qtype="int8") if on else x)


@pytest.mark.parametrize("known", [True, False], ids=["shape-known", "shape-unknown"])
def test_in_place_leaves_other_readers_alone(ops, rng, same_bits, known):
    """The output may reuse x's memory only when nobody reads x afterwards.

    The runtime considers it when it knows that both shapes are equal.
    """

    def fq(source, target):
        return helper.make_node("FakeQuantize", [source, "s"], [target], domain="onnxfq", qtype="int4")

    nodes = [
        helper.make_node("Neg", ["x"], ["t"]),
        fq("t", "a"),
        fq("a", "b"),  # a has no other reader: in place
        helper.make_node("Add", ["t", "b"], ["y"]),  # t is read again
    ]
    scale = numpy_helper.from_array(np.array(0.3, np.float32), "s")
    shapes = dict.fromkeys("xab", ["n", 300]) if known else {}
    x = rng.standard_normal((300, 300)).astype(np.float32)
    before = x.copy()
    session = ops.session(nodes, ["x"], {"y": TensorProto.FLOAT}, [scale], shapes=shapes)
    (y,) = session.run(None, {"x": x})
    once = numerics.fake_quantize(-x, 0.3, qtype="int4")
    same_bits(y, -x + numerics.fake_quantize(once, 0.3, qtype="int4"))
    same_bits(x, before)


@pytest.mark.parametrize("shape", [(), (0,), (3, 0, 2), (1, 1, 1, 1, 1, 1, 1, 1, 1, 2)], ids=str)
def test_unusual_shapes(ops, same_bits, shape):
    """Scalars, empty tensors and high ranks keep their shape."""
    x = np.full(shape, 0.26, np.float32)
    same_bits(ops.fake_quantize(x, 0.1, qtype="int8"), numerics.fake_quantize(x, 0.1, qtype="int8"))
    same_bits(kernels.fake_quantize(x, 0.1, qtype="int8"), numerics.fake_quantize(x, 0.1, qtype="int8"))


@pytest.mark.parametrize("axis", [None, 0, 1, 2], ids=["per-tensor", "axis0", "axis1", "axis2"])
@pytest.mark.parametrize("qtype", ["int8", "uint8", "int4", "int16"])
def test_reciprocal_equals_torch(rng, same_bits, qtype, axis):
    """arithmetic="reciprocal" gives torch's bits, ties included."""
    torch = pytest.importorskip("torch")
    kind = QTYPES[qtype]
    scale, zero_point = draw_params(rng, kind, () if axis is None else (SHAPE[axis],), symmetric=False)
    halves = rng.integers(kind.qmin * 2, kind.qmax * 2, SHAPE).astype(np.float32) / 2
    along = numerics.expand_params(scale, SHAPE, axis=axis)
    for x in (halves * along, rng.standard_normal(SHAPE).astype(np.float32) * along * 50):
        t, ends = torch.from_numpy(x), (kind.qmin, kind.qmax)
        if axis is None:
            t = torch.fake_quantize_per_tensor_affine(t, float(scale), int(zero_point), *ends)
        else:
            grid = map(torch.from_numpy, (scale, zero_point))
            t = torch.fake_quantize_per_channel_affine(t, *grid, axis, *ends)
        options = {"qtype": qtype, "axis": axis, "arithmetic": "reciprocal"}
        same_bits(numerics.fake_quantize(x, scale, zero_point, **options), t.numpy())
        same_bits(kernels.fake_quantize(x, scale, zero_point, **options), t.numpy())
