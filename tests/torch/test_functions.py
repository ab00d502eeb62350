"""onnxfq.torch.qat_gradients: values and gradients equal torch, the papers and numerics."""

from __future__ import annotations

import functools
import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from loops import loop_over

nn = pytest.importorskip("torch.nn")
pytest.importorskip("onnxscript")

import keyword_numerics as numerics
import torch  # noqa: E402  only once it is known to be there

from onnxfq.errors import SpecError
from onnxfq.numerics.qparams import adjust_min_max, choose_qparams
from onnxfq.numerics.qtypes import QTYPES, qtype_by_name
from onnxfq.numerics.rounding import ROUNDINGS
from onnxfq.torch import (
    fake_quantize,
    fake_quantize_lsq,
    fake_quantize_pact,
    fake_quantize_range,
    range_to_params,
)

LIMITS = {"int8": (-128, 127), "uint8": (0, 255), "int4": (-8, 7)}


def values(*shape: int, seed: int = 0, scale: float = 10.0) -> torch.Tensor:
    """Return normal values, with both zeros among them."""
    x = torch.randn(*shape, generator=torch.Generator().manual_seed(seed)) * scale
    x.flatten()[:2] = torch.tensor([0.0, -0.0])[: x.numel()]
    return x


def same_bits(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Tell whether two float32 tensors hold the same bits, signs of zeros included."""
    return torch.equal(a.detach().view(torch.int32), b.detach().view(torch.int32))


def with_gradient(function, x, *learned):
    """Return (y, gradients of x and of the learned tensors) for a fixed random gradient of y."""
    leaves = [tensor.clone().requires_grad_() for tensor in (x, *learned)]
    y = function(*leaves)
    y.backward(values(*y.shape, seed=9).to(y.dtype))
    return y.detach(), *(leaf.grad for leaf in leaves)


def learned_by_both(qtype, x, scale, zero_point):
    """Return values and gradients of learned parameters by ours and by torch's function."""
    low, high = LIMITS[qtype]

    def ours(x, scale, zero_point):
        return fake_quantize(x, scale, zero_point, qtype=qtype, axis=0, arithmetic="reciprocal")

    def theirs(x, scale, zero_point):
        if len(scale) > 1:
            return torch._fake_quantize_learnable_per_channel_affine(x, scale, zero_point, 0, low, high, 1.0)
        return torch._fake_quantize_learnable_per_tensor_affine(x, scale, zero_point, low, high, 1.0)

    return with_gradient(ours, x, scale, zero_point), with_gradient(theirs, x, scale, zero_point)


def test_published_values():
    """AIMET's page has 4 bits from 0 to 1; NVIDIA's torch.rand(10) with seed 12345, to four decimals."""
    x = torch.arange(start=-0.3, end=1.3, step=0.05)
    steps = [0] * 7 + [1, 2, 2, 3, 4, 4, 5, 6, 7, 7, 8, 9, 10, 10, 11, 12, 13, 13, 14] + [15] * 6
    assert (fake_quantize(x, 1 / 15, qtype="uint4") * 15).round().int().tolist() == steps
    torch.manual_seed(12345)
    x = torch.rand(10)
    y = fake_quantize(x, x.max() / 127, qtype="int8[-127,127]")
    printed = [0.9843, 0.8828, 0.9921, 0.4609, 0.0859, 0.1797, 0.3672, 0.5703, 0.3359, 0.2109]
    torch.testing.assert_close(y, torch.tensor(printed), rtol=0, atol=6e-5)
    integers = [126, 113, 127, 59, 11, 23, 47, 73, 43, 27]
    assert (y * 127 / x.max()).round().int().tolist() == integers
    assert abs(127 / x.max().item() - 128.0057) < 1e-4


@pytest.mark.parametrize("qtype", ["int8", "uint8", "int4"])
@pytest.mark.parametrize("zero_point", [0.0, 3.0])
def test_learned_parameters_equal_torch(qtype, zero_point):
    """Gradients of scale and zero point are torch's learnable ones: element by element, then summed.

    Single elements have nothing to sum, and the bits agree. Sums run in another order than torch's, and its
    kernel per channel takes round(v) - v, which rounds v once more: 5,000 terms below 3,000, each right to
    2^-24 of that.
    """
    x = values(5_000)
    one, ten = ((torch.full((n,), 0.1), torch.full((n,), zero_point)) for n in (1, 10))
    for single in x[:300].split(1):
        found, expected = learned_by_both(qtype, single, *one)
        assert all(map(torch.equal, found, expected))
    for leaves, seen in ((one, x), (ten, x.reshape(10, -1))):
        for found, expected in zip(*learned_by_both(qtype, seen, *leaves), strict=True):
            torch.testing.assert_close(found, expected, rtol=1e-5, atol=5_000 * 3_000 * 2**-24)


@loop_over("qtype", [*QTYPES, "int8[-127,127]"])
@loop_over("rounding", ROUNDINGS)
def test_values_equal_numerics(qtype, rounding):
    """Every number format, rounding and arithmetic gives the bits of the NumPy truth."""
    grid = qtype_by_name(qtype)
    special = np.asarray([np.nan, np.inf, -np.inf, 0.5, 2.5, -2.5], np.float32)
    x = np.concatenate([values(999).numpy(), special])
    for scale, arithmetic, saturate in itertools.product((1.0, 0.3), numerics.ARITHMETICS, (True, False)):
        keywords = {"qtype": grid, "rounding": rounding, "arithmetic": arithmetic, "saturate": saturate}
        expected = numerics.fake_quantize(x, scale, **keywords)
        found = fake_quantize(torch.from_numpy(x), scale, **keywords).numpy()
        np.testing.assert_array_equal(found.view(np.int32)[:-6], expected.view(np.int32)[:-6])
        np.testing.assert_array_equal(found, expected)


@st.composite
def granularities(draw):
    """Draw a shape and the keywords of a granularity, with the shape of its scale."""
    shape = tuple(draw(st.lists(st.integers(1, 7), min_size=1, max_size=4)))
    kind = draw(st.sampled_from(["tensor", "axis", "blocked", "shape"]))
    axis = draw(st.integers(-len(shape), len(shape) - 1))
    if kind == "tensor":
        return shape, {}, draw(st.sampled_from([(), (1,)]))
    if kind == "axis":
        return shape, {"axis": axis}, (shape[axis],)
    if kind == "blocked":
        size = draw(st.integers(1, 8))
        params = tuple(-(-n // size) if d == axis % len(shape) else n for d, n in enumerate(shape))
        return shape, {"axis": axis, "block_size": size}, params
    blocks = tuple(draw(st.sampled_from([-1, 1, 2, 3])) for _ in shape)
    params = tuple(1 if b == -1 else -(-n // b) for n, b in zip(shape, blocks, strict=True))
    return shape, {"block_shape": blocks}, params


@settings(deadline=None, max_examples=200)
@given(granularities(), st.sampled_from(["int8", "uint4", "float8e4m3fn"]), st.booleans(), st.integers(0, 99))
def test_granularities_equal_numerics(granularity, qtype, fractions, seed):
    """Per tensor, axis, block and N-D block, with whole or fractional zero points, the bits are numerics'."""
    shape, keywords, params = granularity
    generator = np.random.default_rng(seed)
    x = generator.normal(size=shape).astype(np.float32) * 5
    scale = np.asarray(generator.uniform(0.05, 1, params), np.float32)
    zero_point = np.zeros(params, np.float32)
    if not qtype_by_name(qtype).is_float:
        zero_point = np.asarray(generator.uniform(0, 7, params), np.float32)
        zero_point = zero_point if fractions else np.asarray(np.floor(zero_point))
    expected = numerics.fake_quantize(x, scale, zero_point, qtype=qtype, **keywords)
    leaf = torch.from_numpy(scale).requires_grad_()
    for s in (torch.from_numpy(scale), leaf):
        found = fake_quantize(torch.from_numpy(x), s, torch.from_numpy(zero_point), qtype=qtype, **keywords)
        np.testing.assert_array_equal(found.detach().numpy().view(np.int32), expected.view(np.int32))
    found.sum().backward()
    assert leaf.grad.shape == params


@pytest.mark.parametrize("saturate", [True, False])
def test_saturate_masks_the_gradient(saturate):
    """Without saturate the gradient passes outside the grid; integers saturate in any case."""
    x = torch.tensor([-9.0, -8.4, 0.2, 7.4, 7.6, float("nan")], requires_grad=True)
    y = fake_quantize(x, 1.0, qtype="int4", saturate=saturate)
    y.backward(torch.ones(6))
    assert y[:5].tolist() == [-8, -8, 0, 7, 7] and y[5].isnan()
    assert x.grad.tolist() == ([0, 1, 1, 1, 0, 0] if saturate else [1] * 6)
    for dtype in (torch.float32, torch.float64):  # the largest float is on the grid
        x = torch.tensor([-448.0, 448.0, 449.0], dtype=dtype, requires_grad=True)
        fake_quantize(x, 1.0, qtype="float8e4m3fn", saturate=saturate).sum().backward()
        assert x.grad.tolist() == ([1, 1, 0] if saturate else [1, 1, 1])


def smooth(x, scale, zero_point, low, high):
    """Return fake quantization with its rounding errors frozen: differentiable, and equal in value."""
    v = x / scale
    frozen = (torch.round(v) - v).detach()
    steps = v + frozen + zero_point
    ends = torch.where(steps < low, torch.full_like(steps, low), torch.full_like(steps, high))
    inside = (steps >= low) & (steps <= high)
    return scale * (torch.where(inside, steps, ends) - zero_point)


@pytest.mark.sample
def test_learned_gradients_are_derivatives():
    """Away from the kinks the gradients are the derivatives of the function with its rounding errors frozen.

    In float64; 1e-9 is far above the rounding of sums of 60 terms and far below any of them. Outside the
    grid, where nothing is rounded, they are also the finite differences of the function itself.
    """
    x = values(60).double()
    scale, zero_point = torch.tensor(0.7).double(), torch.tensor(2.0).double()

    def formula(x, scale, zero_point):
        return smooth(x, scale, zero_point, -8, 7)

    def ours(x, scale, zero_point):
        return fake_quantize(x, scale, zero_point, qtype="int4")

    expected, found = with_gradient(formula, x, scale, zero_point), with_gradient(ours, x, scale, zero_point)
    for a, b in zip(found, expected, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-9)
    step = 1e-6
    ends = x[(x / scale + zero_point > 8) | (x / scale + zero_point < -9)]
    for index in (0, 1):
        parameters = [scale.clone(), zero_point.clone()]
        parameters[index] += step
        moved = fake_quantize(ends, *parameters, qtype="int4")
        difference = (moved - fake_quantize(ends, scale, zero_point, qtype="int4")) / step
        leaves = [scale.clone().requires_grad_(), zero_point.clone().requires_grad_()]
        fake_quantize(ends, *leaves, qtype="int4").sum().backward()
        torch.testing.assert_close(leaves[index].grad, difference.sum(), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("qtype", ["int4", "uint4"])
def test_lsq_is_the_paper(qtype):
    """The gradient of the scale is equation 3 of LSQ in NumPy, times 1 / sqrt(N qmax)."""
    grid, x, s = qtype_by_name(qtype), values(500), 0.8
    _, by_x, by_scale = with_gradient(lambda x, s: fake_quantize_lsq(x, s, qtype=qtype), x, torch.tensor(s))
    v, g = x.double().numpy() / s, values(500, seed=9).double().numpy()
    inside = (np.rint(v) >= grid.qmin) & (np.rint(v) <= grid.qmax)
    formula = np.where(inside, np.rint(v) - v, np.clip(v, grid.qmin, grid.qmax))
    # float32 against float64: 500 terms of at most 100, each right to 2^-24 of the largest step.
    np.testing.assert_allclose(by_scale, (g * formula).sum() / np.sqrt(500 * grid.qmax), rtol=1e-4, atol=1e-4)
    np.testing.assert_array_equal(by_x, values(500, seed=9) * torch.from_numpy(inside))


def test_lsq_plus_is_the_paper():
    """LSQ+'s offset has gradient 0 inside and 1 outside, its scale LSQ's; values are offset + scale q."""
    x, s, beta = values(500), torch.tensor(0.8), torch.tensor(-1.5)
    function = functools.partial(fake_quantize_lsq, qtype="uint4")
    y, _, by_scale, by_offset = with_gradient(function, x, s, beta)
    v = (x.double().numpy() + 1.5) / 0.8
    outside = (np.rint(v) < 0) | (np.rint(v) > 15)
    of_scale = np.where(outside, np.clip(v, 0, 15), np.rint(v) - v)
    for found, formula in ((by_scale, of_scale), (by_offset, outside)):
        expected = (values(500, seed=9).double().numpy() * formula).sum() / np.sqrt(500 * 15)
        np.testing.assert_allclose(found, expected, rtol=1e-4)  # a sum of 500 in float32
    # x - beta, the product and the sum each round once, on values up to 12.
    np.testing.assert_allclose(y, np.clip(np.rint(v), 0, 15) * 0.8 - 1.5, rtol=0, atol=3e-6)


@pytest.mark.parametrize("symmetric", [True, False])
def test_range_gives_the_cores_parameters(symmetric):
    """Scale and zero point of a learned range have the bits of choose_qparams, and AIMET's grid ends."""
    generator = np.random.default_rng(0)
    ends = np.sort(generator.normal(size=(2000, 2)).astype(np.float32) * 5, axis=1)
    rmin, rmax = ends[:, 0], ends[:, 1]
    for qtype in ("int16", "int8"):  # a zero point of 16 bits tells the last bits of its scale
        scale, zero_point = range_to_params(torch.from_numpy(rmin), torch.from_numpy(rmax), qtype, symmetric)
        expected_scale, expected_zero = choose_qparams(rmin, rmax, qtype_by_name(qtype), symmetric)
        np.testing.assert_array_equal(scale.numpy(), expected_scale)
        zeros = np.zeros(2000) if zero_point is None else zero_point.numpy()
        np.testing.assert_array_equal(zeros, expected_zero)
    low, _ = adjust_min_max(rmin, rmax, qtype_by_name("int8"), symmetric)
    # AIMET rounds min / delta, we qmin - min / delta: the same but at ties and in the last bit of delta.
    np.testing.assert_allclose((-128 - zeros) * scale.numpy(), low, rtol=1e-5, atol=1e-6)


def test_range_gradients_are_derivatives():
    """Gradients of min and max equal AIMET's parametrisation with its rounding errors frozen."""
    x, rmin, rmax = values(80).double(), torch.tensor(-4.3).double(), torch.tensor(7.9).double()

    def formula(x, rmin, rmax):
        scale = (rmax - rmin) / 15
        zero = -8 - rmin / scale
        return smooth(x, scale, zero + (torch.round(zero) - zero).detach(), -8, 7)

    expected = with_gradient(formula, x, rmin, rmax)
    found = with_gradient(lambda *a: fake_quantize_range(*a, qtype="int4"), x, rmin, rmax)
    for a, b in zip(found, expected, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-9)


def test_pact_is_the_paper():
    """PACT is x in [0, alpha] on 2^k - 1 steps; alpha's gradient sums where x >= alpha, x's is between."""
    x, alpha = values(1_000), torch.tensor(6.0)
    x[5] = 6.0
    y, by_x, by_alpha = with_gradient(lambda x, a: fake_quantize_pact(x, a, qtype="uint4"), x, alpha)
    g = values(1_000, seed=9)
    expected = np.rint(np.clip(x.numpy(), 0, 6) * np.float32(15 / 6)) * np.float32(6 / 15)
    np.testing.assert_allclose(y, expected, rtol=1e-6)  # two roundings of float32
    assert torch.equal(by_x, g * ((x >= 0) & (x < 6)))
    torch.testing.assert_close(by_alpha, g[x >= 6].sum())
    assert torch.equal(x[5:6], y[5:6])


# torch's compiler warns of deprecations in itself.
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize(("qtype", "learned"), [("int8", True), ("float8e4m3fn", False)])
def test_compiles_without_a_break(qtype, learned):
    """torch.compile takes it as one graph, and the compiled code gives the same bits, forward and back."""
    x, scale = values(8, 64), torch.rand(8, generator=torch.Generator().manual_seed(0)) + 0.1

    def function(x, scale):
        return fake_quantize(x, scale if learned else scale.detach(), qtype=qtype, axis=0)

    plain = with_gradient(function, x, scale)
    compiled = with_gradient(torch.compile(function, fullgraph=True), x, scale)
    assert same_bits(plain[0], compiled[0]) and same_bits(plain[1], compiled[1])
    if learned:  # sums of 64 terms in another order
        torch.testing.assert_close(plain[2], compiled[2], rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize(
    ("message", "x", "scale", "keywords"),
    [
        ("unknown qtype 'int88'; nearest: int8", torch.ones(2), 1.0, {"qtype": "int88"}),
        ("unknown rounding 'even'", torch.ones(2), 1.0, {"rounding": "even"}),
        ("unknown arithmetic", torch.ones(2), 1.0, {"arithmetic": "mult"}),
        ("got torch.int64", torch.ones(2).long(), 1.0, {}),
        ("finite and positive.*-1.0", torch.ones(2), -1.0, {}),
        ("without an axis", torch.ones(2, 2), torch.ones(2), {}),
        ("give 2 values", torch.ones(2, 2), torch.ones(3), {"axis": 0}),
        ("as many dimensions", torch.ones(2, 2), torch.ones(1, 2, 2), {}),
        ("needs 2 values", torch.ones(4, 1), torch.ones(3, 1), {"axis": 0, "block_size": 2}),
        (r"need \[2, 2\]", torch.ones(4, 4), torch.ones(2, 1), {"block_shape": (2, 2)}),
        (r"in \[-8, 7\] for int4, found 9.0", torch.ones(2), 1.0, {"zero_point": 9, "qtype": "int4"}),
        ("float type, found 1.0", torch.ones(2), 1.0, {"zero_point": 1, "qtype": "float8e4m3fn"}),
    ],
)
def test_mistakes(message, x, scale, keywords):
    """A broken rule is a SpecError of one line that names it and the value found."""
    with pytest.raises(SpecError, match=message):
        fake_quantize(x, scale, **{"qtype": "int8"} | keywords)


@pytest.mark.parametrize("per_channel", [False, True])
def test_a_million_learned_values(per_channel):
    """Values and the gradient of x are torch's learnable ones to the bit, the scale's is the exact sum.

    The sum of torch's terms in float64; ours is in float32, pairwise or in vectors: 1e-5 of its size, or
    2^-24 of the sum of all magnitudes. torch's own sum per channel goes one by one, and is off by 1e-3.
    """
    x = values(10, 100_000) if per_channel else values(1_000_000)
    scale, zero = (torch.full((10 if per_channel else 1,), v) for v in (0.07, 3.0))
    found, expected = learned_by_both("int8", x, scale, zero)
    assert same_bits(found[0], expected[0]) and same_bits(found[1], expected[1])
    reciprocal = 1 / scale[0]
    rounded = torch.round(x * reciprocal)
    steps = rounded.clamp(-131, 124)
    terms = torch.where(steps == rounded, (steps * scale[0] - x) * reciprocal, steps).double()
    terms *= values(*x.shape, seed=9)
    exact, sizes = (t.reshape(len(scale), -1).sum(1) for t in (terms, terms.abs()))
    assert ((found[2] - exact).abs() <= 1e-5 * exact.abs() + 2**-24 * sizes).all()
    for a, b in zip(found[2:], expected[2:], strict=True):
        torch.testing.assert_close(a, b, rtol=2e-3, atol=30.0)


@pytest.mark.parametrize("qtype", ["float8e4m3fn", "float4e2m1", "float6e2m3"])
def test_gradcheck_of_float_grids(qtype):
    """The scale of a float grid has its largest value for a derivative, where values are beyond it."""
    scale = torch.tensor(0.01, dtype=torch.float64, requires_grad=True)
    x = torch.linspace(1, 9, 12).double()
    outside = torch.cat([-5 - x, 5 + x])  # there y is an end of the grid, and nothing is rounded
    assert torch.autograd.gradcheck(lambda s: fake_quantize(outside, s, qtype=qtype), (scale,))
    zero_point = torch.zeros((), dtype=torch.float64, requires_grad=True)  # always 0: nothing depends on it
    fake_quantize(outside, scale, zero_point, qtype=qtype).sum().backward()
    assert zero_point.grad is None
