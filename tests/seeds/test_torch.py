"""torch's two functions and torch.ao's FakeQuantize as users call them, against torch itself."""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

nn = pytest.importorskip("torch.nn")
pytest.importorskip("onnxscript")

import torch  # noqa: E402  only once it is known to be there
from quantized_modules import run
from torch.ao import quantization as ao

from onnxfq import errors
from onnxfq import torch as ours
from onnxfq.numerics.qtypes import qtype_of_integers
from onnxfq.numerics.spec import QuantSpec
from onnxfq.torch import export_torch, fake_quantize_per_channel_affine, fake_quantize_per_tensor_affine

pytestmark = pytest.mark.filterwarnings("ignore:torch.ao.quantization is deprecated:DeprecationWarning")

LIMITS = [(-128, 127), (0, 255), (-7, 7), (0, 1), (5, 10), (-9, -2), (0, 0), (-(2**19), 2**19 - 1)]


def draw(low, high):
    """Return x [4, 3, 50] that leaves the grid at both ends, scales and int32 zero points."""
    generator = torch.Generator().manual_seed(0)
    scale = torch.rand(3, generator=generator) * 0.1 + 0.001
    zero_point = torch.randint(low, high + 1, (3,), generator=generator, dtype=torch.int32)
    x = torch.randn(4, 3, 50, generator=generator) * (high - low + 1) * 0.05
    return x, scale, zero_point


@pytest.mark.parametrize("limits", LIMITS, ids=str)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)
def test_values_and_gradients_are_torchs(dtype, limits):
    """Positional arguments, any limits, more than 16 bits: bits and gradients of torch's two functions."""
    x, scale, zero_point = draw(*limits)
    x = x.clamp(-6e4, 6e4).to(dtype).requires_grad_()  # finite in float16
    calls = [(FUNCTIONS[0], (scale, zero_point, 1)), (FUNCTIONS[1], (scale[1], zero_point[1]))]
    calls.append((FUNCTIONS[1], (float(scale[0]), int(zero_point[0]))))
    for name, arguments in calls:
        expected, found = (getattr(home, name)(x, *arguments, *limits) for home in (torch, ours))
        assert torch.equal(expected, found)
        by_them, by_us = (torch.autograd.grad(y.sum(), x)[0] for y in (expected, found))
        assert torch.equal(by_them, by_us)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"axis": 3}, r"axis must be in \[0, 2\]"),
        ({"axis": -1}, r"axis must be in \[0, 2\]"),
        ({"axis": 0}, r"must have shape \[4\]"),
        ({"zero_point": torch.zeros(2, dtype=torch.int32)}, r"must have shape \[3\]"),
        ({"zero_point": torch.zeros(3, dtype=torch.int64)}, "must be int32, float32 or float16"),
        ({"zero_point": torch.full((3,), 200, dtype=torch.int32)}, "zero_point must be a number in"),
        ({"quant_min": 200}, "quant_min must be at most quant_max"),
    ],
)
def test_what_torch_refuses_is_refused(change, message):
    """The checks of torch's function, each with its rule and the value found."""
    x, scale, zero_point = draw(-128, 127)
    given = {"scale": scale, "zero_point": zero_point, "axis": 1}
    given |= {"quant_min": -128, "quant_max": 127} | change
    with pytest.raises((RuntimeError, IndexError)):
        torch.fake_quantize_per_channel_affine(x, *given.values())
    with pytest.raises(errors.SpecError, match=message):
        fake_quantize_per_channel_affine(x, *given.values())


