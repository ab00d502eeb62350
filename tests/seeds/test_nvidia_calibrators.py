"""pytorch-quantization's calibrators against NumPy's histograms and exhaustive searches."""

from __future__ import annotations

import numpy as np
import pytest

nn = pytest.importorskip("torch.nn")
pytest.importorskip("onnxscript")

import torch  # only once it is known to be there

from onnxfq import errors
from onnxfq.torch.compat import nvidia
from onnxfq.torch.compat.nvidia import HistogramCalibrator, MaxCalibrator, QuantDescriptor


def batches(*factors, size=3000):
    """Return normal numbers, a tensor for each factor."""
    generator = np.random.default_rng(0)
    return [torch.from_numpy(generator.normal(size=size).astype(np.float32) * f) for f in factors]


@pytest.mark.parametrize(
    ("axis", "wanted"), [(None, ()), (0, (2, 1, 1)), ((0, -1), (2, 1, 4)), (-2, (1, 3, 1))]
)
def test_largest_magnitudes(axis, wanted):
    """The amax of several tensors is NumPy's largest magnitude, for each index of the axes."""
    calibrator = MaxCalibrator(8, axis, False, track_amax=True)
    seen = [x.reshape(2, 3, 4) for x in batches(1, 2, 0.5, size=24)]
    for x in seen:
        calibrator.collect(x)
    kept = () if axis is None else tuple(d % 3 for d in np.atleast_1d(axis))
    rest = tuple(d for d in range(3) if d not in kept)
    largest = np.abs(np.stack([x.numpy() for x in seen])).max(0).max(rest, keepdims=True).reshape(wanted)
    found = calibrator.compute_amax()
    assert found.shape == wanted and np.array_equal(found, largest)
    second = np.abs(seen[1].numpy()).max(rest, keepdims=True).reshape(wanted)
    assert np.array_equal(calibrator.amaxs[1], second)
    calibrator.reset()
    assert calibrator.compute_amax() is None


def test_another_number_of_channels_is_refused():
    """Channels do not broadcast against those that were seen."""
    calibrator = MaxCalibrator(axis=0)
    calibrator.collect(torch.ones(3, 2))
    for wrong in (torch.ones(1, 2), torch.ones(4, 2), torch.ones(3)):
        with pytest.raises(RuntimeError, match="amax shape changed from"):
            calibrator.collect(wrong)


def test_histograms_grow():
    """Counts are NumPy's after bins of the first tensor's width were appended."""
    made, values = filled()
    edges = made._calib_bin_edges.double().numpy()
    assert edges[-1] >= values.max() > edges[-2]
    assert np.allclose(np.diff(edges), values[:3000].max() / 300, atol=1e-6)  # edges are float32
    counted = np.histogram(values, edges)[0]
    assert np.abs(made._calib_hist.numpy() - counted).sum() <= 2  # the first largest value lies on an edge
    without = HistogramCalibrator(skip_zeros=True)
    without.collect(torch.tensor([0.0, 0.0, 1.0]))
    assert int(without._calib_hist.sum()) == 1


def filled():
    """Return a histogram of three tensors, and their magnitudes."""
    seen = batches(1, 2.5, 0.5)
    made = HistogramCalibrator(num_bins=300)
    for x in seen:
        made.collect(x)
    return made, np.abs(np.concatenate([x.numpy() for x in seen]))


@pytest.mark.parametrize("percentile", [50, 90, 99.9])
def test_percentiles(percentile):
    """The edge of the bin that NumPy's quantile lies in."""
    made, values = filled()
    low = float(made.compute_amax("percentile", percentile=percentile))
    width = float(made._calib_bin_edges[1])
    assert low <= np.quantile(values, percentile / 100, method="inverted_cdf") <= low + width * 1.001


