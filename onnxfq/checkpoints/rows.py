"""Weights [N, K] whose types tell their numbers: int8, float8, NVFP4 with its two scales, MX exponents."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from onnxfq.checkpoints.folder import StoredModule
from onnxfq.checkpoints.layer import InputFormat, QuantizedLayer
from onnxfq.numerics.block_scales import ScaleType
from onnxfq.numerics.float_types import FLOATS, FloatType
from onnxfq.numerics.qtypes import QTYPES, QType
from onnxfq.quantized.nbits import unpack_bits

MX_BLOCK = 32
FP4_BLOCK = 16

PLAIN: dict[np.dtype[Any], QType] = {
    np.dtype(np.int8): QTYPES["int8"],
    np.dtype(ml_dtypes.float8_e4m3fn): QTYPES["float8e4m3fn"],
}
"""Number formats of weights with one number an element, by their type."""

Scales = tuple[NDArray[np.float32], int | None]
"""Scales as a layer has them, and the size of its blocks."""


def read_scales(
    module: StoredModule,
    shape: tuple[int, ...],
    lay_out: Callable[[StoredModule, NDArray[np.float32], tuple[int, ...]], Scales],
) -> tuple[NDArray[np.float32], int | None, ScaleType]:
    """Return the scales of a weight of `shape`, the size of its blocks, and their type.

    Scales of uint8 are exponents. `lay_out` tells which numbers share a scale. Raises ModelError for scales
    that do not fit.
    """
    stored = module.array("weight_scale")
    is_mx = stored.dtype == np.uint8
    scale, block = lay_out(module, read_exponents(stored) if is_mx else module.floats("weight_scale"), shape)
    if is_mx and block is None:  # a row is one block
        if scale.size != shape[0]:
            raise module.fault(f"has {scale.size} exponents for {shape[0]} rows")
        scale, block = scale.reshape(shape[0], -1), MX_BLOCK
    return scale, block, "e8m0" if is_mx else "float32"


def share_by_channel(scale: NDArray[np.float32]) -> NDArray[np.float32]:
    """Return one scale for the tensor, or one for each channel."""
    return scale.reshape(() if scale.size == 1 else -1)


def expand_blocks(
    module: StoredModule, scale: NDArray[np.float32], blocks: list[Any], shape: tuple[int, ...]
) -> Scales:
    """Return scales of blocks of several rows as blocks along K alone, and their size."""
    sizes = [size for size in blocks if isinstance(size, int) and size > 0]
    counts = tuple(-(-n // size) for n, size in zip(shape, sizes, strict=False))
    if len(sizes) != 2 or scale.shape != counts:
        what = f"of shape {list(shape)} has scales of shape {list(scale.shape)} for blocks of {blocks!r:.40}"
        raise module.fault(what, "repair config.json")
    return np.repeat(scale, sizes[0], axis=0)[: shape[0]], sizes[1]


def make_fp4_layer(
    module: StoredModule, codes_part: str, shared_part: str, given: InputFormat | None, divides: bool = False
) -> QuantizedLayer:
    """Return a layer in NVFP4: float4_e2m1 numbers in blocks of 16, e4m3 scales, and one factor for all.

    Args:
        module: of the layer, with the scales float8_e4m3fn [N, K / 16] in `weight_scale`.
        codes_part: uint8 [N, K / 2], the first number of a pair in the low half.
        shared_part: the factor, or what the scales are divided by.
        given: how the input is quantized.
        divides: whether the factor divides, as in compressed-tensors. 1 / it is then the factor, and where
            that is no number of float32 a last bit of a value may differ, which a note counts.

    Raises ModelError for tensors that do not fit each other.
    """
    shared = module.floats(shared_part).reshape(-1)
    codes, scales = module.array(codes_part), module.array("weight_scale")
    rows, half = codes.shape if codes.ndim == 2 else (0, 0)
    wanted = (rows, -(-2 * half // FP4_BLOCK))
    if codes.dtype != np.uint8 or scales.dtype != ml_dtypes.float8_e4m3fn or scales.shape != wanted:
        raise module.fault(
            f"has codes {codes.dtype} {list(codes.shape)} and scales {scales.dtype} {list(scales.shape)}, "
            f"wanted are uint8 and float8_e4m3fn {list(wanted)}"
        )
    if not (shared.size == 1 and np.isfinite(shared).all() and shared[0] > 0):
        raise module.fault("has no positive global scale")
    qtype, blocks = QTYPES["float4e2m1"], scales.astype(np.float32)
    numbers = unpack_bits(np.ascontiguousarray(codes), 4).view(qtype.dtype)
    factor = np.float32(1) / shared[0] if divides else shared[0]
    notes: tuple[str, ...] = ()
    empty = ~(blocks > 0)
    if not (blocks[empty] == 0).all():
        raise module.fault("has negative or NaN block scales")
    if empty.any():
        dead = np.repeat(empty, FP4_BLOCK, axis=1)[:, : numbers.shape[1]]
        numbers = np.where(dead, np.zeros(1, qtype.dtype), numbers)
        blocks = np.where(empty, np.float32(1), blocks)
        notes = (f"{int(empty.sum())} block scales are 0; their numbers become 0 and their scale 1",)
    layer = QuantizedLayer(
        module.path,
        numbers,
        qtype,
        (blocks * factor).astype(np.float32),
        np.zeros(blocks.shape, np.int32),
        FP4_BLOCK,
        "e4m3",
        float(factor),
        module.files.float_type,
        given,
        notes,
    )
    note = note_last_bits(layer, blocks / shared[0], layer.float_type) if divides else ""
    why = "the form divides by its global scale, and 1 / it is rounded"
    return replace(layer, notes=(*layer.notes, f"{note}: {why}")) if note else layer


def note_last_bits(layer: QuantizedLayer, exact: NDArray[np.float32], kind: FloatType) -> str:
    """Return how many values differ in a float type from those with the scales `exact`; empty for none."""
    dtype = FLOATS[kind].dtype
    theirs = replace(layer, scale=exact.astype(np.float32), global_scale=None, scale_type="float32").values
    count = int((theirs.astype(dtype) != layer.values.astype(dtype)).sum())
    return f"{count} of {theirs.size} values differ by a last bit of {kind}" if count else ""


def read_exponents(stored: NDArray[Any]) -> NDArray[np.float32]:
    """Return 2^(e - 127) for the biased exponents of an MX format, uint8; 255 stands for NaN."""
    return np.asarray(np.asarray(stored).view(ml_dtypes.float8_e8m0fnu), np.float32)
