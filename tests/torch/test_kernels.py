"""The library's kernels in torch: the bits of torch's operations, wherever they are used."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from loops import loop_over

nn = pytest.importorskip("torch.nn")
pytest.importorskip("onnxscript")

import torch  # noqa: E402  only once it is known to be there

from onnxfq.errors import RuntimeLibraryError
from onnxfq.numerics.qtypes import QTYPES, qtype_by_name
from onnxfq.torch import fake_quantize, kernels


def values(*shape: int, seed: int = 0) -> torch.Tensor:
    """Return normal values with zeros, NaN and infinities among them."""
    x = torch.randn(*shape, generator=torch.Generator().manual_seed(seed)) * 10
    special = torch.tensor([0.0, -0.0, float("nan"), float("inf"), -float("inf"), 1e-40, 3e38])
    x.flatten()[: len(special)] = special
    return x


def run(x, scale, zero_point, learned: bool, **keywords) -> list[torch.Tensor]:
    """Return y and all gradients, as integers of their bits."""
    leaves = [x.detach().clone(memory_format=torch.preserve_format).requires_grad_()]
    leaves += [t.clone().requires_grad_(learned) for t in (scale, zero_point)]
    y = fake_quantize(*leaves, **keywords)
    y.backward(torch.randn(y.shape, generator=torch.Generator().manual_seed(9)).to(y.dtype))
    return [y.detach(), *(leaf.grad for leaf in leaves if leaf.grad is not None)]


@pytest.fixture
def torch_alone(monkeypatch):
    """Return `run` without the kernels."""

    def call(*args, **keywords):
        with monkeypatch.context() as patched:
            patched.setattr(kernels, "library_loads", lambda: False)
            return run(*args, **keywords)

    return call


def same_bits(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Tell whether two tensors of a float type hold the same bits; any NaN is as good as another."""
    kind = {4: torch.int32, 2: torch.int16}[a.element_size()]
    return bool(((a.view(kind) == b.view(kind)) | (a.isnan() & b.isnan())).all()) and a.dtype == b.dtype


@pytest.fixture
def counted(monkeypatch) -> list[str]:
    """Return a list that grows by a word for each call of a kernel."""
    calls: list[str] = []
    inner = kernels.call
    monkeypatch.setattr(kernels, "call", lambda name, *a: (calls.append(name), inner(name, *a))[1])
    return calls


LAYOUTS = {
    "per tensor": ((3, 5, 7, 9), (), {}),
    "axis 0": ((6, 5, 7, 3), (6,), {"axis": 0}),
    "axis 1": ((6, 5, 7, 3), (5,), {"axis": 1}),
    "last axis": ((17, 66), (66,), {"axis": 1}),
    "blocks": ((8, 64), (8, 4), {"axis": 1, "block_size": 16}),
    "short last block": ((8, 63), (8, 4), {"axis": 1, "block_size": 16}),
    "N-D blocks": ((8, 6, 4), (4, 1, 2), {"block_shape": (2, -1, 2)}),
}


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("learned", [False, True])
def test_kernels_have_torchs_bits(layout, dtype, learned, torch_alone, counted):
    """Output and gradients of all granularities have the bits of torch's operations.

    Except for the sums over a shared scale, which run in another order: 1,000 terms below 3,000.
    """
    shape, params, keywords = LAYOUTS[layout]
    x = values(*shape).to(dtype)
    generator = torch.Generator().manual_seed(1)
    scale = torch.rand(params, generator=generator) + 0.05
    zero_point = torch.randint(-3, 4, params, generator=generator).float()
    for arithmetic, zeros in itertools.product(("divide", "reciprocal"), (zero_point, zero_point + 0.25)):
        options = {"qtype": "int8", "arithmetic": arithmetic, **keywords}
        if learned:  # a sum with NaN in it says nothing
            x = x.nan_to_num(1.0, 30.0, -30.0).clamp(-1000, 1000)
        found, expected = (f(x, scale, zeros, learned, **options) for f in (run, torch_alone))
        assert same_bits(found[0], expected[0]) and same_bits(found[1], expected[1])
        for a, b in zip(found[2:], expected[2:], strict=True):
            torch.testing.assert_close(a, b, rtol=1e-4, atol=0.02)
    assert counted


@loop_over("qtype", [*QTYPES, "int8[-127,127]"])
@loop_over("saturate", [False, True])
def test_all_grids(qtype, saturate, torch_alone, counted):
    """The same holds for all number formats, element by element: one scale each, nothing is summed."""
    grid = qtype_by_name(qtype)
    x = torch.cat([values(500), torch.linspace(-9, 9, 333)])
    scale = torch.rand(len(x), generator=torch.Generator().manual_seed(1)) + 0.05
    counted.clear()
    for arithmetic in ("divide", "reciprocal"):
        keywords = {"qtype": grid, "axis": 0, "arithmetic": arithmetic, "saturate": saturate}
        found, expected = (f(x, scale, torch.zeros(1), True, **keywords) for f in (run, torch_alone))
        assert all(same_bits(a, b) for a, b in zip(found[:3], expected[:3], strict=True))
    assert counted


