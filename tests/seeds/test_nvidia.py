"""pytorch-quantization's modules against the formula of its README."""

from __future__ import annotations

import runpy
from pathlib import Path

import numpy as np
import pytest

nn = pytest.importorskip("torch.nn")
pytest.importorskip("onnxscript")

import torch  # noqa: E402  only once it is known to be there

from onnxfq import errors
from onnxfq.torch import export_torch, quantize_module
from onnxfq.torch.compat import nvidia
from onnxfq.torch.compat.nvidia import QuantDescriptor, TensorQuantizer

EXAMPLE = Path(__file__).parents[2] / "examples" / "from_pytorch_quantization" / "example.py"


def formula(x, amax, bits=8):
    """Return amax / top * rn(top / amax * clip(x, -amax, amax))."""
    factor = (2 ** (bits - 1) - 1) / amax
    return torch.round(torch.maximum(torch.minimum(x, amax), -amax) * factor) / factor


@pytest.mark.parametrize("shape", [(), (1,), (3, 1, 1), (4, 1), (1, 3, 1, 1)])
def test_amax_of_any_shape_that_broadcasts(shape):
    """A given amax is read back, and gives the values of the formula; narrow_range clips at -amax."""
    x = torch.randn(2, 3, 4, 5, generator=torch.Generator().manual_seed(0))
    amax = torch.rand(shape, generator=torch.Generator().manual_seed(1)) + 0.5
    quantizer = TensorQuantizer(QuantDescriptor(amax=amax, narrow_range=True, name="x"))
    assert torch.equal(quantizer.amax, amax) and quantizer.desc.name == "x"
    assert torch.allclose(quantizer(x), formula(x, amax), rtol=1e-6, atol=0)


def test_amax_is_of_each_batch_until_calibrated():
    """Without amax each batch has its own; scale_amax multiplies it; axis gives one an index."""
    quantizer, channels = TensorQuantizer(), TensorQuantizer(QuantDescriptor(axis=(0,)))
    scaled = TensorQuantizer(QuantDescriptor(scale_amax=0.5, narrow_range=True))
    for seed in range(3):
        x = torch.randn(6, 7, generator=torch.Generator().manual_seed(seed)) * (seed + 1)
        assert torch.allclose(quantizer(x), formula(x, x.abs().max()), rtol=1e-6, atol=0)
        assert torch.allclose(channels(x), formula(x, x.abs().amax(1, keepdim=True)), rtol=1e-6, atol=0)
        assert torch.allclose(scaled(x), formula(x, x.abs().max() / 2), rtol=1e-6, atol=0)


def test_integers_and_unsigned():
    """fake_quant=False gives the integers; a negative value in an unsigned tensor is an error."""
    x = torch.tensor([-2.0, -0.5, 0.0, 1.0])
    integers = TensorQuantizer(QuantDescriptor(fake_quant=False, amax=1.0))(x)
    assert integers.tolist() == [-128, -64, 0, 127]
    unsigned = TensorQuantizer(QuantDescriptor(unsigned=True, fake_quant=False, amax=1.0))
    assert unsigned(x.abs()).tolist() == [255, 128, 0, 255]
    with pytest.raises(errors.SpecError, match="negative values in unsigned quantization"):
        unsigned(x)


def test_gradients_and_tiny_amax():
    """The gradient is 1 for |x| <= amax; learn_amax has one; amax of 2^-24 makes all zero."""
    x = torch.tensor([-1.001, -1.0, 0.3, 1.0, 1.001], requires_grad=True)
    TensorQuantizer(QuantDescriptor(amax=1.0))(x).sum().backward()
    assert x.grad.tolist() == [0, 1, 1, 1, 0]
    learned = TensorQuantizer(QuantDescriptor(amax=1.0, learn_amax=True))
    learned(x * 2).sum().backward()
    assert [name for name, _ in learned.named_parameters()] == ["_amax"]
    assert learned._amax.grad is not None
    assert not TensorQuantizer(QuantDescriptor(amax=2.0**-24))(x).any()


@pytest.mark.parametrize(("method", "how"), [("max", ""), ("histogram", "percentile"), ("histogram", "mse")])
def test_calibration(method, how):
    """enable_calib, data, load_calib_amax; parameters without a counterpart are refused."""
    quantizer = TensorQuantizer(QuantDescriptor(calib_method=method))
    quantizer.enable_calib()
    quantizer.disable_quant()
    x = torch.randn(4000, generator=torch.Generator().manual_seed(0))
    assert quantizer(x) is x
    quantizer.disable_calib()
    quantizer.enable_quant()
    quantizer.load_calib_amax(*([how] if how else []))
    assert 2.0 < float(quantizer.amax) <= float(x.abs().max())
    if method == "max":
        with pytest.raises(errors.SpecError, match="calibrator max takes no 'stride'"):
            quantizer.load_calib_amax(stride=2)
    quantizer.reset_amax()
    assert quantizer.amax is None


