"""Settings of a FakeQuantize that other libraries have: each works, or is an error with what does."""

from __future__ import annotations

import pytest

nn = pytest.importorskip("torch.nn")

import torch  # noqa: E402  only once it is known to be there
from torch.ao import quantization as ao

from onnxfq.errors import SpecError, StatisticsError
from onnxfq.torch import compute_encodings, quantizers
from onnxfq.torch.quantizer import FakeQuantize

X = torch.linspace(-1, 2, 8)


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("bitwidth", "setting bitwidth of a FakeQuantize has no effect; make a new FakeQuantize"),
        ("symmetric", "make a new FakeQuantize with another spec"),
        ("min", "setting min of a FakeQuantize has no effect; use set_range"),
        ("amax", "use set_range"),
        ("spec", "spec of a FakeQuantize is fixed"),
        ("fake_quant_enable", "a FakeQuantize has no fake_quant_enable to set; nearest: fake_quant_enabled"),
    ],
)
def test_attributes_without_effect(name: str, words: str) -> None:
    """One line that says what to do; names of torch's own tools stay free."""
    made = FakeQuantize("int8")
    with pytest.raises(SpecError, match=words):
        setattr(made, name, nn.Parameter(torch.ones(())))
    made.qconfig = None
    assert name not in dict(made.named_parameters())


def test_torchs_switches_work() -> None:
    """`module.apply` with the functions of torch.ao switches as for its own modules."""
    model = nn.Sequential(FakeQuantize("int8"))
    with compute_encodings(model):
        model(X)
    model.apply(ao.disable_fake_quant)
    assert torch.equal(model(X), X)
    model.apply(ao.enable_fake_quant)
    assert not torch.equal(model(X), X)
    before = model[0].qparams()
    model.apply(ao.disable_observer)
    model(100 * X)
    assert model[0].qparams() == before
    model.apply(ao.enable_observer)
    model(100 * X)
    assert model[0].qparams() != before


@pytest.mark.parametrize("how", ["set_range", "set_qparams", "disable_observer"])
def test_given_scales_are_not_overwritten_silently(how: str) -> None:
    """`compute_encodings` asks for a decision, and then keeps or replaces the scale as AIMET does."""
    model = nn.Sequential(FakeQuantize("int8"))
    (quantizer,) = quantizers(model).values()
    if how == "set_range":
        quantizer.set_range(-1.0, 1.0)
    elif how == "set_qparams":
        quantizer.set_qparams(0.5)
    else:
        with compute_encodings(model):
            model(X / 2)
        quantizer.disable_observer()
    before = quantizer.qparams()
    with pytest.raises(StatisticsError, match="quantizer '0' has a scale that was set or frozen by hand"):
        with compute_encodings(model):
            model(X)
    quantizer.allow_overwrite(False)
    with compute_encodings(model):
        model(X)
    assert quantizer.qparams() == before
    quantizer.allow_overwrite()
    with compute_encodings(model):
        model(X)
    assert quantizer.qparams() != before