def test_differences_of_the_table():
    """docs/migrating.md: NaN, a scale of 0, fractional zero points, float64."""
    x, scale, zero_point = draw(-128, 127)
    nan = torch.full((1, 1), float("nan"))
    given = torch.ones(1), torch.zeros(1, dtype=torch.int32), 1, -128, 127
    assert torch.fake_quantize_per_channel_affine(nan, *given) == -128
    assert fake_quantize_per_channel_affine(nan, *given).isnan()
    with pytest.raises(errors.SpecError, match="scale must be finite and positive"):
        fake_quantize_per_tensor_affine(x, 0.0, 0, -128, 127)
    wide, steps, zeros = draw(-(2**19), 2**19 - 1)
    for name, given, step, most in (
        (FUNCTIONS[0], (x, scale, zero_point * 0.5 + 0.25, 1, -128, 127), scale[:, None], 1e-4),
        (FUNCTIONS[1], (x.double(), 0.05, 3, -128, 127), 0.05, 1e-4),
        (FUNCTIONS[0], (wide, steps, zeros.float(), 1, -(2**19), 2**19 - 1), steps[:, None], 2),
    ):
        theirs, found = (getattr(home, name)(*given) for home in (torch, ours))
        assert float(((theirs - found).abs() / step).max()) < most


class OneCall(nn.Module):
    """One call of a fake-quantize function, on the input or on a weight."""

    def __init__(self, function, limits, on_weight):
        super().__init__()
        self.function, self.limits, self.on_weight = function, limits, on_weight
        _, scale, zero_point = draw(*limits)
        self.register_buffer("scale", scale)
        self.register_buffer("zero_point", zero_point)
        self.weight = nn.Parameter(torch.randn(4, 3, generator=torch.Generator().manual_seed(1)))

    def forward(self, x):
        """Return the rounded tensor, added to the input."""
        given = self.weight if self.on_weight else x
        return x + self.function(given, self.scale, self.zero_point, 1, *self.limits)


@pytest.mark.grid
@pytest.mark.filterwarnings("ignore:integers:UserWarning")
@pytest.mark.parametrize("exporter", ["dynamo", "torchscript"])
@pytest.mark.parametrize("on_weight", [False, True], ids=["activation", "weight"])
@pytest.mark.parametrize(
    ("function", "limits"),
    [
        (torch.fake_quantize_per_channel_affine, (-127, 127)),
        (torch.fake_quantize_per_channel_affine, (5, 10)),
        (fake_quantize_per_channel_affine, (-9, -2)),
        (fake_quantize_per_channel_affine, (-(2**19), 2**19 - 1)),
    ],
)
def test_every_call_exports(function, limits, on_weight, exporter):
    """Both exporters take torch's function and ours, on activations and weights, with any limits."""
    module = OneCall(function, limits, on_weight)
    x = torch.randn(4, 3, generator=torch.Generator().manual_seed(2))
    model = export_torch(module, (x,), exporter=exporter, dynamic_batch=not on_weight)
    assert np.array_equal(run(model, x), module(x).detach().numpy())
    if limits[1] - limits[0] < 2**16:
        assert "DequantizeLinear" in {node.op_type for node in model.graph.node}


def test_an_export_in_float_is_told():
    """Grids that QuantizeLinear lacks are exported as arithmetic, with a warning."""
    module = OneCall(fake_quantize_per_channel_affine, (-(2**19), 2**19 - 1), on_weight=False)
    with pytest.warns(UserWarning, match="no ONNX integer type of up to 16 bits"):
        export_torch(module, (torch.randn(4, 3),))