def test_histograms_grow_and_are_searched_in_strides():
    """Counts are NumPy's after bins were appended; amax is the best of the candidates that stride leaves."""
    generator = np.random.default_rng(0)
    batches = [generator.normal(size=3000).astype(np.float32) * factor for factor in (1, 2.5, 0.5)]
    made = nvidia.HistogramCalibrator(num_bins=300)
    for batch in batches:
        made.collect(torch.from_numpy(batch))
    values = np.abs(np.concatenate(batches)).astype(np.float64)
    width = np.abs(batches[0]).max() / 300
    assert made.edges[-1] >= values.max() and made.edges[-2] < values.max()
    assert np.allclose(np.diff(made.edges), width)
    counted = np.histogram(values, made.edges)[0]
    assert np.abs(made.counts - counted).sum() <= 2  # the first tensor's largest value lies on an edge
    low = float(made.compute_amax("percentile", percentile=90))
    assert low <= np.quantile(values, 0.9, method="inverted_cdf") <= low + width
    centres = torch.from_numpy((made.edges[1:] + made.edges[:-1]) / 2)
    tried = centres[100::7]
    errors_of = [
        ((torch.fake_quantize_per_tensor_affine(centres, float(a) / 127, 0, -127, 127) - centres) ** 2)
        .mul(torch.from_numpy(made.counts)).sum()
        for a in tried
    ]  # fmt: skip
    found = made.compute_amax("mse", start_bin=100, stride=7)
    assert float(found) == pytest.approx(float(tried[int(torch.stack(errors_of).argmin())]))
    everywhere, few = (float(made.compute_amax(stride=n, start_bin=130)) for n in (1, 200))
    assert everywhere < values.max() and few in made.edges[130::200].astype(np.float32)
    for wrong in ({"stride": 0}, {"start_bin": 10**6}, {"method": "entrpy"}, {"percentile": 0}):
        with pytest.raises(errors.SpecError):
            made.compute_amax(**wrong)
    with pytest.raises(errors.SpecError, match="has one amax, got axis 0"):
        nvidia.HistogramCalibrator(axis=0)


@pytest.mark.parametrize(
    ("name", "arguments", "shape"),
    [
        ("Linear", (5, 3), (2, 5)),
        ("Conv1d", (2, 3, 2), (1, 2, 6)),
        ("Conv2d", (2, 3, 2), (1, 2, 6, 6)),
        ("Conv3d", (2, 3, 2), (1, 2, 4, 4, 4)),
        ("ConvTranspose1d", (2, 3, 2), (1, 2, 6)),
        ("ConvTranspose2d", (2, 3, 2), (1, 2, 6, 6)),
        ("ConvTranspose3d", (2, 3, 2), (1, 2, 3, 3, 3)),
        ("MaxPool2d", (2,), (1, 2, 6, 6)),
        ("AdaptiveAvgPool1d", (2,), (1, 2, 6)),
        ("LayerNorm", (6,), (1, 2, 6)),
        ("InstanceNorm2d", (2,), (1, 2, 6, 6)),
    ],
)
def test_layers_quantize_input_and_weight(name, arguments, shape):
    """A quantized layer is the float layer on quantized input and weight, with an amax for each channel."""
    torch.manual_seed(0)
    layer = getattr(nvidia, f"Quant{name}")(*arguments)
    assert isinstance(layer, getattr(nn, name))
    x = torch.randn(shape)
    plain = getattr(nn, name)(*arguments)
    expected_input = formula(x, x.abs().max())
    if hasattr(layer, "weight_quantizer"):
        weight = layer._parameters["weight"].detach()
        axis = 1 if "Transpose" in name else 0
        rest = [d for d in range(weight.ndim) if d != axis]
        plain.weight.data = formula(weight, weight.abs().amax(rest, keepdim=True))
        plain.bias.data = layer.bias.data
    assert torch.allclose(layer(x), plain(expected_input), atol=1e-5)  # the order of sums


def test_initialize_quantizes_models_built_inside():
    """Layers of a block are quantized, except the ones in the list; own modules have a map."""

    class Twice(nn.Linear):
        pass

    class QuantTwice(nvidia.QuantLinear):
        pass

    home = type("home", (), {"Twice": Twice})
    before = nn.Conv2d
    with nvidia.initialize(["Linear"], [(home, "Twice", QuantTwice)]):
        made = nn.Sequential(nn.Conv2d(1, 2, 3), nn.Linear(2, 2), home.Twice(2, 2))
    assert nn.Conv2d is before and home.Twice is Twice
    assert hasattr(made[0], "weight_quantizer") and type(made[1]) is nn.Linear
    assert isinstance(made[2], QuantTwice) and hasattr(made[2], "input_quantizer")
    with pytest.raises(errors.ModelError, match="no quantized layer 'Conv4d'"), nvidia.initialize(["Conv4d"]):
        pass


def test_a_calibrated_layer_exports():
    """A layer with amax exports to Q/DQ."""
    layer = nvidia.QuantLinear(4, 3)
    x = torch.randn(2, 4)
    layer.input_quantizer.amax = 2.0
    layer.weight_quantizer.amax = layer._parameters["weight"].detach().abs().amax(1, keepdim=True)
    model = export_torch(layer, (x,))
    kinds = [node.op_type for node in model.graph.node]
    assert kinds.count("DequantizeLinear") == 2 and "QuantizeLinear" in kinds


def test_uncalibrated_modules_run():
    """quantize_module with amax in flight runs without calibration."""
    model = nn.Sequential(nn.Linear(4, 3))
    reference = nn.Linear(4, 3)
    reference.load_state_dict(model[0].state_dict())
    quantize_module(model, in_flight="uncalibrated", scale_rule="amax")
    x = torch.randn(5, 4)
    weight = reference.weight.data
    reference.weight.data = formula(weight, weight.abs().amax(1, keepdim=True))
    assert torch.allclose(model(x), reference(formula(x, x.abs().max())), atol=1e-5)  # the order of sums


def test_the_readmes_example_runs(tmp_path, monkeypatch, capsys):
    """The LeNet of the README with its imports changed: in flight, calibrated, and its sensitivity loop."""
    monkeypatch.chdir(tmp_path)
    runpy.run_path(str(EXAMPLE))
    text = capsys.readouterr().out
    assert "calibrated" in text and text.count("sensitivity") == 4
