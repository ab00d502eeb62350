"""Calls of pytorch-quantization as repositories write them, beyond the tests of its classes."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import onnx
import pytest

nn = pytest.importorskip("torch.nn")
pytest.importorskip("onnxscript")

import torch

from onnxfq import torch as ours
from onnxfq.torch.compat.nvidia import calib, quant_modules, tensor_quant
from onnxfq.torch.compat.nvidia import nn as quant_nn
from onnxfq.torch.compat.nvidia.nn.modules import _utils as quant_utils

LAYERS = {
    "Conv1d": ((3, 4, 3), (2, 3, 8)),
    "Conv2d": ((3, 4, 3), (2, 3, 8, 8)),
    "Conv3d": ((3, 4, 3), (2, 3, 5, 5, 5)),
    "ConvTranspose2d": ((3, 4, 3), (2, 3, 5, 5)),
    "Linear": ((3, 4), (2, 3)),
    "AvgPool2d": ((2,), (2, 3, 8, 8)),
    "AdaptiveAvgPool2d": ((2,), (2, 3, 8, 8)),
    "MaxPool2d": ((2,), (2, 3, 8, 8)),
}


@pytest.mark.parametrize("name", LAYERS)
def test_float_layers_become_quantized_ones(name: str) -> None:
    """The detour of many repositories: a new object, the attributes of the old one, then its quantizers."""
    arguments, shape = LAYERS[name]
    torch.manual_seed(0)
    plain, kind = getattr(nn, name)(*arguments), getattr(quant_nn, f"Quant{name}")
    made = kind.__new__(kind)
    for key, value in vars(plain).items():
        setattr(made, key, value)
    has_weight = not isinstance(made, quant_utils.QuantInputMixin)
    assert has_weight == isinstance(made, quant_utils.QuantMixin) == hasattr(plain, "weight")
    given = quant_utils.pop_quant_desc_in_kwargs(kind, input_only=not has_weight)
    made.init_quantizer(*given) if has_weight else made.init_quantizer(given)
    made._input_quantizer._calibrator._torch_hist = True
    wanted = kind(*arguments)
    if has_weight:
        wanted.load_state_dict(plain.state_dict())
    x = torch.randn(shape)
    assert torch.equal(made(x), wanted(x)) and not torch.equal(made(x), plain(x))


def test_the_map_of_replacements_is_read_and_written() -> None:
    """Repositories look up classes in it, and add their own, which `initialize` then replaces."""
    entries = quant_modules._DEFAULT_QUANT_MAP
    by_class = {getattr(entry.orig_mod, entry.mod_name): entry.replace_mod for entry in entries}
    assert by_class[nn.Conv2d] is quant_nn.QuantConv2d and by_class[nn.Linear] is quant_nn.QuantLinear
    before = nn.MaxPool2d
    entries.append(type(entries[0])(nn, "MaxPool2d", quant_nn.QuantMaxPool2d))
    try:
        with quant_modules.initialize():
            assert nn.MaxPool2d is quant_nn.QuantMaxPool2d
    finally:
        entries.pop()
        quant_modules.deactivate()
    assert nn.MaxPool2d is before


def calibrate(model: Any, x: torch.Tensor, **settings: Any) -> None:
    """Calibrate as the tutorial does: collect, then an amax for each quantizer."""
    quantizers = [module for module in model.modules() if isinstance(module, quant_nn.TensorQuantizer)]
    for quantizer in quantizers:
        quantizer.disable_quant()
        quantizer.enable_calib()
    model(x)
    for quantizer in quantizers:
        fixed = isinstance(quantizer._calibrator, calib.MaxCalibrator)
        quantizer.load_calib_amax(strict=False, **({} if fixed else settings))
        quantizer._amax = quantizer._amax.to("cpu")
        quantizer.enable_quant()
        quantizer.disable_calib()


@pytest.mark.parametrize(
    "settings", [{"method": "mse"}, {"method": "entropy"}, {"method": "percentile", "percentile": 99.9}]
)
def test_the_loops_of_the_tutorial(settings: dict[str, Any]) -> None:
    """Histogram inputs by each method and weights by max; the amax is the calibrator's, printed by a line."""
    desc = tensor_quant.QuantDescriptor(calib_method="histogram")
    torch.manual_seed(0)
    model = nn.Sequential(quant_nn.QuantConv2d(3, 8, 3, quant_desc_input=desc), nn.ReLU())
    with torch.no_grad():
        calibrate(model, torch.randn(8, 3, 16, 16), **settings)
    found = model[0]._input_quantizer
    assert torch.equal(found._amax, found._calibrator.compute_amax(**settings))
    assert torch.equal(model[0]._weight_quantizer._amax, model[0].weight.abs().amax((1, 2, 3), keepdim=True))
    assert f"amax={float(found._amax):.4f} calibrator=HistogramCalibrator" in f"{'name':40}: {found}"


@pytest.fixture
def early() -> Iterator[None]:
    """The switch of early releases, as users set it."""
    quant_nn.TensorQuantizer.use_fb_fake_quant = True
    yield
    quant_nn.TensorQuantizer.use_fb_fake_quant = False


@pytest.mark.whole
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::UserWarning")
@pytest.mark.usefixtures("early")
@pytest.mark.parametrize("dynamo", [True, False])
def test_the_switch_of_early_releases_exports(tmp_path: Path, dynamo: bool) -> None:
    """use_fb_fake_quant lets torch.onnx.export write pairs; forward and export_torch stay as they are."""
    model, x = nn.Sequential(quant_nn.QuantConv2d(3, 4, 3)).eval(), torch.randn(1, 3, 8, 8)
    file, settings = tmp_path / "m.onnx", {"opset_version": 18, "dynamo": dynamo}
    assert model(x).shape == (1, 4, 6, 6)  # by the amax of each input
    with pytest.raises(Exception, match="no amax; calibrate it"):  # torch wraps the error
        torch.onnx.export(model, (x,), file, **settings)
    with torch.no_grad():
        calibrate(model, x)
    torch.onnx.export(model, (x,), file, **settings)
    written = [node.op_type for node in onnx.load(file).graph.node]
    assert written.count("QuantizeLinear") == written.count("DequantizeLinear") == 2
    model[0]._weight_quantizer.num_bits = 4
    with pytest.raises(Exception, match="writes 8 bits of the full range, got 4; use export_torch"):
        torch.onnx.export(model, (x,), file, **settings)
    for block in (quant_modules.enable_onnx_export, torch.no_grad):
        with block():
            graph = ours.export_torch(model, (x,)).graph
        assert [node.op_type for node in graph.node].count("DequantizeLinear") == 2
        assert onnx.TensorProto.INT4 in {tensor.data_type for tensor in graph.initializer}