@pytest.mark.parametrize("bits", [8, 4, (4, 3)])
def test_least_squared_error(bits):
    """No other candidate has a smaller error, by torch's own rounding."""
    made, _ = filled()
    made._num_bits = bits
    edges, hist = made._calib_bin_edges, made._calib_hist
    centres = (edges[1:] + edges[:-1]) / 2
    tried = centres[100::7]

    def error(amax):
        if bits == (4, 3):
            rounded = (centres * 448 / amax).clamp(max=448).to(torch.float8_e4m3fn).float() * amax / 448
        else:
            top = 2 ** (bits - 1) - 1
            rounded = torch.fake_quantize_per_tensor_affine(centres, float(amax) / top, 0, -top, top)
        return float(((rounded - centres) ** 2 * hist).sum())

    found = made.compute_amax("mse", start_bin=100, stride=7)
    assert found in tried
    assert error(found) <= min(map(error, tried)) * 1.001  # torch's function multiplies by 1 / scale


def test_least_divergence():
    """An outlier is cut, and the result is one of the candidates that stride leaves."""
    made, values = filled()
    everywhere, few = (float(made.compute_amax("entropy", stride=n, start_bin=130)) for n in (1, 200))
    assert everywhere < values.max() and few in made._calib_bin_edges[130::200].tolist()
    made._num_bits = (4, 3)
    with pytest.raises(errors.SpecError, match="needs an integer grid"):
        made.compute_amax("entropy")


def test_what_calibrators_refuse():
    """Wrong arguments and values are one line of ours, of the original's kind."""
    made, _ = filled()
    for kind, wrong in (
        (ValueError, {"method": "mse", "stride": 0}),
        (ValueError, {"method": "entropy", "start_bin": 10**6}),
        (TypeError, {"method": "entrpy"}),
        (ValueError, {"method": "percentile", "percentile": -10}),
        (ValueError, {"method": "percentile", "percentile": 200}),
    ):
        with pytest.raises(kind) as caught:
            made.compute_amax(**wrong)
        assert isinstance(caught.value, errors.OnnxfqError)
    with pytest.raises(ValueError, match="has one amax, got axis 0"):
        HistogramCalibrator(8, 0, False)
    with pytest.raises(ValueError, match="num_bins must be"):
        HistogramCalibrator(num_bins=0)
    with pytest.raises(RuntimeError, match="NaN or infinity"):
        made.collect(torch.tensor([1.0, float("inf")]))
    with pytest.warns(UserWarning, match="grow_method has no effect"):
        HistogramCalibrator(grow_method="append")
    for calibrator in (made, MaxCalibrator()):
        with pytest.raises(TypeError, match="must be Tensor"):
            calibrator.collect([1.0])
        assert type(calibrator).__name__ in repr(calibrator)


def test_weights_are_calibrated():
    """Each output channel gets the largest magnitude, or the amax that a histogram of it alone gives."""
    layers = {"c": nvidia.QuantConv2d(2, 4, 3), "t": nvidia.QuantConvTranspose2d(2, 4, 3)}
    model = nn.ModuleDict(layers | {"f": nvidia.QuantLinear(9, 5), "plain": nn.Linear(2, 2)})
    model.f.weight.data[2] = 0
    nvidia.calibrate_weights(model, "max")
    assert torch.equal(model.c.weight_quantizer.amax, model.c.weight.abs().amax((1, 2, 3), keepdim=True))
    assert torch.equal(model.t.weight_quantizer.amax, model.t.weight.abs().amax((0, 2, 3), keepdim=True))
    for method in ("percentile", "mse"):
        nvidia.calibrate_weights(model, method, percentile=90)
        one = HistogramCalibrator()
        one.collect(model.f.weight[1])
        found = model.f.weight_quantizer.amax
        assert found.shape == (5, 1) and found[1] == one.compute_amax(method, percentile=90) and found[2] == 0
    whole = nvidia.QuantLinear(9, 5, quant_desc_weight=QuantDescriptor())
    nvidia.calibrate_weights(whole, "max", perchannel=False)
    assert whole.weight_quantizer.amax == whole.weight.abs().max()
    with pytest.raises(TypeError, match="method must be max, mse or percentile"):
        nvidia.calibrate_weights(model, "entropy")
