"""AIMET's quantizers, against what aimet-torch 2.42 computed (write_aimet_vectors.py)."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

nn = pytest.importorskip("torch.nn")
pytest.importorskip("onnxscript")

import torch  # noqa: E402  only once it is known to be there

from onnxfq import errors
from onnxfq.torch import Observer, export_torch, quantizers
from onnxfq.torch.compat import aimet

VECTORS = json.loads(Path(__file__).with_name("aimet_vectors.json").read_text(encoding="utf-8"))


def make_input(shape, seed):
    """Return the input of a vector."""
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def plain(x):
    """Return a NumPy array of a tensor."""
    return x.detach().as_subclass(torch.Tensor).numpy()


@pytest.mark.parametrize("number", range(len(VECTORS["cases"])))
def test_results_are_aimets(number):
    """Shape, block size, widths up to 20, free limits, unsigned symmetric, half a step of shift: AIMET's.

    Tolerances: AIMET divides in float32 where onnxfq derives scales in float64; both round to float32.
    """
    case, expected = VECTORS["cases"][number]["case"], VECTORS["cases"][number]["results"]
    keywords = {k: tuple(v) if isinstance(v, list) else v for k, v in case.items() if k != "input"}
    x = make_input(case["input"], number)
    quantizer = aimet.QuantizeDequantize(**keywords)
    assert not quantizer.is_initialized() and quantizer.get_scale() is None
    with quantizer.compute_encodings():
        inside = quantizer(x)
    y = quantizer(x)
    (y.as_subclass(torch.Tensor) * x).sum().backward()
    step = np.max(expected["scale"])
    close = {"rtol": 1e-6, "atol": 1e-6 * step}
    for found, name in (
        (quantizer.get_scale(), "scale"),
        (quantizer.get_offset(), "offset"),
        (quantizer.get_min(), "min"),
        (quantizer.get_max(), "max"),
        (y, "y"),
        (inside, "inside"),
    ):
        if name == "inside" and case.get("bitwidth") == 2:
            continue  # docs/migrating.md: AIMET's range inside the block is another one at 2 bits
        assert np.allclose(plain(found), expected[name], **close), name
    if expected["integers"] is not None:
        assert np.array_equal(plain(y.quantize()), expected["integers"])
        assert torch.equal(y.quantize().dequantize(), y)
    for parameter, name in ((quantizer.quantizer.rmin, "min"), (quantizer.quantizer.rmax, "max")):
        gradient = np.reshape(expected[f"{name}_gradient"], parameter.shape)
        assert np.allclose(plain(parameter.grad), gradient, rtol=1e-3, atol=1e-3), name


def test_percentile_is_cut_at_each_end():
    """The percentile of AIMET under its own name: both ends within a bin of AIMET's 2048."""
    x = make_input([20000], 99)
    for symmetric in (False, True):
        analyzer = aimet.PercentileEncodingAnalyzer(shape=(), percentile=99)
        quantizer = aimet.QuantizeDequantize((), 8, symmetric, analyzer)
        with quantizer.compute_encodings():
            quantizer(x)
        found = [quantizer.get_min().item(), quantizer.get_max().item()]
        assert np.allclose(found, VECTORS[f"percentile_{symmetric}"], rtol=0.015)


def test_lpbq_is_made():
    """Scales of blocks are integers of 1 to 16 times one scale a row, AIMET's."""
    quantizer = aimet.GroupedBlockQuantizeDequantize(
        (4, 8), 4, True, decompressed_bw=8, block_size=(1, 4), block_grouping=(1, 8)
    )
    with quantizer.compute_encodings():
        quantizer(make_input([4, 32], 50))
    assert np.allclose(plain(quantizer.get_scale()), VECTORS["lpbq"], rtol=1e-6)


def test_float_widths_are_free():
    """Exponent and mantissa of any width round normal numbers like AIMET's."""
    for name, expected in VECTORS["floats"].items():
        quantizer = aimet.FloatQuantizeDequantize(*map(int, name.split(",")))
        assert quantizer(torch.tensor([1e9, 0.3, 1.77, -5.3, 400.0])).tolist() == expected
    # docs/migrating.md: below the smallest normal number, 2^-6 here, steps stay 2^-9, as IEEE 754 says.
    assert aimet.FloatQuantizeDequantize(4, 3)(torch.tensor([0.001])).tolist() == [2.0**-9]
    with pytest.raises(errors.SpecError, match="2 to 8 exponent bits"):
        aimet.FloatQuantizeDequantize(1, 3)


