"""pytorch-quantization's descriptor, functions and quantizer against the formula of its README."""

from __future__ import annotations

import runpy
from pathlib import Path

import numpy as np
import pytest

nn = pytest.importorskip("torch.nn")
pytest.importorskip("onnxscript")

import torch  # only once it is known to be there
from quantized_modules import normal
from torch.profiler import ProfilerActivity, profile

from onnxfq import errors
from onnxfq.torch.compat import nvidia
from onnxfq.torch.compat.nvidia import QuantDescriptor, TensorQuantizer, tensor_quant
from onnxfq.torch.compat.nvidia.nn import functional

EXAMPLE = Path(__file__).parents[2] / "examples" / "from_pytorch_quantization" / "example.py"


def formula(x, amax, bits=8, low=None):
    """Return amax / top * rn(top / amax * clip(x, -amax, amax)), with exact divisions."""
    top = 2 ** (bits - 1) - 1
    factor = torch.full_like(amax, top) / amax
    return (x * factor).round().clamp(-top if low is None else low, top) / factor


@pytest.mark.parametrize("bits", [2, 4, 8, 11, 16])
@pytest.mark.parametrize("shape", [(), (1,), (3, 1, 1), (4, 1), (1, 3, 1, 1), (2, 3, 4, 5)])
def test_values_are_the_formulas_to_the_bit(shape, bits):
    """The amax has any shape that broadcasts; float64 stays, and a half type is multiplied in float32."""
    x, amax = normal(2, 3, 4, 5), normal(*shape, seed=1).abs() + 0.5
    assert torch.equal(tensor_quant.fake_tensor_quant(x, amax, bits), formula(x, amax, bits))
    found = tensor_quant.fake_tensor_quant(x.double(), amax.double(), bits)
    assert found.dtype == torch.float64 and torch.equal(found, formula(x.double(), amax.double(), bits))
    half = x.half()
    factor = torch.full_like(amax, 2 ** (bits - 1) - 1) / amax
    top = 2 ** (bits - 1) - 1
    wanted = (half.float() * factor).round().clamp(-top, top).half() / factor.half()
    assert torch.equal(tensor_quant.fake_tensor_quant(half, amax, bits), wanted)


def test_quantizers_call_the_function():
    """Without amax each input has its own; scale_amax multiplies it; axis gives one an index."""
    quantizer, channels = TensorQuantizer(), TensorQuantizer(QuantDescriptor(axis=(-2,)))
    scaled = TensorQuantizer(QuantDescriptor(scale_amax=0.5, narrow_range=True))
    for seed in range(3):
        x = normal(6, 7, seed=seed) * (seed + 1)
        assert torch.equal(quantizer(x), formula(x, x.abs().max(), low=-128))
        assert torch.equal(channels(x), formula(x, x.abs().amax(1, keepdim=True), low=-128))
        assert torch.equal(scaled(x), formula(x, x.abs().max() * 0.5))
    assert TensorQuantizer()(torch.tensor([0.1, 0.7], dtype=torch.float64))[1].item() == 0.7


def test_integers_and_unsigned():
    """fake_quant=False gives integers and their scale; a negative value in an unsigned tensor is an error."""
    x = torch.tensor([-2.0, -0.5, 0.0, 1.0])
    quantizer = TensorQuantizer(QuantDescriptor(fake_quant=False, amax=1.0))
    assert quantizer.scale is None
    assert quantizer(x).tolist() == [-127, -64, 0, 127] and float(quantizer.scale) == 127
    unsigned = TensorQuantizer(QuantDescriptor(unsigned=True, fake_quant=False, amax=1.0))
    assert unsigned(x.abs()).tolist() == [255, 128, 0, 255]
    with pytest.raises(TypeError, match="Negative values encountered"):
        unsigned(x)
    with pytest.raises(ValueError, match="too large for FP16"):
        tensor_quant.tensor_quant(x.half(), 1e-4)
    assert TensorQuantizer().scale == 1


def test_gradients_and_tiny_amax():
    """The gradient is 1 for |x| <= amax; amax of 2^-24 makes all zero."""
    x = torch.tensor([-1.001, -1.0, 0.3, 1.0, 1.001], requires_grad=True)
    TensorQuantizer(QuantDescriptor(amax=1.0))(x).sum().backward()
    assert x.grad.tolist() == [0, 1, 1, 1, 0]
    tiny = torch.tensor([[1.0], [2.0**-24], [0.0]])
    y = tensor_quant.fake_tensor_quant(x.detach().expand(3, 5), tiny)
    assert y[0].all() and not y[1:].any()


