"""GPTQ: qweight [K bits / 32, N], qzeros [groups, N bits / 32], scales [groups, N], g_idx [K].

Words are streams of bits along K and N. A value is (number - zero) * scale. Format `gptq` stores zeros
less 1, and `gptq_v2` as they are.
Source: gptqmodel 7.7 (nn_modules/qlinear, utils/model.py), ModelCloud, Apache-2.0.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from onnxfq.errors import ModelError
from onnxfq.interchange.checkpoints.folder import Checkpoint
from onnxfq.interchange.checkpoints.layer import FloatLayer, Layer, with_positive_scales
from onnxfq.interchange.checkpoints.packing import unpack_words
from onnxfq.numerics.float_types import FLOATS, FloatType
from onnxfq.numerics.qtypes import QTYPES

PARTS = ("qweight", "qzeros", "scales", "g_idx")
_SPELLED = ("gptq", "auto-round", "intel/auto-round")
_WHOLE_WORDS = (2, 4, 8)
"""Widths of which no number crosses a word."""


def is_one(quantization: Mapping[str, Any]) -> bool:
    """Tell whether a configuration is of this form: GPTQ's own, or AutoRound's in GPTQ's packing."""
    method, packing = quantization.get("quant_method"), str(quantization.get("packing_format", ""))
    return method in _SPELLED and (method == "gptq" or "gptq" in packing)


def find(checkpoint: Checkpoint) -> list[str]:
    """Return the modules of the layers."""
    return list(checkpoint.modules("qweight"))


def read(checkpoint: Checkpoint, module: str) -> Layer:
    """Return a layer. Raises ModelError for tensors that do not fit each other, or an unknown packing."""
    said = checkpoint.quantization
    packed, scales = checkpoint.array(f"{module}.qweight"), checkpoint.array(f"{module}.scales")
    bits = _find_bits(checkpoint, module, packed)
    groups, outputs = scales.shape if scales.ndim == 2 else (0, 0)
    size = packed.shape[0] * 32 // bits
    order = checkpoint.array(f"{module}.g_idx") if f"{module}.g_idx" in checkpoint else None
    size = size if order is None else len(order)
    checkpoint.sized(f"{module}.qweight", (-(-size * bits // 32), outputs), np.int32)
    words = checkpoint.sized(f"{module}.qzeros", (groups, -(-outputs * bits // 32)), np.int32)
    numbers = unpack_words(packed.T, bits, size)
    zeros = _read_zeros(words, bits, outputs, str(said.get("checkpoint_format", "gptq")) != "gptq_v2").T
    scale, kind = checkpoint.floats(f"{module}.scales").T, _float_type(scales)
    asked = said.get("group_size")
    block = asked if isinstance(asked, int) and 0 < asked < size else size
    if -(-size // block) != groups:
        block = -(-size // max(groups, 1))  # gptqmodel's `dynamic` may give a layer another size
    if order is not None and (order != np.arange(size) // block).any():
        return _in_float(module, numbers, scale, zeros, order, kind)
    return with_positive_scales(
        scale if block < size else scale[:, 0],
        module=module,
        numbers=numbers,
        qtype=QTYPES[f"uint{bits}"],
        zero_point=zeros if block < size else zeros[:, 0],
        block_size=block if block < size else None,
        float_type=kind,
    )


def _find_bits(checkpoint: Checkpoint, module: str, packed: NDArray[Any]) -> int:
    """Return the bits of a layer: gptqmodel's `dynamic` may give it others than the rest has."""
    said = checkpoint.quantization.get("bits")
    if f"{module}.g_idx" in checkpoint and packed.ndim == 2:
        rows = max(len(checkpoint.array(f"{module}.g_idx")), 1)
        said = packed.shape[0] * 32 // rows if packed.shape[0] * 32 % rows < 32 else said
    if packed.ndim != 2 or said not in (2, 3, 4, 8):
        raise ModelError(
            f"{checkpoint.path}: layer {module!r} has {said!r:.20} bits, and GPTQ is read with 2, 3, 4 or 8; "
            "quantize it with one of these"
        )
    return int(said)


def _read_zeros(words: NDArray[Any], bits: int, count: int, less_one: bool) -> NDArray[np.int32]:
    """Return the zero points, [groups, count].

    gptqmodel takes 1 away from packed words, so that a zero point of 0 borrows from its neighbour; adding to
    the words gives it back.
    """
    if less_one and bits in _WHOLE_WORDS:
        ones = sum(1 << shift for shift in range(0, 32, bits))
        words = (words.astype(np.int64) + ones).astype(np.uint32).view(np.int32)
    numbers = unpack_words(words, bits, count).astype(np.int32)
    if less_one and bits not in _WHOLE_WORDS:
        numbers = (numbers + 1) % (1 << bits)
    return numbers


def _float_type(scales: NDArray[Any]) -> FloatType:
    """Return the type of the values: the scales have it too."""
    return next((name for name, info in FLOATS.items() if info.dtype == scales.dtype), "float32")


def _in_float(
    module: str,
    numbers: NDArray[Any],
    scale: NDArray[np.float32],
    zeros: NDArray[np.int32],
    order: NDArray[Any],
    kind: FloatType,
) -> FloatLayer:
    """Return the values of a layer whose groups are not blocks of neighbours."""
    if ((order < 0) | (order >= scale.shape[1])).any():
        raise ModelError(f"layer {module!r}: g_idx names a group beyond {scale.shape[1]}; download it again")
    values = (numbers.astype(np.float32) - zeros[:, order]) * scale[:, order]
    return FloatLayer(
        module, values, "its groups follow the order of activations (desc_act), not blocks", kind
    )