def test_the_documents_examples_run():
    """Both examples of AIMET's page: calibration, and parameters assigned by hand."""
    quantizer = aimet.QuantizeDequantize(shape=(5, 2), bitwidth=8, symmetric=False, block_size=(1, 5))
    assert not quantizer.is_initialized()
    quantizer.min = nn.Parameter(-torch.ones_like(quantizer.min))
    quantizer.max = nn.Parameter(torch.ones_like(quantizer.max))
    assert quantizer.is_initialized()
    y = quantizer(torch.randn(5, 10) * 3)
    assert isinstance(y, aimet.DequantizedTensor)
    y = y.detach()
    assert {round(float(y.min()), 4), round(float(y.max()), 4)} == {-0.9961, 1.0039}  # as printed there
    assert [name for name, _ in quantizer.named_parameters()] == ["quantizer.rmin", "quantizer.rmax"]


def test_setters_work_or_are_errors():
    """Width, symmetry and sign keep min and max; a name that nothing reads is an error."""
    quantizer = aimet.QuantizeDequantize((), 8, True)
    quantizer.set_range(-1.0, 1.0)
    assert quantizer.get_scale().item() == pytest.approx(1 / 127.5)
    quantizer.set_range(None, 2.0)
    assert (quantizer.min.item(), quantizer.max.item()) == (-1.0, 2.0)
    quantizer.bitwidth = 4
    assert (quantizer.qmin, quantizer.qmax, quantizer.bitwidth) == (-8, 7, 4)
    assert quantizer.get_scale().item() == pytest.approx(0.2)
    quantizer.symmetric = False
    assert quantizer.get_offset().item() == 3.0
    quantizer.signed = False
    assert (quantizer.qmin, quantizer.qmax, quantizer.get_offset().item()) == (0, 15, -5.0)
    with pytest.raises(errors.SpecError, match="no setting 'bit_width'; nearest: bitwidth"):
        quantizer.bit_width = 3
    with pytest.raises(errors.SpecError, match="qmin of QuantizeDequantize is read only"):
        quantizer.qmin = 0
    with pytest.raises(errors.SpecError, match="blocks of 3 do not make up an axis of 10"):
        aimet.QuantizeDequantize((5, 2), 8, False, block_size=(1, 3))(torch.zeros(5, 10))


def test_frozen_encodings_stay():
    """allow_overwrite(False) keeps a range that compute_encodings would replace."""
    quantizer = aimet.QuantizeDequantize((), 8, True)
    quantizer.set_range(-1.0, 1.0)
    quantizer.allow_overwrite(False)
    with quantizer.compute_encodings():
        quantizer(torch.randn(100) * 50)
    assert quantizer.max.item() == 1.0


def test_quantize_and_dequantize_are_modules():
    """Integers out of one module, values out of the other; their encoding comes with them."""
    x = make_input([6, 4], 1)
    first, second = aimet.Quantize((), 8, False), aimet.Dequantize((), 8, False)
    with pytest.raises(errors.StatisticsError, match="Dequantize has no range"):
        second(x)
    for module in (first, second):
        module.set_range(-0.3, 0.9)
    integers = first(x)
    assert integers.encoding.offset.item() == first.get_offset().item()
    assert integers.quantized_repr().dtype == torch.uint8
    assert torch.equal(second(integers), integers.dequantize())
    assert type(integers + 1) is torch.Tensor  # results of operations carry no encoding


class Halved(Observer):
    """A user's analyzer: half of the range."""

    def forward(self, x):
        """Keep half of the largest magnitude."""
        amax = x.detach().abs().max() / 2
        self.keep((-amax, amax))


def test_an_own_analyzer_is_a_subclass():
    """`onnxfq.torch.Observer` is the public base class."""
    from onnxfq.numerics.spec import QuantSpec

    quantizer = aimet.QuantizeDequantize((), 8, False, Halved(QuantSpec(qtype="uint8", symmetric=False)))
    with quantizer.compute_encodings():
        quantizer(torch.tensor([-4.0, 1.0]))
    assert quantizer.get_max().item() == pytest.approx(2.0, abs=0.02)  # a step of the grid


def test_modules_export():
    """A module exports to Q/DQ with its own scale."""
    module = nn.Sequential(nn.Linear(4, 4), aimet.QuantizeDequantize((), 8, False))
    module[1].set_range(-1.0, 1.0)
    model = export_torch(module, (torch.randn(2, 4),))
    assert [node.op_type for node in model.graph.node][-2:] == ["QuantizeLinear", "DequantizeLinear"]
    assert list(quantizers(module)) == ["1.quantizer"]
