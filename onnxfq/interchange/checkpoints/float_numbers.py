"""Layers in small floats: NVFP4 with its two scales, and exponents of MX formats."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from onnxfq.errors import ModelError
from onnxfq.interchange.checkpoints.folder import Checkpoint
from onnxfq.interchange.checkpoints.layer import InputFormat, QuantizedLayer
from onnxfq.interchange.checkpoints.packing import unpack_nibbles
from onnxfq.numerics.float_types import FLOATS
from onnxfq.numerics.qtypes import QTYPES

_BLOCK = 16


def make_fp4_layer(
    checkpoint: Checkpoint,
    module: str,
    codes: NDArray[Any],
    scales: NDArray[Any],
    shared: NDArray[np.float32],
    given: InputFormat | None,
    divides: bool = False,
) -> QuantizedLayer:
    """Return a layer in NVFP4: float4_e2m1 numbers in blocks of 16, e4m3 scales, and one factor for all.

    Args:
        checkpoint: of the layer.
        module: its path.
        codes: uint8 [N, K / 2], the first number of a pair in the low half.
        scales: float8_e4m3fn [N, K / 16].
        shared: the factor, or what the scales are divided by.
        given: how the input is quantized.
        divides: whether `shared` divides, as in compressed-tensors. 1 / shared is then the factor, and where
            that is no number of float32 a last bit of a value may differ, which a note counts.

    Raises ModelError for tensors that do not fit each other.
    """
    rows, half = codes.shape if codes.ndim == 2 else (0, 0)
    wanted = (rows, -(-2 * half // _BLOCK))
    if codes.dtype != np.uint8 or scales.dtype != ml_dtypes.float8_e4m3fn or scales.shape != wanted:
        raise ModelError(
            f"{checkpoint.path}: layer {module!r} has codes {codes.dtype} {list(codes.shape)} and scales "
            f"{scales.dtype} {list(scales.shape)}, wanted are uint8 and float8_e4m3fn "
            f"{list(wanted)}; download "
            "it again"
        )
    if not (shared.size == 1 and np.isfinite(shared).all() and shared[0] > 0):
        raise ModelError(
            f"{checkpoint.path}: layer {module!r} has no positive global scale; download it again"
        )
    qtype = QTYPES["float4e2m1"]
    numbers = unpack_nibbles(np.ascontiguousarray(codes)).view(np.uint8).view(qtype.dtype)
    factor = np.float32(1) / shared[0] if divides else shared[0]
    blocks = scales.astype(np.float32)
    notes: tuple[str, ...] = ()
    if not (blocks > 0).all():
        empty = ~(blocks > 0)
        if not (blocks[empty] == 0).all():
            raise ModelError(
                f"{checkpoint.path}: layer {module!r} has negative or NaN block scales; download it again"
            )
        numbers = np.where(
            np.repeat(empty, _BLOCK, axis=1)[:, : numbers.shape[1]], np.zeros(1, qtype.dtype), numbers
        )
        blocks = np.where(empty, np.float32(1), blocks)
        notes = (f"{int(empty.sum())} block scales are 0; their numbers become 0 and their scale 1",)
    layer = QuantizedLayer(
        module,
        numbers,
        qtype,
        (blocks * factor).astype(np.float32),
        np.zeros(blocks.shape, np.int32),
        _BLOCK,
        "e4m3",
        float(factor),
        checkpoint.float_type,
        given,
        notes,
    )
    return _with_note(layer, blocks / shared[0]) if divides else layer


def _with_note(layer: QuantizedLayer, exact: NDArray[np.float32]) -> QuantizedLayer:
    """Return a layer with a note of its values that differ from those with the scales `exact`."""
    from dataclasses import replace

    dtype = FLOATS[layer.float_type].dtype
    theirs = replace(layer, scale=exact.astype(np.float32), global_scale=None, scale_type="float32").values
    count = int((theirs.astype(dtype) != layer.values.astype(dtype)).sum())
    note = (
        f"{count} of {theirs.size} values differ by a last bit of {layer.float_type}: the form "
        "divides by its "
        "global scale, and 1 / it is rounded"
    )
    return replace(layer, notes=(*layer.notes, note)) if count else layer


def read_exponents(stored: NDArray[Any]) -> NDArray[np.float32]:
    """Return 2^(e - 127) for the biased exponents of an MX format, uint8; 255 stands for NaN."""
    exponents = np.asarray(stored).view(np.uint8).astype(np.int32) - 127
    return np.where(exponents == 128, np.float32(np.nan), np.ldexp(np.float32(1), exponents)).astype(
        np.float32
    )