X = torch.randn(2, 3, 4, 5, generator=torch.Generator().manual_seed(0))
S, Z = torch.tensor([0.1, 0.2, 0.3]), torch.tensor([0, 1, -2], dtype=torch.int32)
CHANNELS = {
    "by name": ((), {"input": X, "scale": S, "zero_point": Z, "axis": 1, "quant_min": -8, "quant_max": 7}),
    "channels last": ((X.contiguous(memory_format=torch.channels_last), S, Z, 1, -128, 127), {}),
    "transposed": ((X.transpose(1, 3), S, Z, 3, -128, 127), {}),
    "expanded": ((X[:1].expand(4, 3, 4, 5), S, Z, 1, -128, 127), {}),
    "every second": ((X[..., ::2], S, Z, 1, -128, 127), {}),
    "no batch": ((X[:0], S, Z, 1, -128, 127), {}),
    "rank 1": ((X[0, :, 0, 0], S, Z, 0, -128, 127), {}),
    "rank 5": ((X[None], S, Z, 2, -128, 127), {}),
    "float zero points": ((X, S, Z.float(), 1, -128, 127), {}),
    "half zero points": ((X, S, Z.half(), 1, -128, 127), {}),
}
TENSORS = {
    "by name": ((), {"input": X, "scale": 0.1, "zero_point": 3, "quant_min": 0, "quant_max": 255}),
    "rank 0": ((X[0, 0, 0, 0], 0.1, 0, -128, 127), {}),
    "an integer scale": ((X, 1, 3, 0, 255), {}),
    "tensors of rank 0": ((X, torch.tensor(0.1), torch.tensor(3), 0, 255), {}),
    "tensors of rank 1": ((X, torch.tensor([0.1]), torch.tensor([3], dtype=torch.int32), 0, 255), {}),
    "a float zero point": ((X, torch.tensor([0.1]), torch.tensor([3.0]), 0, 255), {}),
    "channels last": ((X.contiguous(memory_format=torch.channels_last), 0.1, 3, 0, 255), {}),
    "transposed": ((X.transpose(0, 3), 0.1, 3, 0, 255), {}),
    "nothing": ((X[:0], 0.1, 3, 0, 255), {}),
}
FUNCTIONS = ("fake_quantize_per_channel_affine", "fake_quantize_per_tensor_affine")
CALLS = [(name, case) for name, cases in zip(FUNCTIONS, (CHANNELS, TENSORS), strict=True) for case in cases]


@pytest.mark.parametrize(("name", "case"), CALLS)
def test_forms_of_tensors_and_arguments(name: str, case: str) -> None:
    """Values, type and memory format are those of torch's function."""
    arguments, keywords = (CHANNELS if "channel" in name else TENSORS)[case]
    expected, found = (getattr(home, name)(*arguments, **keywords) for home in (torch, ours))
    assert torch.equal(expected, found) and expected.dtype == found.dtype
    assert expected.stride() == found.stride()


Function = Callable[..., torch.Tensor]
PLACES: dict[str, Callable[[Function], torch.Tensor]] = {
    "vmap": lambda call: torch.vmap(lambda a: call(a, 0.1, 3, 0, 255))(X),
    "a gradient as a function": lambda call: torch.func.grad(
        lambda a: call(a, 0.1, 3, 0, 255).square().sum()
    )(X),
    "compiled": lambda call: torch.compile(lambda a: call(a, 0.1, 3, 0, 255), backend="eager")(X),
    "without gradients": lambda call: torch.no_grad()(call)(X, 0.1, 3, 0, 255),
    "inference mode": lambda call: torch.inference_mode()(call)(X, 0.1, 3, 0, 255),
    "autocast": lambda call: torch.autocast("cpu")(call)(X, 0.1, 3, 0, 255),
    "traced": lambda call: torch.jit.trace(lambda a: call(a, 0.1, 3, 0, 255), X)(2 * X),
}


@pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning", "ignore::torch.jit.TracerWarning")
@pytest.mark.filterwarnings("ignore:There is a performance drop:UserWarning")
@pytest.mark.parametrize("place", PLACES)
def test_places_of_a_call(place: str) -> None:
    """Transforms, compilers and modes of torch see torch's values."""
    theirs = PLACES[place](torch.fake_quantize_per_tensor_affine)
    assert torch.equal(PLACES[place](ours.fake_quantize_per_tensor_affine), theirs)


OBSERVERS = (
    *(ao.MinMaxObserver, ao.MovingAverageMinMaxObserver, ao.HistogramObserver),
    *(ao.PerChannelMinMaxObserver, ao.MovingAveragePerChannelMinMaxObserver),
)
DTYPES = ((torch.quint8, 0, 255), (torch.qint8, -128, 127), (torch.qint8, -127, 127), (torch.quint8, 0, 15))
SCHEMES = [
    (observer, limits, symmetric, reduced)
    for observer, limits, symmetric, reduced in itertools.product(
        OBSERVERS, DTYPES, (False, True), (False, True)
    )
    if not (symmetric and limits[0] == torch.quint8)  # docs/migrating.md has the difference
]


