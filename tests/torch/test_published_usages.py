"""Usages of AIMET, Horizon's plugin and pytorch-quantization, with our names and their published values.

Published values have four decimals: 6e-5 is half of the last one, and a little.
"""

from __future__ import annotations

import numpy as np
import pytest

nn = pytest.importorskip("torch.nn")
pytest.importorskip("onnxscript")

import torch  # noqa: E402  only once it is known to be there

from onnxfq.errors import SpecError, StatisticsError
from onnxfq.numerics.spec import QuantSpec
from onnxfq.torch import (
    FakeQuantize,
    compute_encodings,
    fake_quantize,
    is_initialized,
    learn_grids,
    quantizers,
)

DECIMALS = 6e-5


def test_aimet_function():
    """AIMET's quantize_dequantize of -0.3 ... 1.25 on 4 bits with scale 1/15 and offset 0."""
    x = torch.arange(start=-0.3, end=1.3, step=0.05)
    published = [0] * 7 + [1, 2, 2, 3, 4, 4, 5, 6, 7, 7, 8, 9, 10, 10, 11, 12, 13, 13, 14] + [15] * 6
    y = fake_quantize(x, 1 / 15, qtype="uint4")
    assert (y * 15).round().int().tolist() == published
    torch.testing.assert_close(y, torch.tensor(published) / 15, rtol=0, atol=DECIMALS)


def test_aimet_set_range():
    """AIMET's set_range(-10, 41) on 8 bits: values 0.4, 41, 3.6 and 9.4 from integers 52, 255, 68 and 97."""
    one = FakeQuantize(QuantSpec(qtype="uint8", symmetric=False))
    one.set_range(-10.0, 41.0)
    y = one(torch.tensor([[0.39, 51.0], [3.521, 9.41]]))
    torch.testing.assert_close(y, torch.tensor([[0.4, 41.0], [3.6, 9.4]]), rtol=0, atol=DECIMALS)
    scale, zero_point = one.qparams()
    assert (y / scale + zero_point).round().int().tolist() == [[52, 255], [68, 97]]


def test_aimet_blocks_and_compute_encodings():
    """A (5, 10) tensor in blocks of (1, 5): not initialised, then a separate range for each block.

    Each block's ends come back within half a step, and so does every value.
    """
    x = torch.randn(5, 10, generator=torch.Generator().manual_seed(0))
    one = FakeQuantize(QuantSpec(qtype="uint8", symmetric=False, block_shape=(1, 5)), "minmax")
    one.disable_observer()
    assert not is_initialized(one)
    with pytest.raises(StatisticsError, match="no scale yet"):
        one(x)
    with compute_encodings(one):
        one(x)
    assert is_initialized(one) and one.scale.shape == (5, 2)
    blocks = x.reshape(5, 2, 5)
    width = blocks.amax(2).clamp(min=0) - blocks.amin(2).clamp(max=0)
    torch.testing.assert_close(one.scale, width / 255)
    steps = (one(x).reshape(5, 2, 5) - blocks).abs() / one.scale[..., None]
    assert steps.max() <= 0.5 + 1e-3 and steps.max() > 0.4


def test_aimet_minimum_and_maximum_learn():
    """With min -1 and max 1 in blocks of (1, 5) values are multiples of 2/255; width and middle learn."""
    one = FakeQuantize(QuantSpec(qtype="uint8", symmetric=False, block_shape=(1, 5)), None)
    one.set_range(-torch.ones(5, 2), torch.ones(5, 2))
    one.learn("range")
    x = torch.randn(5, 10, generator=torch.Generator().manual_seed(0))
    y = one(x)
    steps = y * 255 / 2
    torch.testing.assert_close(steps, steps.round(), rtol=0, atol=1e-3)
    assert y.abs().max() <= 1 + 1 / 255 and dict(one.named_parameters()).keys() == {"log_ratio", "steps"}
    y.sum().backward()
    assert one.log_ratio.grad.any() and (one.steps.grad > 0).any()
    with pytest.raises(SpecError, match=r"the lower first, found 2.0 to 1.0"):
        one.set_range(2.0, 1.0)


