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

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from onnxfq.errors import ModelError
from onnxfq.interchange.checkpoints.float_numbers import make_fp4_layer, read_exponents
from onnxfq.interchange.checkpoints.folder import Checkpoint
from onnxfq.interchange.checkpoints.groups import find_scheme
from onnxfq.interchange.checkpoints.layer import FloatLayer, InputFormat, Layer, with_positive_scales
from onnxfq.interchange.checkpoints.packing import unpack_words
from onnxfq.numerics.block_scales import ScaleType
from onnxfq.numerics.float_types import FLOATS
from onnxfq.numerics.qtypes import QTYPES, QType

PARTS = (
    *("weight", "weight_packed", "weight_scale", "weight_zero_point", "weight_shape", "weight_g_idx"),
    *("weight_global_scale", "input_scale", "input_zero_point", "input_global_scale"),
)
_DENSE = "dense"
MX_BLOCK = 32


def is_one(quantization: Mapping[str, Any]) -> bool:
    """Tell whether a configuration is of this form."""
    return quantization.get("quant_method") == "compressed-tensors"


def find(checkpoint: Checkpoint) -> list[str]:
    """Return the modules of the layers. Raises ModelError for sparse weights and rotated activations."""
    said = checkpoint.quantization
    sparse = said.get("sparsity_config") or {}
    if isinstance(sparse, Mapping) and sparse.get("format", _DENSE) != _DENSE:
        raise ModelError(
            f"{checkpoint.path} has sparse weights ({sparse['format']!r:.40}), which are not read; "
            "save it dense"
        )
    if said.get("transform_config"):
        raise ModelError(
            f"{checkpoint.path} has transform_config, rotations that no graph of its model has; "
            "save it without"
        )
    return list(checkpoint.modules("weight_scale"))


