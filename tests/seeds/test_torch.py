"""torch's fake_quantize_per_channel_affine and _per_tensor_affine, against torch itself."""

from __future__ import annotations

import numpy as np
import pytest

nn = pytest.importorskip("torch.nn")
pytest.importorskip("onnxscript")

import torch  # noqa: E402  only once it is known to be there
from quantized_modules import run

from onnxfq import errors
from onnxfq.torch import export_torch, fake_quantize_per_channel_affine, fake_quantize_per_tensor_affine

LIMITS = [(-128, 127), (0, 255), (-7, 7), (0, 1), (5, 10), (-9, -2), (0, 0), (-(2**19), 2**19 - 1)]


def draw(low, high, seed=0):
    """Return x [4, 3, 50] that leaves the grid at both ends, scales and int32 zero points."""
    generator = torch.Generator().manual_seed(seed)
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
    calls = [
        (torch.fake_quantize_per_channel_affine, fake_quantize_per_channel_affine, (scale, zero_point, 1)),
        (
            torch.fake_quantize_per_tensor_affine,
            fake_quantize_per_tensor_affine,
            (float(scale[0]), int(zero_point[0])),
        ),
        (torch.fake_quantize_per_tensor_affine, fake_quantize_per_tensor_affine, (scale[1], zero_point[1])),
    ]
    for theirs, ours, arguments in calls:
        expected, found = theirs(x, *arguments, *limits), ours(x, *arguments, *limits)
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
    given = {
        "scale": scale,
        "zero_point": zero_point,
        "axis": 1,
        "quant_min": -128,
        "quant_max": 127,
    } | change
    with pytest.raises((RuntimeError, IndexError)):
        torch.fake_quantize_per_channel_affine(x, *given.values())
    with pytest.raises(errors.SpecError, match=message):
        fake_quantize_per_channel_affine(x, *given.values())


def test_differences_of_the_table():
    """docs/migrating.md: NaN, a scale of 0, fractional zero points, float64."""
    x, scale, zero_point = draw(-128, 127)
    nan = torch.full((1, 1), float("nan"))
    one = torch.ones(1)
    assert (
        torch.fake_quantize_per_channel_affine(nan, one, torch.zeros(1, dtype=torch.int32), 1, -128, 127)
        == -128
    )
    assert fake_quantize_per_channel_affine(nan, one, torch.zeros(1, dtype=torch.int32), 1, -128, 127).isnan()
    with pytest.raises(errors.SpecError, match="scale must be finite and positive"):
        fake_quantize_per_tensor_affine(x, 0.0, 0, -128, 127)
    fractions = zero_point * 0.5 + 0.25
    steps = torch.fake_quantize_per_channel_affine(x, scale, fractions, 1, -128, 127)
    steps -= fake_quantize_per_channel_affine(x, scale, fractions, 1, -128, 127)
    assert float((steps.abs() / scale[:, None]).max()) < 1e-4
    wide = x.double()
    steps = torch.fake_quantize_per_tensor_affine(wide, 0.05, 3, -128, 127)
    steps -= fake_quantize_per_tensor_affine(wide, 0.05, 3, -128, 127)
    assert float(steps.abs().max()) / 0.05 < 1e-4
    x, scale, zero_point = draw(-(2**19), 2**19 - 1)
    steps = torch.fake_quantize_per_channel_affine(x, scale, zero_point.float(), 1, -(2**19), 2**19 - 1)
    steps -= fake_quantize_per_channel_affine(x, scale, zero_point.float(), 1, -(2**19), 2**19 - 1)
    assert float((steps.abs() / scale[:, None]).max()) < 2


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
