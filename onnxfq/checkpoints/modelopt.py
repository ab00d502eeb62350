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

from onnxfq.checkpoints.folder import Checkpoint, StoredModule
from onnxfq.checkpoints.layer import InputFormat, Layer, with_positive_scales
from onnxfq.checkpoints.rows import (
    FP4_BLOCK,
    MX_BLOCK,
    PLAIN,
    Scales,
    expand_blocks,
    make_fp4_layer,
    read_scales,
    share_by_channel,
)
from onnxfq.numerics.qtypes import QTYPES, QType
from onnxfq.quantized.nbits import unpack_bits


def is_one(quantization: Mapping[str, Any]) -> bool:
    """Tell whether a configuration is of this form: hf_quant_config.json, or its copy in config.json."""
    return quantization.get("quant_method") == "modelopt" or isinstance(
        quantization.get("quantization"), Mapping
    )


def read(module: StoredModule) -> Layer:
    """Return a layer. Raises ModelError for an unknown form, and for inputs that are scaled first."""
    if "pre_quant_scale" in module:
        what = "multiplies its input by pre_quant_scale, which the graph of the model does not"
        raise module.fault(what, "export it with the factors fused")
    weight, stored = module.array("weight"), module.array("weight_scale")
    given = _read_input(module, weight, stored)
    if stored.dtype == ml_dtypes.float8_e4m3fn:
        return make_fp4_layer(module, "weight", "weight_scale_2", given)
    numbers, qtype = _read_numbers(module, weight, stored)
    scale, block, scale_type = read_scales(module, numbers.shape, _lay_out)
    return with_positive_scales(
        scale,
        module=module.path,
        numbers=numbers,
        qtype=qtype,
        zero_point=np.zeros(scale.shape, np.int32),
        block_size=block,
        scale_type=scale_type,
        float_type=module.files.float_type,
        input=given,
    )


def _read_numbers(
    module: StoredModule, weight: NDArray[Any], stored: NDArray[Any]
) -> tuple[NDArray[Any], QType]:
    is_known = weight.ndim == 2 and "weight_scale_2" not in module
    if is_known and weight.dtype in PLAIN:
        return weight, PLAIN[weight.dtype]
    if is_known and weight.dtype == np.uint8 and stored.ndim == 2 and len(stored) == 2 * len(weight):
        codes = unpack_bits(np.ascontiguousarray(weight.T), 4).T  # pairs of rows
        return (((codes ^ 8).astype(np.int8)) - np.int8(8)).astype(np.int8), QTYPES["int4"]
    raise module.fault(
        f"has a weight {weight.dtype} {list(weight.shape)} with scales {stored.dtype} {list(stored.shape)}, "
        "a form that is not read",
        "use FP8, NVFP4, MXFP8, W4A16_AWQ, W8A16 or W8A8_SQ_PER_CHANNEL",
    )


def _lay_out(module: StoredModule, scale: NDArray[np.float32], shape: tuple[int, ...]) -> Scales:
    rows, columns = shape
    if scale.size == 1 or scale.shape in ((rows,), (rows, 1)):
        return share_by_channel(scale), None
    if scale.ndim == 4:  # [N / 128, 1, K / 128, 1]
        scale = scale[:, 0, :, 0]
    if scale.ndim != 2 or not scale.shape[1] or rows % scale.shape[0] or columns % scale.shape[1]:
        what = f"of shape {list(shape)} has scales of shape {list(scale.shape)}"
        raise module.fault(what)
    return expand_blocks(module, scale, [rows // scale.shape[0], columns // scale.shape[1]], shape)


def _read_input(module: StoredModule, weight: NDArray[Any], stored: NDArray[Any]) -> InputFormat | None:
    """Return how the input of a module is quantized; None for float."""
    if "input_scale" in module:
        scale = float(module.floats("input_scale").max(initial=0))
        if stored.dtype == ml_dtypes.float8_e4m3fn:
            return InputFormat(QTYPES["float4e2m1"], scale, 0, FP4_BLOCK, "e4m3")
        return InputFormat(QTYPES["int8" if weight.dtype == np.int8 else "float8e4m3fn"], scale)
    if stored.dtype == np.uint8:
        return InputFormat(QTYPES["float8e4m3fn"], block_size=MX_BLOCK, scale_type="e8m0")
    dynamic = {"FP8_PER_CHANNEL_PER_TOKEN": "float8e4m3fn", "W8A8_SQ_PER_CHANNEL": "int8"}
    name = dynamic.get(_find_algo(module.files, module.path))
    return None if name is None else InputFormat(QTYPES[name])


def _find_algo(checkpoint: Checkpoint, module: str) -> str:
    """Return the algorithm of a module, its own in mixed precision; empty if none is named."""
    said = checkpoint.quantization
    inner = said.get("quantization")
    said = inner if isinstance(inner, Mapping) else said
    layers = said.get("quantized_layers")
    own = layers.get(module) if isinstance(layers, Mapping) else None
    said = own if isinstance(own, Mapping) else said
    return str(said.get("quant_algo", ""))
