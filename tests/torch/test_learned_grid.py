"""Learned grids: distances from the calibrated grid, under any optimizer, saved and resumed."""

from __future__ import annotations

import copy
import io

import numpy as np
import pytest
import torch
from quantized_modules import normal
from torch import nn
from torch.nn import functional as F

from onnxfq.errors import SpecError
from onnxfq.numerics.spec import QuantSpec
from onnxfq.torch import (
    FakeQuantize,
    compute_encodings,
    fake_quantize_range,
    learn_grids,
    lsq_factor,
    quantize_module,
    quantizers,
)

LEARNED = ("scale", "scale_zero_point", "range")
SPECS = {"tensor": QuantSpec(qtype="uint8", symmetric=False), "signed": QuantSpec(qtype="int8")}


def learning(what: str, spec: QuantSpec = SPECS["tensor"]) -> FakeQuantize:
    """Return a quantizer that learns from a scale of values."""
    one = FakeQuantize(spec)
    one(normal(40, 8))
    one.learn(what)
    return one


def network(what: str) -> nn.Module:
    """Return a calibrated network that learns its grids."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(144, 3))
    quantize_module(model.eval(), "onnxruntime-int8")
    with torch.no_grad(), compute_encodings(model):
        model(normal(16, 1, 8, 8))
    learn_grids(model.train(), what)
    return model


def train(model: nn.Module, optimizer: torch.optim.Optimizer, steps: int) -> None:
    """Take steps on fixed data."""
    for _ in range(steps):
        optimizer.zero_grad()
        F.cross_entropy(model(normal(16, 1, 8, 8)), torch.arange(16) % 3).backward()
        optimizer.step()


@pytest.mark.sample
def test_the_gradient_is_torchs_by_the_chain_rule() -> None:
    """The logarithm's gradient is the scale times the one of torch's learnable function, with LSQ's factor.

    Sums of 320 terms in another order.
    """
    one, x = learning("scale_zero_point"), normal(40, 8, seed=1) * 3
    scale, zero = (value.float().reshape(1).requires_grad_() for value in one.qparams())
    factor = lsq_factor(x.numel(), "uint8")
    torch._fake_quantize_learnable_per_tensor_affine(x, scale, zero, 0, 255, factor).square().sum().backward()
    one(x).square().sum().backward()
    torch.testing.assert_close(one.log_ratio.grad, (scale * scale.grad).detach()[0], rtol=1e-3, atol=1e-3)
    torch.testing.assert_close(one.steps.grad, zero.grad[0], rtol=1e-3, atol=1e-3)


def test_the_gradients_of_a_range_are_those_of_its_ends() -> None:
    """A step of the middle moves both ends by a scale, the logarithm of the width each by half of it."""
    one, x = learning("range"), normal(40, 8, seed=1) * 3
    low, high = (end.detach().clone().requires_grad_() for end in (one.rmin, one.rmax))
    fake_quantize_range(x, low, high, qtype="uint8").square().sum().backward()
    one(x).square().sum().backward()
    width = (high - low).detach()
    torch.testing.assert_close(one.log_ratio.grad, (high.grad - low.grad) * width / 2)
    torch.testing.assert_close(one.steps.grad, (high.grad + low.grad) * width / 255)


@pytest.mark.whole
@pytest.mark.parametrize("what", LEARNED)
def test_training_that_is_resumed_has_its_bits(what: str) -> None:
    """Six steps are three, a state dict of model and optimizer, and three more."""
    whole, part, again = (network(what) for _ in range(3))
    one = torch.optim.AdamW(whole.parameters(), 1e-2)
    train(whole, one, 6)
    first = torch.optim.AdamW(part.parameters(), 1e-2)
    train(part, first, 3)
    file = io.BytesIO()
    torch.save((part.state_dict(), first.state_dict()), file)
    file.seek(0)
    state, steps = torch.load(file)
    again.load_state_dict(state)
    second = torch.optim.AdamW(again.parameters(), 1e-2)
    second.load_state_dict(steps)
    train(again, second, 3)
    for (name, found), expected in zip(again.state_dict().items(), whole.state_dict().values(), strict=True):
        assert torch.equal(found, expected), name


@pytest.mark.grid
@pytest.mark.parametrize("what", LEARNED)
@pytest.mark.parametrize("spec", SPECS.values(), ids=SPECS)
def test_no_step_makes_a_scale_negative(what: str, spec: QuantSpec) -> None:
    """Optimizers leave a positive finite scale, and weight decay alone leads to the calibrated one."""
    if spec.symmetric and what == "scale_zero_point":
        return
    one, x = learning(what, spec), normal(40, 8, seed=1)
    calibrated, _ = one.qparams()
    for optimizer in (torch.optim.AdamW(one.parameters(), 0.5), torch.optim.SGD(one.parameters(), 0.1)):
        for sign in (1, -1, 1, -1, -1, -1):
            optimizer.zero_grad()
            (sign * (one(x) - x).square().mean()).backward()
            optimizer.step()
            scale = one.qparams()[0]
            assert scale > 0 and scale.isfinite()
    with torch.no_grad():
        for distance in one.parameters():
            distance.fill_(0.4)
    decay = torch.optim.AdamW(one.parameters(), 1.0, weight_decay=0.5)
    for _ in range(40):
        for distance in one.parameters():
            distance.grad = torch.zeros_like(distance)
        decay.step()
    torch.testing.assert_close(one.qparams()[0], calibrated)


def test_a_scale_that_is_computed_is_not_set() -> None:
    """The error names `set_qparams`; learning begins anew from the scale that it gets."""
    one = learning("scale")
    with pytest.raises(
        SpecError, match="scale of a FakeQuantize that learns it is computed; use set_qparams"
    ):
        one.scale = torch.tensor(1.0)
    with torch.no_grad():
        one.log_ratio.add_(1.0)
    one.set_qparams(0.25, 3)
    assert one.qparams() == (0.25, 3) and one.log_ratio == 0


def test_the_scale_of_a_weight_goes_on_to_follow_it() -> None:
    """A weight twice as large has twice the scale, times what was learned: BatchNorm changes weights too."""
    model = network("scale")
    quantizer = quantizers(model)["0.weight_quantizer"]
    with torch.no_grad():
        quantizer.log_ratio.add_(0.1)
        model(normal(2, 1, 8, 8))
        before = copy.deepcopy(quantizer.scale)
        model.eval()[0].weight.mul_(2)
        model(normal(2, 1, 8, 8))
        factor = torch.rsqrt(model[1].running_var + model[1].eps)
        amax = (model[0].weight * factor[:, None, None, None]).abs().amax((1, 2, 3))
    np.testing.assert_allclose(quantizer.scale.detach(), amax / 127 * np.exp(0.1), rtol=0.01)
    assert (quantizer.scale > before).all()
