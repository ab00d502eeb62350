"""Every import of pytorch-quantization has the same path here; the page of migration names the exception."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path

import pytest

pytest.importorskip("torch")

PATHS = """
calib: MaxCalibrator HistogramCalibrator calibrate_weights
calib.calibrator: _Calibrator
calib.histogram: HistogramCalibrator calibrate_weights
calib.max: MaxCalibrator
nn: QuantConv2d QuantLinear QuantConvTranspose2d QuantLSTM TensorQuantizer Clip
nn._functions:
nn.functional: clip
nn.modules:
nn.modules._utils: QuantMixin QuantInputMixin pop_quant_desc_in_kwargs
nn.modules.clip: Clip
nn.modules.quant_conv: QuantConv1d QuantConv2d QuantConv3d QuantConvTranspose2d
nn.modules.quant_instancenorm: QuantInstanceNorm1d QuantInstanceNorm2d
nn.modules.quant_linear: QuantLinear Linear
nn.modules.quant_pooling: QuantMaxPool2d QuantAvgPool2d QuantAdaptiveAvgPool2d
nn.modules.quant_rnn: QuantLSTM QuantLSTMCell
nn.modules.tensor_quantizer: TensorQuantizer
optim:
optim.helper: match_parameters group_parameters freeze_parameters
quant_modules: initialize deactivate
tensor_quant: QuantDescriptor fake_tensor_quant tensor_quant QUANT_DESC_8BIT_PER_TENSOR
utils: reduce_amax
utils.amp_wrapper: half_function float_function promote_function
utils.quant_logging: reset_logger_handler
utils.reduce_amax: reduce_amax
"""
"""The modules that the original's folder has, as published, and the names that their users import."""

WITHOUT = "nn._functions.quant_rnn"
PAGE = Path(__file__).parents[2] / "docs" / "migrating.md"


def test_every_path_of_the_original_imports() -> None:
    """Each path imports and has its names; the page says so, and names the one that does not."""
    for line in PATHS.strip().splitlines():
        path, _, names = line.partition(":")
        module = import_module(f"onnxfq.torch.compat.nvidia.{path}")
        assert all(hasattr(module, name) for name in names.split()), path
    with pytest.raises(ModuleNotFoundError):
        import_module(f"onnxfq.torch.compat.nvidia.{WITHOUT}")
    claim = f"| `pytorch_quantization` and every path below it but `{WITHOUT}` | the same path below"
    assert claim in PAGE.read_text(encoding="utf-8")


def test_calibrators_of_both_kinds_are_the_originals_base() -> None:
    """Code that asks for the base class finds both calibrators, and calibrators of users derive from it."""
    calib = import_module("onnxfq.torch.compat.nvidia.calib")
    base = import_module("onnxfq.torch.compat.nvidia.calib.calibrator")._Calibrator
    assert all(
        isinstance(kind(8, None, False), base) for kind in (calib.MaxCalibrator, calib.HistogramCalibrator)
    )