def read(checkpoint: Checkpoint, module: str) -> Layer:
    """Return a layer. Raises ModelError for tensors that do not fit their scheme."""
    scheme = find_scheme(checkpoint, module)
    weights, inputs = _arguments(scheme, "weights"), _arguments(scheme, "input_activations")
    given = _read_input(checkpoint, module, inputs) if inputs else None
    if f"{module}.weight_global_scale" in checkpoint:
        shared = checkpoint.floats(f"{module}.weight_global_scale").reshape(-1)
        codes = checkpoint.array(f"{module}.weight_packed")
        scales = checkpoint.array(f"{module}.weight_scale")
        return make_fp4_layer(checkpoint, module, codes, scales, shared, given, divides=True)
    if f"{module}.weight_packed" in checkpoint:
        numbers, zeros, qtype = _read_packed(checkpoint, module, weights)
    else:
        numbers, zeros, qtype = _read_plain(checkpoint, module)
    stored = checkpoint.array(f"{module}.weight_scale")
    scale_type, scale = "float32", checkpoint.floats(f"{module}.weight_scale")
    if stored.dtype == np.uint8:
        scale_type, scale = "e8m0", read_exponents(stored)
    scale, block = _lay_out(checkpoint, module, scale, weights, numbers.shape)
    if scale_type == "e8m0" and block is None:  # a row is one block
        scale, block = scale.reshape(len(numbers), -1), MX_BLOCK
    zeros = np.zeros(scale.shape, np.int32) if zeros is None else _like(scale, zeros, module)
    kind = next((name for name, info in FLOATS.items() if info.dtype == stored.dtype), checkpoint.float_type)
    layer = with_positive_scales(
        scale,
        module=module,
        numbers=numbers,
        qtype=qtype,
        zero_point=zeros,
        block_size=block,
        scale_type=scale_type,
        float_type=kind,
        input=given,
    )
    if f"{module}.weight_g_idx" in checkpoint and block is not None:
        order = checkpoint.sized(f"{module}.weight_g_idx", (numbers.shape[1],)).astype(np.int64)
        if ((order < 0) | (order >= scale.shape[1])).any():
            raise ModelError(
                f"layer {module!r}: weight_g_idx names a group beyond {scale.shape[1]}; download it again"
            )
        if (order != np.arange(len(order)) // block).any():
            values = (numbers.astype(np.float32) - zeros[:, order]) * scale[:, order]
            return FloatLayer(module, values, "its groups follow the order of activations (actorder)", kind)
    return layer


def _arguments(scheme: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    value = scheme.get(name)
    return value if isinstance(value, Mapping) else {}


def _read_packed(
    checkpoint: Checkpoint, module: str, weights: Mapping[str, Any]
) -> tuple[NDArray[Any], NDArray[np.int32] | None, QType]:
    """Return (numbers [N, K], zero points of the shape of the scales or None, number format)."""
    bits, shape = weights.get("num_bits"), checkpoint.sized(f"{module}.weight_shape", (2,)).astype(np.int64)
    if not isinstance(bits, int) or f"int{bits}" not in QTYPES or bits > 8:
        raise ModelError(
            f"{checkpoint.path}: layer {module!r} is packed with num_bits {bits!r:.20}, wanted is 2 to 8; "
            "repair config.json"
        )
    rows, columns = (int(n) for n in shape)
    packed = checkpoint.sized(f"{module}.weight_packed", (rows, -(-columns * bits // 32)), np.int32)
    half = 1 << (bits - 1)
    numbers = (unpack_words(packed, bits, columns).astype(np.int16) - half).astype(np.int8)
    zeros = None
    if f"{module}.weight_zero_point" in checkpoint:
        groups = checkpoint.array(f"{module}.weight_scale").shape[-1]
        stored = checkpoint.sized(f"{module}.weight_zero_point", (-(-rows * bits // 32), groups), np.int32)
        zeros = unpack_words(stored.T, bits, rows).T.astype(np.int32) - half
    return numbers, zeros, QTYPES[f"int{bits}"]


def _read_plain(checkpoint: Checkpoint, module: str) -> tuple[NDArray[Any], NDArray[np.int32] | None, QType]:
    """Return (numbers [N, K], zero points or None, number format) of a weight with one number an element."""
    numbers = checkpoint.array(f"{module}.weight")
    kinds = {np.dtype(np.int8): "int8", np.dtype(ml_dtypes.float8_e4m3fn): "float8e4m3fn"}
    if numbers.dtype not in kinds:
        raise ModelError(
            f"{checkpoint.path}: layer {module!r} has scales and a weight of {numbers.dtype}, "
            "wanted is int8 or "
            "float8_e4m3fn; save it again"
        )
    name = f"{module}.weight_zero_point"
    zeros = None
    if name in checkpoint and kinds[numbers.dtype] == "int8":
        zeros = checkpoint.array(name).astype(np.int32)
    return numbers, zeros, QTYPES[kinds[numbers.dtype]]


def _lay_out(
    checkpoint: Checkpoint,
    module: str,
    scale: NDArray[np.float32],
    weights: Mapping[str, Any],
    shape: tuple[int, ...],
) -> tuple[NDArray[np.float32], int | None]:
    """Return the scales as a layer has them, and the size of its blocks."""
    blocks = weights.get("block_structure")
    if weights.get("strategy") == "block" and isinstance(blocks, list) and len(blocks) == 2:
        return expand_blocks(scale, blocks, shape, module)
    if scale.size == 1:
        return scale.reshape(()), None
    rows, columns = shape
    if scale.shape in ((rows,), (rows, 1)):
        return scale.reshape(rows), None
    size = weights.get("group_size")
    if not isinstance(size, int) or size < 1 or scale.shape != (rows, -(-columns // size)):
        raise ModelError(
            f"{checkpoint.path}: layer {module!r} of shape {list(shape)} has scales of shape "
            f"{list(scale.shape)}, "
            f"which do not fit group_size {size!r:.20}; repair config.json"
        )
    return scale, size


def expand_blocks(
    scale: NDArray[np.float32], blocks: list[Any], shape: tuple[int, ...], module: str
) -> tuple[NDArray[np.float32], int]:
    """Return scales of blocks of several rows as blocks along K alone, and their size."""
    sizes = [size for size in blocks if isinstance(size, int) and size > 0]
    counts = tuple(-(-n // size) for n, size in zip(shape, sizes, strict=False))
    if len(sizes) != 2 or scale.shape != counts:
        raise ModelError(
            f"layer {module!r} of shape {list(shape)} has scales of shape {list(scale.shape)} for blocks of "
            f"{blocks!r:.40}; repair config.json"
        )
    return np.repeat(scale, sizes[0], axis=0)[: shape[0]], sizes[1]


def _like(scale: NDArray[np.float32], zeros: NDArray[np.int32], module: str) -> NDArray[np.int32]:
    if zeros.size != scale.size:
        raise ModelError(
            f"layer {module!r} has {scale.size} scales and {zeros.size} zero points; download it again"
        )
    return zeros.reshape(scale.shape)


def _read_input(checkpoint: Checkpoint, module: str, inputs: Mapping[str, Any]) -> InputFormat | None:
    """Return how the input of a module is quantized. Raises ModelError for an unknown number format."""
    kind, bits = inputs.get("type", "int"), inputs.get("num_bits", 8)
    names = {("int", 8): "int8", ("int", 4): "int4", ("float", 8): "float8e4m3fn", ("float", 4): "float4e2m1"}
    try:
        qtype = QTYPES[names[kind, bits]]
    except (KeyError, TypeError):
        raise ModelError(
            f"{checkpoint.path}: inputs of {kind!r:.20} with {bits!r:.20} bits are not read; "
            "quantize them with 8"
        ) from None
    group = inputs.get("group_size")
    block = group if isinstance(group, int) and group > 0 else 0
    if f"{module}.input_global_scale" in checkpoint:
        shared = checkpoint.floats(f"{module}.input_global_scale").reshape(-1)[:1]
        return InputFormat(qtype, float(np.float32(1) / shared[0]), 0, block or 16, "e4m3")
    if f"{module}.input_scale" not in checkpoint:
        scale_type: ScaleType = "e8m0" if block == 32 and qtype.is_float else "float32"
        return InputFormat(qtype, block_size=block, scale_type=scale_type)
    scale = checkpoint.floats(f"{module}.input_scale").reshape(-1)
    zero = f"{module}.input_zero_point"
    zeros = checkpoint.array(zero).reshape(-1) if zero in checkpoint and not qtype.is_float else np.zeros(1)
    return InputFormat(qtype, float(scale[0]), int(zeros[0]))