@pytest.mark.parametrize(("observer", "limits", "symmetric", "reduced"), SCHEMES)
def test_modules_of_torch_ao(observer: Any, limits: Any, symmetric: bool, reduced: bool) -> None:
    """With the same observer our FakeQuantize has torch.ao's values while ranges move, to the bit."""
    channels = "Channel" in observer.__name__
    scheme = getattr(
        torch, f"per_{'channel' if channels else 'tensor'}_{'symmetric' if symmetric else 'affine'}"
    )
    dtype, low, high = limits
    settings = {"ch_axis": 0} if channels else {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # what reduce_range will be one day
        theirs = ao.FakeQuantize(
            observer, low, high, dtype=dtype, qscheme=scheme, reduce_range=reduced, **settings
        )
        qtype = qtype_of_integers(theirs.quant_min, theirs.quant_max)
        spec = QuantSpec(qtype=str(qtype), symmetric=symmetric, axis=0 if channels else None)
        made = ours.FakeQuantize(spec, observer, arithmetic="reciprocal")
        generator = torch.Generator().manual_seed(0)
        for i in range(4):
            x = torch.randn(4, 16, generator=generator) * (i + 1) + 0.3 * i
            assert torch.equal(made(x), theirs(x))


@pytest.mark.parametrize("constant", [0.01, 0.5])
@pytest.mark.parametrize("channels", [False, True])
def test_the_fused_operator_of_torch(constant: float, channels: bool) -> None:
    """Observing begins at batch 3 and rounding at batch 5, by writing to the switches."""
    axis, shape = (0, (5,)) if channels else (None, ())
    spec = QuantSpec(qtype="uint8", symmetric=False, axis=axis)
    made = ours.FakeQuantize(spec, f"moving_average:{constant}", arithmetic="reciprocal")
    made.observer_enabled[0] = made.fake_quant_enabled[0] = 0
    ends = torch.full(shape, float("inf")), torch.full(shape, float("-inf"))
    size = shape or (1,)
    scale, zero_point = torch.ones(size), torch.zeros(size, dtype=torch.int32)
    generator = torch.Generator().manual_seed(0)
    for i in range(10):
        x = torch.randn(5, 7, generator=generator) * (i + 1)
        made.observer_enabled[0], made.fake_quant_enabled[0] = int(i > 2), int(i > 4)
        switches = made.observer_enabled.to(torch.int64), made.fake_quant_enabled.to(torch.int64)
        wanted = torch.fused_moving_avg_obs_fake_quant(
            x, *switches, *ends, scale, zero_point, constant, 0, 255, 0, channels, False
        )
        torch.testing.assert_close(made(x), wanted, rtol=1e-6, atol=0)  # scales of float64 ranges there
        if i > 2:
            torch.testing.assert_close(made.observer.min_val, ends[0], rtol=1e-6, atol=0)
            torch.testing.assert_close(made.observer.max_val, ends[1], rtol=1e-6, atol=0)


@pytest.mark.parametrize("axis", [None, 0])
def test_buffers_are_written_in_place(axis: int | None) -> None:
    """Replicas hold them: observing, torch.ao's four switches and a state dict keep every buffer."""
    made = ours.FakeQuantize(QuantSpec(qtype="int8", axis=axis), "moving_average:0.1")
    held = {name: id(buffer) for name, buffer in made.named_buffers()}
    for i in range(3):
        made(X * (i + 1))
    for switch in (ao.disable_fake_quant, ao.enable_fake_quant, ao.enable_observer, ao.disable_observer):
        made.apply(switch)
    made.load_state_dict(made.state_dict())
    assert {name: id(buffer) for name, buffer in made.named_buffers()} == held and held