def test_float8_and_affine():
    """(4, 3) is torch's float8_e4m3fn times amax / 448; a range with a zero point is torch's function."""
    x = normal(500).requires_grad_()
    factor = 448 / x.detach().abs().max()
    wanted = (x.detach() * factor).to(torch.float8_e4m3fn).float() / factor
    assert torch.equal(TensorQuantizer(QuantDescriptor(num_bits=(4, 3)))(x), wanted)
    assert torch.equal(tensor_quant.scaled_e4m3(x / 8), (x / 8).to(torch.float8_e4m3fn).float())
    tensor_quant.scaled_e4m3(x, 1.0).sum().backward()
    assert torch.equal(x.grad, (x.abs() <= 1).float())
    low, high = torch.tensor(-1.28), torch.tensor(1.27)
    found = tensor_quant.fake_affine_tensor_quant(x.detach(), low, high)
    wanted = torch.fake_quantize_per_tensor_affine(x.detach(), 0.01, 0, -128, 127)
    assert torch.allclose(found, wanted, atol=1e-6)  # (high - low) / 255 is not 0.01 to the last bit


def test_learned_ends_clip_first():
    """Ends are parameters that begin at amax or 1, with the gradients of torch.clamp's ends."""
    quantizer = TensorQuantizer(QuantDescriptor(amax=1.0, learn_amax=True))
    names = [name for name, _ in quantizer.named_parameters()]
    assert names == ["clip.clip_value_min", "clip.clip_value_max"]
    assert quantizer(torch.tensor([-3.0, 3.0])).tolist() == [-1, 1]
    assert TensorQuantizer(QuantDescriptor(learn_amax=True)).clip.clip_value_max.item() == 1
    x = normal(100).requires_grad_()
    low, high = (torch.tensor(v, requires_grad=True) for v in (-0.5, 0.7))
    functional.clip(x, low, high).square().sum().backward()
    mine = x.grad, low.grad, high.grad
    x.grad = low.grad = high.grad = None
    torch.clamp(x, low, high).square().sum().backward()
    for found, wanted in zip(mine, (x.grad, low.grad, high.grad), strict=True):
        assert torch.allclose(found, wanted)  # sums in another order
    quantizer.enable_calib()
    quantizer(torch.tensor([5.0]))
    quantizer.load_calib_amax()
    quantizer.init_learn_amax()
    assert [p.item() for p in quantizer.parameters()] == [-5, 5]
    quantizer.clip.clip_value_max.data.fill_(1.0)  # amax is the larger end
    clipped = formula(torch.tensor([-4.0, 1.0]), torch.tensor(5.0))
    assert torch.equal(quantizer(torch.tensor([-4.0, 4.0])), clipped)
    quantizer.disable_clip()
    assert not any(p.requires_grad for p in quantizer.parameters())


def test_settings_act():
    """What is set counts from the next input on; what has no effect is refused."""
    x, quantizer = normal(1000), TensorQuantizer()
    quantizer.num_bits = 3
    assert torch.equal(quantizer(x), formula(x, x.abs().max(), 3, low=-4))
    quantizer.narrow_range = True
    assert torch.equal(quantizer(x), formula(x, x.abs().max(), 3))
    quantizer.unsigned = True
    assert quantizer.maxbound == 7 and len(quantizer(x.abs()).unique()) == 8
    quantizer.pre_quant_scale = 2.0
    quantizer.amax = 4.0
    assert quantizer(torch.tensor(1.9)) == 4 and quantizer.step_size == torch.tensor(4.0) / 7
    quantizer._if_quant = False
    assert torch.equal(quantizer(x), x * 2)
    hidden = TensorQuantizer()
    hidden._amax = torch.tensor(0.5)
    assert hidden.amax == 0.5 and hidden(torch.tensor(3.0)) == 0.5 and "_amax" in hidden.state_dict()
    quantizer._disabled = True
    assert quantizer.extra_repr() == "disabled"
    for name in ("axis", "nbits", "fake_quant"):
        with pytest.raises(errors.SpecError, match=name):
            setattr(quantizer, name, 1)


