"""Fake quantization with gradients, quantized modules and their export; the only importer of torch.

The import raises ModuleNotFoundError, in one line with the remedy, if torch or onnxscript is not installed.
"""

from importlib.util import find_spec

for _package in ("torch", "onnxscript"):
    if find_spec(_package) is None:
        raise ModuleNotFoundError(
            f'onnxfq.torch needs {_package}, which is not installed; run pip install "onnxfq[torch]"',
            name=_package,
        )

# ruff: noqa: E402  torch is imported only after the check
from onnxfq.torch.affine import fake_quantize_per_channel_affine, fake_quantize_per_tensor_affine
from onnxfq.torch.batchnorm import freeze_batchnorm
from onnxfq.torch.checkpoints import load_checkpoint, save_checkpoint
from onnxfq.torch.encodings import (
    compute_encodings,
    encodings_from_onnx,
    encodings_to_onnx,
    get_encodings,
    is_initialized,
    onnx_names,
    set_encodings,
)
from onnxfq.torch.export import export_torch
from onnxfq.torch.observers import OBSERVERS, Observer
from onnxfq.torch.qat_gradients import (
    fake_quantize,
    fake_quantize_lsq,
    fake_quantize_pact,
    fake_quantize_range,
    lsq_factor,
    range_to_params,
    scale_gradient,
)
from onnxfq.torch.quantize import plan_of, quantize_module, remove_fake_quantize
from onnxfq.torch.quantizer import FakeQuantize, learn_grids, quantizers

__all__ = [
    "OBSERVERS",
    "FakeQuantize",
    "Observer",
    "compute_encodings",
    "export_torch",
    "fake_quantize",
    "fake_quantize_lsq",
    "fake_quantize_pact",
    "fake_quantize_per_channel_affine",
    "fake_quantize_per_tensor_affine",
    "fake_quantize_range",
    "encodings_from_onnx",
    "encodings_to_onnx",
    "freeze_batchnorm",
    "get_encodings",
    "is_initialized",
    "learn_grids",
    "load_checkpoint",
    "lsq_factor",
    "onnx_names",
    "plan_of",
    "quantize_module",
    "quantizers",
    "range_to_params",
    "remove_fake_quantize",
    "save_checkpoint",
    "scale_gradient",
    "set_encodings",
]
