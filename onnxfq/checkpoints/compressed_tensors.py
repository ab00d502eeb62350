"""compressed-tensors: weight or weight_packed, weight_scale, weight_zero_point, in groups of one scheme each.

| form                 | weight                                       | scale                               |
|----------------------|----------------------------------------------|-------------------------------------|
| pack-quantized       | int32 words of number + 2^(bits - 1) along K | float                               |
| int-, float-, naive- | int8 or float8_e4m3fn                        | float                               |
| mxfp8-quantized      | float8_e4m3fn                                | uint8, exponents + 127              |
| nvfp4-pack-quantized | uint8 of two float4_e2m1, the first one low  | float8_e4m3fn / weight_global_scale |

A value is (number - zero) * scale. Source: compressed-tensors 0.20 (compressors/), vLLM project, Apache-2.0.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from onnxfq.checkpoints.folder import Checkpoint, StoredModule, float_type_of
from onnxfq.checkpoints.groups import find_scheme
from onnxfq.checkpoints.layer import (
    FloatLayer,
    InputFormat,
    Layer,
    values_in_order,
    with_positive_scales,
)
from onnxfq.checkpoints.packing import unpack_words
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
from onnxfq.errors import ModelError
from onnxfq.numerics.block_scales import ScaleType
from onnxfq.numerics.qtypes import QTYPES, QType

_INPUTS = {("int", 8): "int8", ("int", 4): "int4", ("float", 8): "float8e4m3fn", ("float", 4): "float4e2m1"}
"""Type and bits of an input -> number format."""

Numbers = tuple[NDArray[Any], NDArray[np.int32] | None, QType]
"""Numbers [N, K], zero points or None, and the number format."""


def is_one(quantization: Mapping[str, Any]) -> bool:
    """Tell whether a configuration is of this form."""
    return quantization.get("quant_method") == "compressed-tensors"


def check(checkpoint: Checkpoint) -> None:
    """Raise ModelError for sparse weights and rotated activations."""
    said = checkpoint.quantization
    sparse = said.get("sparsity_config") or {}
    if isinstance(sparse, Mapping) and sparse.get("format", "dense") != "dense":
        raise ModelError(
            f"{checkpoint.path} has sparse weights ({sparse['format']!r:.40}), which are not read; "
            "save it dense"
        )
    if said.get("transform_config"):
        raise ModelError(
            f"{checkpoint.path} has transform_config, rotations that no graph of its model has; "
            "save it without"
        )


def read(module: StoredModule) -> Layer:
    """Return a layer. Raises ModelError for tensors that do not fit their scheme."""
    scheme = find_scheme(module.files, module.path)
    found = (scheme.get(name) for name in ("weights", "input_activations"))
    weights, inputs = (one if isinstance(one, Mapping) else {} for one in found)
    given = _read_input(module, inputs) if inputs else None
    if "weight_global_scale" in module:
        return make_fp4_layer(module, "weight_packed", "weight_global_scale", given, divides=True)
    is_packed = "weight_packed" in module
    numbers, zeros, qtype = _read_packed(module, weights) if is_packed else _read_plain(module)

    def lay_out(module: StoredModule, scale: NDArray[np.float32], shape: tuple[int, ...]) -> Scales:
        return _lay_out(module, scale, weights, shape)

    scale, block, scale_type = read_scales(module, numbers.shape, lay_out)
    zeros = np.zeros(scale.shape, np.int32) if zeros is None else zeros
    if zeros.size != scale.size:
        raise module.fault(f"has {scale.size} scales and {zeros.size} zero points")
    zeros = zeros.reshape(scale.shape)
    kind = float_type_of(module.array("weight_scale").dtype, module.files.float_type)
    if "weight_g_idx" in module and block is not None:
        order = module.sized("weight_g_idx", (numbers.shape[1],))
        if (order != np.arange(len(order)) // block).any():
            what = f"layer {module.path!r}: weight_g_idx"
            values = values_in_order(what, numbers, zeros, scale, order)
            why = "its groups follow the order of activations (actorder)"
            return FloatLayer(module.path, values, why, kind)
    return with_positive_scales(
        scale,
        module=module.path,
        numbers=numbers,
        qtype=qtype,
        zero_point=zeros,
        block_size=block,
        scale_type=scale_type,
        float_type=kind,
        input=given,
    )


def _read_packed(module: StoredModule, weights: Mapping[str, Any]) -> Numbers:
    bits, shape = weights.get("num_bits"), module.sized("weight_shape", (2,)).astype(np.int64)
    if not isinstance(bits, int) or f"int{bits}" not in QTYPES or bits > 8:
        raise module.fault(f"is packed with num_bits {bits!r:.20}, wanted is 2 to 8", "repair config.json")
    rows, columns = (int(n) for n in shape)
    packed = module.sized("weight_packed", (rows, -(-columns * bits // 32)), np.int32)
    half = 1 << (bits - 1)
    numbers = (unpack_words(packed, bits, columns).astype(np.int16) - half).astype(np.int8)
    zeros = None
    if "weight_zero_point" in module:
        groups = module.array("weight_scale").shape[-1]
        stored = module.sized("weight_zero_point", (-(-rows * bits // 32), groups), np.int32)
        zeros = unpack_words(stored.T, bits, rows).T.astype(np.int32) - half
    return numbers, zeros, QTYPES[f"int{bits}"]


def _read_plain(module: StoredModule) -> Numbers:
    numbers = module.array("weight")
    qtype = PLAIN.get(numbers.dtype)
    if qtype is None:
        what = f"has scales and a weight of {numbers.dtype}, wanted is int8 or float8_e4m3fn"
        raise module.fault(what, "save it again")
    is_shifted = "weight_zero_point" in module and not qtype.is_float
    return numbers, module.array("weight_zero_point").astype(np.int32) if is_shifted else None, qtype


def _lay_out(
    module: StoredModule, scale: NDArray[np.float32], weights: Mapping[str, Any], shape: tuple[int, ...]
) -> Scales:
    blocks, size = weights.get("block_structure"), weights.get("group_size")
    if weights.get("strategy") == "block" and isinstance(blocks, list) and len(blocks) == 2:
        return expand_blocks(module, scale, blocks, shape)
    if scale.size == 1 or scale.shape in (shape[:1], (*shape[:1], 1)):
        return share_by_channel(scale), None
    if not isinstance(size, int) or size < 1 or scale.shape != (*shape[:1], -(-shape[-1] // size)):
        what = f"of shape {list(shape)} has scales of shape {list(scale.shape)}, which do not fit "
        raise module.fault(f"{what}group_size {size!r:.20}", "repair config.json")
    return scale, size


def _read_input(module: StoredModule, inputs: Mapping[str, Any]) -> InputFormat | None:
    """Return how the input of a module is quantized. Raises ModelError for an unknown number format."""
    kind, bits = inputs.get("type", "int"), inputs.get("num_bits", 8)
    try:
        qtype = QTYPES[_INPUTS[kind, bits]]
    except (KeyError, TypeError):
        raise ModelError(
            f"{module.files.path}: inputs of {kind!r:.20} with {bits!r:.20} bits are not read; "
            "quantize them with 8"
        ) from None
    group = inputs.get("group_size")
    block = group if isinstance(group, int) and group > 0 else 0
    if "input_global_scale" in module:
        shared = module.floats("input_global_scale").reshape(-1)[:1]
        return InputFormat(qtype, float(np.float32(1) / shared[0]), 0, block or FP4_BLOCK, "e4m3")
    if "input_scale" not in module:
        scale_type: ScaleType = "e8m0" if block == MX_BLOCK and qtype.is_float else "float32"
        return InputFormat(qtype, block_size=block, scale_type=scale_type)
    scale = module.floats("input_scale").reshape(-1)
    is_shifted = "input_zero_point" in module and not qtype.is_float
    zero = int(module.array("input_zero_point").reshape(-1)[0]) if is_shifted else 0
    return InputFormat(qtype, float(scale[0]), zero)
