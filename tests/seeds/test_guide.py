"""The PyTorch tensor-quantization guide: its printed figures, and NumPy's formula for the rest."""

from __future__ import annotations

import runpy
from pathlib import Path

import numpy as np
import pytest

import onnxfq
from onnxfq import errors

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "examples" / "tensor_quantization" / "example.py"
PRINTED = {"Asymmetric": 4.7475, "Symmetric": 4.4585, "axis 0": 2.5209, "axis 1": 2.2848}


@pytest.mark.whole
def test_the_notebook_prints_the_guides_errors(tmp_path, monkeypatch, capsys):
    """The guide's code with its imports changed: its errors to four digits, and four pictures."""
    pytest.importorskip("torch.nn")
    monkeypatch.chdir(tmp_path)
    made = runpy.run_path(str(EXAMPLE))
    text = capsys.readouterr().out
    page = (EXAMPLE.parent / "README.md").read_text(encoding="utf-8")
    for name, value in PRINTED.items():
        assert f"{name}: {value}\n" in text
        assert f"| {value} |" in page
    # The guide prints its tensor to four digits, of 985.93 at most.
    assert made["get_q_scale_and_zero_point"](made["test_tensor"]) == pytest.approx(
        (7.412068684895833, -6.017083976086823), abs=1e-5
    )
    assert made["get_q_scale_symmetric"](made["test_tensor"]) == pytest.approx(7.763242225947343, abs=1e-6)
    assert len(list(tmp_path.glob("*.png"))) == 4
    integers_and_params = made["linear_quantization"](made["test_tensor"])
    back = made["linear_dequantization"](*integers_and_params)
    found = made["quantization_error"](made["test_tensor"], back)
    page = (ROOT / "docs" / "migrating.md").read_text(encoding="utf-8")
    assert f"| 4.747505 | {found:.6f}, from the tensor as printed" in page


@pytest.mark.grid
@pytest.mark.parametrize("dtype", ["int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64"])
@pytest.mark.parametrize("axis", [None, 0, -1])
def test_any_integer_dtype_is_numpys_formula(dtype, axis):
    """Integers of the dtype itself; numbers within half a step, of NumPy and of torch alike."""
    x = np.random.default_rng(0).normal(size=(5, 7)).astype(np.float32)
    made = onnxfq.quantize_array(x, dtype=dtype, axis=axis)
    assert made.values.dtype == np.dtype(dtype)
    limits = np.iinfo(dtype)
    steps = np.rint(x / made.scale).astype(np.float64) + made.zero_point
    # float64 holds 53 of 64 bits.
    tolerance = 2.0**-52 if limits.bits == 64 else 0.0
    expected = np.clip(steps, limits.min, limits.max).astype(np.float64)
    assert np.allclose(made.values.astype(np.float64), expected, rtol=tolerance, atol=0)
    back = onnxfq.dequantize_array(*made)
    # Half a step of the zero point, half a step of the value, and float32's own rounding.
    assert (np.abs(back - x) <= made.scale + np.abs(x) * 2.0**-22).all()
    torch = pytest.importorskip("torch")
    tensors = onnxfq.quantize_array(torch.from_numpy(x), dtype=getattr(torch, dtype), axis=axis)
    assert tensors.values.dtype == getattr(torch, dtype)
    assert np.array_equal(tensors.values.numpy(), made.values)
    assert np.array_equal(onnxfq.dequantize_array(*tensors).numpy(), back)


def test_given_parameters_and_errors():
    """A given scale and a fractional zero point; dtypes that are not integers are refused."""
    x = np.asarray([-1.0, 0.3, 2.0], np.float32)
    made = onnxfq.quantize_array(x, 0.1, -6.25)
    assert np.array_equal(made.values, np.rint(x / np.float32(0.1) - np.float32(6.25)).astype(np.int8))
    with pytest.raises(errors.SpecError, match="dtype must be an integer type, such as int8, got float32"):
        onnxfq.quantize_array(x, dtype="float32")
    with pytest.raises(errors.SpecError, match="scale must be finite and positive"):
        onnxfq.quantize_array(x, 0.0)


def test_the_error_and_its_figure():
    """Mean squared error and SQNR by their formulas; original, integers, values and error as pictures.

    Shapes must agree.
    """
    x = np.random.default_rng(1).normal(size=(6, 6)).astype(np.float32)
    made = onnxfq.quantize_array(x, symmetric=True)
    back = onnxfq.dequantize_array(*made)
    figure = onnxfq.plot_quantization_errors(x, made.values, back)
    maps = [axes.images[0].get_array() for axes in figure.axes if axes.get_title()]
    for shown, expected in zip(maps, (x, made.values, back, np.abs(x - back)), strict=True):
        assert np.allclose(shown, expected, rtol=0, atol=1e-7)  # float64 of the same numbers
    with pytest.raises(errors.SpecError, match="must have one shape"):
        onnxfq.plot_quantization_errors(x, made.values[:2], back)
    found = onnxfq.quantization_noise(x, back)
    noise = np.mean((x.astype(np.float64) - back) ** 2)
    assert found.mse == pytest.approx(noise, rel=1e-12)  # the order of a float64 sum
    assert found.sqnr_db == pytest.approx(10 * np.log10(np.mean(x.astype(np.float64) ** 2) / noise))
    with pytest.raises(errors.SpecError, match="one shape"):
        onnxfq.quantization_noise(x, back[:2])


@pytest.mark.grid
@pytest.mark.parametrize("ends", [(10.0, 20.0), (1.0, 3.0), (-7.0, -2.0), (-1.0, 2.0)])
@pytest.mark.parametrize("dtype", ["int8", "uint8", "int16"])
def test_ranges_are_the_documents(ends, dtype):
    """Scale = (max - min) / (q_max - q_min), zero point = q_min - min / scale, also for ranges without 0."""
    torch = pytest.importorskip("torch")
    from onnxfq.torch.compat import guide

    x, kind = torch.linspace(*ends, 57), getattr(torch, dtype)
    limits = torch.iinfo(kind)
    scale = (ends[1] - ends[0]) / (limits.max - limits.min)
    expected = (scale, limits.min - ends[0] / scale)
    assert guide.get_q_scale_and_zero_point(x, kind) == expected
    values, *params = guide.linear_quantization(x, kind)
    assert tuple(params) == expected and values.dtype == kind
    assert (values.min(), values.max()) == (limits.min, limits.max)
    back = guide.linear_dequantization(values, *params)
    # Half a step of the value and of the zero point, and float32's rounding of numbers up to 65535 steps.
    assert ((back - x).abs() <= scale * 1.01 + x.abs() * 2.0**-22).all()


def test_the_guide_draws_and_refuses(tmp_path):
    """plot_quantization_errors is among its functions; a range without width is an error."""
    torch = pytest.importorskip("torch")
    from onnxfq.torch.compat import guide

    x = torch.linspace(1, 3, 12).reshape(3, 4)
    values, scale, zero_point = guide.linear_quantization(x)
    back = guide.linear_dequantization(values, scale, zero_point)
    figure = guide.plot_quantization_errors(x, values, back, str(tmp_path / "errors.png"))
    assert (tmp_path / "errors.png").exists() and figure.axes
    with pytest.raises(errors.SpecError, match="a range needs two ends, found 2.0 and 2.0"):
        guide.linear_quantization(torch.full((3,), 2.0))
