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
from onnxfq.torch.affine import fake_quantize_per_channel_affine as fake_quantize_per_channel_affine
from onnxfq.torch.affine import fake_quantize_per_tensor_affine as fake_quantize_per_tensor_affine
from onnxfq.torch.arguments import check_functions as _check_functions
from onnxfq.torch.batchnorm import freeze_batchnorm as freeze_batchnorm
from onnxfq.torch.checkpoints import load_checkpoint as load_checkpoint
from onnxfq.torch.checkpoints import save_checkpoint as save_checkpoint
from onnxfq.torch.encodings import compute_encodings as compute_encodings
from onnxfq.torch.encodings import encodings_from_onnx as encodings_from_onnx
from onnxfq.torch.encodings import encodings_to_onnx as encodings_to_onnx
from onnxfq.torch.encodings import get_encodings as get_encodings
from onnxfq.torch.encodings import is_initialized as is_initialized
from onnxfq.torch.encodings import onnx_names as onnx_names
from onnxfq.torch.encodings import set_encodings as set_encodings
from onnxfq.torch.export import export_torch as export_torch
from onnxfq.torch.observers import OBSERVERS as OBSERVERS
from onnxfq.torch.observers import Observer as Observer
from onnxfq.torch.qat_gradients import fake_quantize as fake_quantize
from onnxfq.torch.qat_gradients import fake_quantize_lsq as fake_quantize_lsq
from onnxfq.torch.qat_gradients import fake_quantize_pact as fake_quantize_pact
from onnxfq.torch.qat_gradients import fake_quantize_range as fake_quantize_range
from onnxfq.torch.qat_gradients import lsq_factor as lsq_factor
from onnxfq.torch.qat_gradients import range_to_params as range_to_params
from onnxfq.torch.qat_gradients import scale_gradient as scale_gradient
from onnxfq.torch.quantize import plan_of as plan_of
from onnxfq.torch.quantize import quantize_module as quantize_module
from onnxfq.torch.quantize import remove_fake_quantize as remove_fake_quantize
from onnxfq.torch.quantizer import FakeQuantize as FakeQuantize
from onnxfq.torch.quantizer import learn_grids as learn_grids
from onnxfq.torch.quantizer import quantizers as quantizers

_check_functions(globals())