@pytest.mark.parametrize(
    ("kind", "make"),
    [
        (ValueError, lambda: QuantDescriptor(num_bits=-1)),
        (ValueError, lambda: QuantDescriptor(num_bits=0)),
        (TypeError, lambda: QuantDescriptor(num_bits=(5, 2))),
        (TypeError, lambda: QuantDescriptor(num_bits=8.0)),
        (TypeError, lambda: QuantDescriptor(name=3)),
        (TypeError, lambda: QuantDescriptor(amax="oops")),
        (ValueError, lambda: QuantDescriptor(amax=-1.0)),
        (ValueError, lambda: QuantDescriptor(amax=float("nan"))),
        (TypeError, lambda: QuantDescriptor(axis=(1, 2), learn_amax=True)),
        (TypeError, lambda: QuantDescriptor(axis="rows")),
        (TypeError, lambda: QuantDescriptor(unsigned=1)),
        (ValueError, lambda: QuantDescriptor(calib_method="maxx")),
        (ValueError, lambda: QuantDescriptor(scale_amax=0)),
        (ValueError, lambda: QuantDescriptor.from_yaml("- 8")),
        (ValueError, lambda: TensorQuantizer(QuantDescriptor(learn_amax=True, amax=[1.0, 2.0]))),
        (ValueError, lambda: TensorQuantizer(if_clip=True)),
        (TypeError, lambda: TensorQuantizer(8)),
        (TypeError, lambda: TensorQuantizer()([1.0])),
        (ValueError, lambda: TensorQuantizer(QuantDescriptor(num_bits=1))(torch.ones(2))),
        (RuntimeError, lambda: setattr(TensorQuantizer(QuantDescriptor(amax=1.0)), "amax", [1.0, 2.0])),
        (RuntimeError, lambda: TensorQuantizer().load_calib_amax()),
        (TypeError, lambda: TensorQuantizer().load_calib_amax(stride=2)),
        (ValueError, lambda: tensor_quant.fake_tensor_quant(torch.ones(2), -1.0)),
        (ValueError, lambda: tensor_quant.fake_tensor_quant(torch.ones(2), torch.ones(3))),
        (TypeError, lambda: tensor_quant.fake_tensor_quant(torch.ones(2, dtype=torch.int8), 1.0)),
        (ValueError, lambda: tensor_quant.fake_affine_tensor_quant(torch.ones(2), 1.0, 1.0)),
        (ValueError, lambda: tensor_quant.scaled_e4m3(torch.ones(2), None, 5, 2)),
        (ValueError, lambda: nvidia.Clip(torch.tensor(0.3), 1.0, learn_min=True)),
        (ValueError, lambda: nvidia.utils.reduce_amax(torch.ones(2), (0, 1, 2))),
    ],
)
def test_wrong_arguments_are_one_line(kind, make):
    """The error is ours and the original's kind."""
    with pytest.raises(kind) as caught:
        make()
    assert isinstance(caught.value, errors.OnnxfqError)


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"num_bits": (4, 3), "name": "x", "axis": None, "fake_quant": False},
        {"num_bits": 4, "axis": (0, 2), "amax": [1.5, 2.25], "unsigned": True, "narrow_range": True},
        {"amax": 0.1, "learn_amax": True, "calib_method": "histogram", "scale_amax": 0.5},
    ],
)
def test_descriptors_as_dictionary_and_yaml(settings):
    """A descriptor comes back equal from both forms, with every setting."""
    made = QuantDescriptor(**settings)
    assert QuantDescriptor(**made.dict()) == made == QuantDescriptor.from_yaml(made.to_yaml())
    for name, value in settings.items():
        assert np.array_equal(getattr(made, name), np.float32(value) if name == "amax" else value)
    assert (made == QuantDescriptor()) == (not settings)


def test_the_lines_that_print_shows():
    """Descriptors have the texts of the original's `__str__`, quantizers bits, axis and amax."""
    quantizer = TensorQuantizer(QuantDescriptor(num_bits=4, axis=0))
    assert quantizer.extra_repr().startswith("4bit fake axis=0 amax=dynamic")
    quantizer.amax = np.array([[1.5], [2]], dtype=np.float32)
    assert "amax=[1.5000, 2.0000](2)" in repr(quantizer)
    made = QuantDescriptor(num_bits=4, fake_quant=False, axis=(0), unsigned=True)
    assert str(made) == "QuantDescriptor(unsigned 4bit real axis=0)"
    assert str(QuantDescriptor(name="a", amax=1.5)) == "a: (8bit fake axis= per-tensor amax=1.5 full_range)"
    assert str(QuantDescriptor(learn_amax=True)) == "QuantDescriptor(8bit fake axis= per-tensor learn_amax)"


def test_states_without_a_range_are_refused():
    """A state older than the calibration, and a NaN that strict=False set, are errors with a remedy."""
    known = TensorQuantizer(QuantDescriptor(amax=1.0))
    with pytest.raises(RuntimeError, match="older than the calibration; load it into a new module"):
        known.load_state_dict(TensorQuantizer().state_dict())
    empty = TensorQuantizer()
    with pytest.warns(UserWarning, match="amax is NaN"):
        empty.load_calib_amax(strict=False)
    with pytest.raises(RuntimeError, match="is NaN: the state was saved without data"):
        known.load_state_dict(empty.state_dict())


def peak_of(run):
    """Return the most bytes that tensors took at once while `run` ran."""
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as found:
        run()
    sizes = [e.nbytes() for e in found.profiler.kineto_results.events() if e.name() == "[memory]"]
    return int(np.cumsum(sizes).max())


def test_memory():
    """A quantizer makes one tensor of the input's size: the result."""
    x = normal(256, 1024)
    with torch.no_grad():
        assert x.nbytes <= peak_of(lambda: TensorQuantizer()(x)) < 1.1 * x.nbytes


@pytest.mark.whole
def test_the_readmes_example_runs(tmp_path, monkeypatch, capsys):
    """The LeNet of the README with its imports changed: in flight, calibrated, and its sensitivity loop."""
    monkeypatch.chdir(tmp_path)
    runpy.run_path(str(EXAMPLE))
    text = capsys.readouterr().out
    assert "calibrated" in text and text.count("sensitivity") == 4
