"""ModelOpt's unified checkpoint: weight, weight_scale, weight_scale_2, input_scale; types tell the form.

| quant_algo                     | weight                                   | weight_scale                   |
|--------------------------------|------------------------------------------|--------------------------------|
| FP8, FP8_PER_CHANNEL_PER_TOKEN | float8_e4m3fn                            | float32, [] or [N]             |
| FP8_PB_WO                      | float8_e4m3fn                            | float32, blocks of 128 x 128   |
| MXFP8                          | float8_e4m3fn                            | uint8, exponents + 127         |
| NVFP4, W4A16_NVFP4             | uint8 of two float4_e2m1 along K         | float8_e4m3fn * weight_scale_2 |
| W4A16_AWQ                      | uint8 of two int4 along N, even rows low | float, [N, K / group_size]     |
| W8A16, W8A8_SQ_PER_CHANNEL     | int8                                     | float, [N]                     |

Source: modelopt 0.47 (torch/export: quant_utils.py, unified_export_hf.py, convert_hf_config.py), Apache-2.0.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from onnxfq.errors import ModelError
from onnxfq.interchange.checkpoints.compressed_tensors import MX_BLOCK, expand_blocks
from onnxfq.interchange.checkpoints.float_numbers import make_fp4_layer, read_exponents
from onnxfq.interchange.checkpoints.folder import Checkpoint
from onnxfq.interchange.checkpoints.layer import InputFormat, Layer, with_positive_scales
from onnxfq.interchange.checkpoints.packing import unpack_nibbles
from onnxfq.numerics.qtypes import QTYPES, QType

PARTS = ("weight", "weight_scale", "weight_scale_2", "input_scale", "pre_quant_scale")


def is_one(quantization: Mapping[str, Any]) -> bool:
    """Tell whether a configuration is of this form: hf_quant_config.json, or its copy in config.json."""
    return quantization.get("quant_method") == "modelopt" or isinstance(
        quantization.get("quantization"), Mapping
    )


def find(checkpoint: Checkpoint) -> list[str]:
    """Return the modules of the layers."""
    return list(checkpoint.modules("weight_scale"))


def read(checkpoint: Checkpoint, module: str) -> Layer:
    """Return a layer. Raises ModelError for an unknown form, and for inputs that are scaled first."""
    if f"{module}.pre_quant_scale" in checkpoint:
        raise ModelError(
            f"{checkpoint.path}: layer {module!r} multiplies its input by pre_quant_scale, which "
            "the graph of the "
            "model does not; export it with the factors fused"
        )
    weight, stored = checkpoint.array(f"{module}.weight"), checkpoint.array(f"{module}.weight_scale")
    given = _read_input(checkpoint, module, weight, stored)
    if stored.dtype == ml_dtypes.float8_e4m3fn:
        shared = checkpoint.floats(f"{module}.weight_scale_2").reshape(-1)
        return make_fp4_layer(checkpoint, module, weight, stored, shared, given)
    if weight.ndim != 2 or f"{module}.weight_scale_2" in checkpoint:
        raise _make_form_error(checkpoint, module, weight, stored)
    numbers, qtype = _read_numbers(checkpoint, module, weight, stored)
    scale = (
        read_exponents(stored) if stored.dtype == np.uint8 else checkpoint.floats(f"{module}.weight_scale")
    )
    scale, block = _lay_out(checkpoint, module, scale, numbers.shape)
    if stored.dtype == np.uint8 and block is None:  # a row is one block
        scale, block = scale.reshape(len(numbers), -1), MX_BLOCK
    return with_positive_scales(
        scale,
        module=module,
        numbers=numbers,
        qtype=qtype,
        zero_point=np.zeros(scale.shape, np.int32),
        block_size=block,
        scale_type="e8m0" if stored.dtype == np.uint8 else "float32",
        float_type=checkpoint.float_type,
        input=given,
    )


def _read_numbers(
    checkpoint: Checkpoint, module: str, weight: NDArray[Any], stored: NDArray[Any]
) -> tuple[NDArray[Any], QType]:
    if weight.dtype == ml_dtypes.float8_e4m3fn:
        return weight, QTYPES["float8e4m3fn"]
    if weight.dtype == np.int8:
        return weight, QTYPES["int8"]
    if weight.dtype == np.uint8 and stored.ndim == 2 and len(stored) == 2 * len(weight):
        codes = unpack_nibbles(np.ascontiguousarray(weight.T)).T  # pairs of rows
        return (((codes ^ 8).astype(np.int8)) - np.int8(8)).astype(np.int8), QTYPES["int4"]
    raise _make_form_error(checkpoint, module, weight, stored)


def _make_form_error(
    checkpoint: Checkpoint, module: str, weight: NDArray[Any], stored: NDArray[Any]
) -> ModelError:
    return ModelError(
        f"{checkpoint.path}: layer {module!r} has a weight {weight.dtype} {list(weight.shape)} with scales "
        f"{stored.dtype} {list(stored.shape)}, a form that is not read; use FP8, NVFP4, MXFP8, "
        "W4A16_AWQ, W8A16 "
        "or W8A8_SQ_PER_CHANNEL"
    )


def _lay_out(
    checkpoint: Checkpoint, module: str, scale: NDArray[np.float32], shape: tuple[int, ...]
) -> tuple[NDArray[np.float32], int | None]:
    """Return the scales as a layer has them, and the size of its blocks, both by their shape."""
    rows, columns = shape
    if scale.size == 1:
        return scale.reshape(()), None
    if scale.shape in ((rows,), (rows, 1)):
        return scale.reshape(rows), None
    if scale.ndim == 4:  # [N / 128, 1, K / 128, 1]
        scale = scale[:, 0, :, 0]
    if scale.ndim != 2 or not scale.shape[1] or rows % scale.shape[0] or columns % scale.shape[1]:
        raise ModelError(
            f"{checkpoint.path}: layer {module!r} of shape {list(shape)} has scales of shape "
            f"{list(scale.shape)}; "
            "download it again"
        )
    return expand_blocks(scale, [rows // scale.shape[0], columns // scale.shape[1]], shape, module)


def _read_input(
    checkpoint: Checkpoint, module: str, weight: NDArray[Any], stored: NDArray[Any]
) -> InputFormat | None:
    """Return how the input of a module is quantized; None for float."""
    algo = _find_algo(checkpoint, module)
    if f"{module}.input_scale" in checkpoint:
        scale = checkpoint.floats(f"{module}.input_scale").max(initial=0)
        if stored.dtype == ml_dtypes.float8_e4m3fn:
            return InputFormat(QTYPES["float4e2m1"], float(scale), 0, 16, "e4m3")
        return InputFormat(QTYPES["int8" if weight.dtype == np.int8 else "float8e4m3fn"], float(scale))
    if stored.dtype == np.uint8:
        return InputFormat(QTYPES["float8e4m3fn"], block_size=MX_BLOCK, scale_type="e8m0")
    if algo == "FP8_PER_CHANNEL_PER_TOKEN":
        return InputFormat(QTYPES["float8e4m3fn"])
    return InputFormat(QTYPES["int8"]) if algo == "W8A8_SQ_PER_CHANNEL" else None


def _find_algo(checkpoint: Checkpoint, module: str) -> str:
    """Return the algorithm of a module, its own in mixed precision; empty if none is named."""
    said = checkpoint.quantization
    inner = said.get("quantization")
    said = inner if isinstance(inner, Mapping) else said
    layers = said.get("quantized_layers")
    own = layers.get(module) if isinstance(layers, Mapping) else None
    said = own if isinstance(own, Mapping) else said
    return str(said.get("quant_algo", ""))