@pytest.mark.parametrize("axis", [None, 0, 1, 3])
def test_other_orders_in_memory(axis, torch_alone, counted):
    """Channels-last and transposed tensors keep their order and get the same bits; tensors with gaps too."""
    x = values(6, 5, 7, 4)
    scale = torch.tensor(0.3) if axis is None else torch.rand(x.shape[axis]) + 0.1
    for seen in (x.to(memory_format=torch.channels_last), x.transpose(0, 2).clone().transpose(0, 2)):
        found, expected = (
            f(seen, scale, torch.zeros(()), False, qtype="int4", axis=axis) for f in (run, torch_alone)
        )
        assert found[0].stride() == seen.stride()
        assert all(same_bits(a, b) for a, b in zip(found, expected, strict=True))
    assert counted.count("onnxfq_fake_quantize_step") == 2
    gaps = torch.randn(6, 5, 7, 8)[..., ::2]
    assert same_bits(
        fake_quantize(gaps, scale, qtype="int4", axis=axis),
        fake_quantize(gaps.contiguous(), scale, qtype="int4", axis=axis),
    )


def test_threads_change_nothing():
    """A million elements on three threads have the bits of one thread, forward and back."""
    x, before = values(1 << 20), torch.get_num_threads()
    results = []
    try:
        for count in (1, 3):
            torch.set_num_threads(count)
            results.append(run(x, torch.tensor(0.1), torch.tensor(0.0), False, qtype="int8"))
    finally:
        torch.set_num_threads(before)
    assert all(same_bits(a, b) for a, b in zip(*results, strict=True))


@pytest.mark.parametrize(
    ("x", "keywords"),
    [
        (torch.ones(4).double(), {}),
        (torch.ones(4), {"rounding": "half_up"}),
        (torch.ones(0), {}),
        (torch.ones(4, device="meta"), {}),
    ],
    ids=["float64", "half_up", "empty", "meta"],
)
def test_what_the_kernels_are_not_for(x, keywords, counted):
    """Other tensors and roundings go through torch's operations."""
    y = fake_quantize(x, torch.tensor(0.5, device=x.device), qtype="int8", **keywords)
    assert y.shape == x.shape and not counted


@pytest.mark.filterwarnings("ignore::torch.jit.TracerWarning", "ignore:`torch.jit.trace:DeprecationWarning")
def test_tracers_see_operations(counted):
    """Who traces or watches operations sees some: torch.jit.trace, make_fx, fake tensors."""
    from torch._subclasses.fake_tensor import FakeTensorMode
    from torch.fx.experimental.proxy_tensor import make_fx

    def function(x):
        return fake_quantize(x, torch.tensor(0.5), qtype="int8")

    traced = torch.jit.trace(function, torch.ones(3), check_trace=False)  # which would run it untraced too
    graph = make_fx(function)(torch.ones(3))
    assert not counted
    for made in (traced, graph):
        assert made(torch.tensor([0.3, 9.9, 1e9])).tolist() == [0.5, 10.0, 63.5]
    with FakeTensorMode():
        assert function(torch.ones(3)).shape == (3,)
    assert not counted


def test_derivatives_of_derivatives():
    """With create_graph the backward pass is recorded: the second derivative of y^2 is 2 inside, 0 outside.

    Gradients of x; with a learned scale too, for which the first is recorded by torch's operations.
    """
    for learned in (False, True):
        x = torch.tensor([-9.0, -1.3, 0.2, 3.0, 40.0], requires_grad=True)
        scale = torch.tensor(0.5, requires_grad=learned)
        y = fake_quantize(x, scale, qtype="int4")
        (first,) = torch.autograd.grad(y.square().sum(), x, create_graph=True)
        assert first.tolist() == [2 * v for v in (0, -1.5, 0, 3, 0)] and first.requires_grad
        (second,) = torch.autograd.grad(first.sum(), x)
        assert second.tolist() == [0, 2, 2, 2, 0]


def test_without_the_library(monkeypatch, caplog):
    """If the library cannot be loaded, torch's operations do the work, and a log line says so."""

    def missing():
        raise RuntimeLibraryError("no library")

    monkeypatch.setattr(kernels, "c_library", missing)
    kernels.library_loads.cache_clear()
    try:
        with caplog.at_level("INFO", logger="onnxfq.torch.kernels"):
            y = fake_quantize(torch.tensor([0.3]), 0.5, qtype="int8")
        assert y.item() == 0.5 and "torch operations, several times slower: no library" in caplog.text
    finally:
        kernels.library_loads.cache_clear()


def test_derivative_outside_a_float_grid():
    """The derivative by the scale outside a float grid is its end, 7.5 for float6e2m3, not an integer."""
    for rounding in ("half_even", "half_up"):  # by the kernel and by torch's operations
        scale = torch.tensor(1.0, requires_grad=True)
        fake_quantize(torch.tensor([99.0]), scale, qtype="float6e2m3", rounding=rounding).backward()
        np.testing.assert_array_equal(scale.grad, 7.5)


def test_memory_that_begins_anywhere():
    """Tensors over memory of another library, at odd addresses: the bits of plain ones."""

    def misaligned(x: torch.Tensor) -> torch.Tensor:
        memory = bytearray(1) + bytearray(x.numpy().tobytes())
        made = torch.frombuffer(memory, dtype=x.dtype, offset=1).reshape(x.shape)
        assert made.data_ptr() % x.element_size()
        return made

    x, scale, zero_point = values(6, 8), torch.linspace(0.1, 0.6, 6), torch.arange(6.0)
    how = {"qtype": "int8", "axis": 0}
    plain = fake_quantize(x, scale, zero_point, **how)
    for given in ((misaligned(x), scale, zero_point), (x, misaligned(scale), misaligned(zero_point))):
        assert torch.equal(fake_quantize(*given, **how).view(torch.int32), plain.view(torch.int32))