def test_horizon_rounds_halves_up():
    """Horizon's kernels compute floor(x / scale + 0.5), here for 16 bits, and its gradient stops outside."""
    x = torch.tensor([-2.5, -1.5, -0.5, 0.5, 1.5, 2.5, 40000.0, -40000.0], requires_grad=True)
    one = FakeQuantize("int16", None, rounding="half_up")
    one.set_qparams(1.0)
    y = one(x)
    assert y.tolist() == [-2, -1, 0, 1, 2, 3, 32767, -32768]
    y.sum().backward()
    assert x.grad.tolist() == [1, 1, 1, 1, 1, 1, 0, 0]
    many = torch.randn(10_000, generator=torch.Generator().manual_seed(0)) * 100
    expected = np.floor(many.numpy() / np.float32(0.01) + np.float32(0.5)).clip(-32768, 32767)
    found = fake_quantize(many, 0.01, qtype="int16", rounding="half_up")
    np.testing.assert_array_equal(found.numpy(), expected * np.float32(0.01) + 0.0)


class Model(nn.Module):
    """A quantizer in front of a layer, made by a factory as qconfigs do."""

    def __init__(self, factory):
        """Make the parts."""
        super().__init__()
        self.quant, self.layer = factory(), nn.Linear(4, 2)

    def forward(self, x):
        """Return two numbers a row."""
        return self.layer(self.quant(x))


def test_horizon_states():
    """Calibration observes and passes on; training does both; validation only rounds: two switches."""
    factory = FakeQuantize.with_args("int16", "moving_average:0.1", rounding="half_up")
    model, x = Model(factory), torch.randn(3, 4, generator=torch.Generator().manual_seed(0))

    def state(observes, rounds):
        for quantizer in quantizers(model).values():
            quantizer.enable_observer(observes), quantizer.enable_fake_quant(rounds)

    state(True, False)  # calibration
    assert torch.equal(model(x), model.layer(x)) and is_initialized(model)
    scale = model.quant.scale.clone()
    state(True, True)  # training
    model(10 * x)
    grown = model.quant.scale.clone()
    assert grown > scale
    state(False, True)  # validation
    model(100 * x)
    assert torch.equal(model.quant.scale, grown)
    assert "int16" in repr(model) and "rounding=half_up" in repr(model)


# The example of the toolkit's documentation: torch.rand(10) with seed 12345.
X = [0.9817, 0.8796, 0.9921, 0.4611, 0.0832, 0.1784, 0.3674, 0.5676, 0.3376, 0.2119]
FAKE = [0.9843, 0.8828, 0.9921, 0.4609, 0.0859, 0.1797, 0.3672, 0.5703, 0.3359, 0.2109]
INTEGERS = [126, 113, 127, 59, 11, 23, 47, 73, 43, 27]


def test_pytorch_quantization_amax():
    """NVIDIA's fake_tensor_quant of the largest magnitude: [-127, 127], scale 128.0057 steps to 1."""
    torch.manual_seed(12345)
    x = torch.rand(10)
    torch.testing.assert_close(x, torch.tensor(X), rtol=0, atol=DECIMALS)
    one = FakeQuantize("int8[-127,127]", "minmax")
    y = one(x)
    torch.testing.assert_close(y, torch.tensor(FAKE), rtol=0, atol=DECIMALS)
    assert (y / one.scale).round().int().tolist() == INTEGERS
    assert abs(1 / one.scale.item() - 128.0057) < 1e-4
    assert torch.equal(y, fake_quantize(x, x.max() / 127, qtype="int8[-127,127]"))


def test_pytorch_quantization_descriptor():
    """A descriptor of 4 bits, unsigned, along axis 0 gives one amax for each of ten slices, and 15 steps."""
    torch.manual_seed(12345)
    x = torch.rand(10, 9, 8, 7)
    one = FakeQuantize(QuantSpec(qtype="uint4", symmetric=False, axis=0), "minmax")
    y = one(x)
    amax = x.amax((1, 2, 3))
    torch.testing.assert_close(one.scale, amax / 15)
    assert one.scale.shape == (10,) and not one.zero_point.any()
    steps = (y / one.scale.reshape(-1, 1, 1, 1)).round()
    assert steps.min() == 0 and torch.equal(steps.amax((1, 2, 3)), torch.full((10,), 15.0))


def test_pytorch_quantization_switches_and_learned_amax():
    """TensorQuantizer's ways: disabled, calibrating only, quantizing, with a learned amax."""
    one = FakeQuantize("int8[-127,127]", "histogram")
    x = torch.randn(1000, generator=torch.Generator().manual_seed(0))
    one.disable_observer(), one.disable_fake_quant()
    assert one(x) is x
    one.enable_observer()
    assert one(x) is x and not one.is_initialized
    one.calibrate()  # load_calib_amax
    one.disable_observer(), one.enable_fake_quant()
    amax = one.scale * 127
    assert amax == x.abs().max()
    learn_grids(one, "range")
    torch.testing.assert_close(one.rmax, amax)
    one(2 * x).sum().backward()
    assert one.log_ratio.grad is not None
