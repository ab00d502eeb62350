"""GPTQ and AWQ: numbers packed along the columns of qweight, in groups of rows with zeros and scales.

| form | qweight                            | qzeros                             | scales, g_idx         |
|------|------------------------------------|------------------------------------|-----------------------|
| gptq | [K bits / 32, N], streams of bits  | [groups, N bits / 32]              | [groups, N], [K]      |
| awq  | [K, N / 8], interleaved nibbles    | [groups, N / 8], the same          | [groups, N]           |

A value is (number - zero) * scale. GPTQ's format `gptq` stores zeros less 1, and `gptq_v2` as they are.
Source: gptqmodel 7.7 (nn_modules/qlinear, utils/model.py, packing_utils), ModelCloud, Apache-2.0; AutoAWQ's
version `gemm` (MIT).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from onnxfq.checkpoints.folder import CONFIG, Checkpoint, StoredModule, float_type_of
from onnxfq.checkpoints.layer import FloatLayer, Layer, values_in_order, with_positive_scales
from onnxfq.checkpoints.packing import unpack_awq, unpack_words
from onnxfq.errors import ModelError
from onnxfq.numerics.qtypes import QTYPES

_AUTOROUND = ("auto-round", "intel/auto-round")
_OTHERS = {"dynamic", "extra_config"}
"""Fields by which gptqmodel and AutoRound give some layers other bits and groups than the rest has."""
_WIDTHS = (2, 3, 4, 8)
_WHOLE_WORDS = (2, 4, 8)
"""Widths of which no number crosses a word."""


def is_gptq(quantization: Mapping[str, Any]) -> bool:
    """Tell whether a configuration is GPTQ's own, or AutoRound's in GPTQ's packing."""
    return _is_packed("gptq", quantization)


def is_awq(quantization: Mapping[str, Any]) -> bool:
    """Tell whether a configuration is AWQ's own, or AutoRound's in AWQ's packing."""
    return _is_packed("awq", quantization)


def _is_packed(form: str, quantization: Mapping[str, Any]) -> bool:
    method, packing = quantization.get("quant_method"), str(quantization.get("packing_format", ""))
    return method == form or (method in _AUTOROUND and form in packing)


def check_awq(checkpoint: Checkpoint) -> None:
    """Raise ModelError for a version that is not read."""
    said = checkpoint.quantization
    version = str(said.get("version", said.get("checkpoint_format", "gemm"))).lower()
    if version != "gemm" or said.get("bits", 4) != 4:
        raise ModelError(
            f"{checkpoint.path}: AWQ of version {version!r:.20} and {said.get('bits')!r:.10} bits is not "
            "read; save it as version gemm with 4 bits"
        )
    check_packing(checkpoint)


def check_packing(checkpoint: Checkpoint) -> None:
    """Raise ModelError for bits or a size of groups that no layer has; -1 is one group for all inputs."""
    said = checkpoint.quantization
    bits, size = said.get("bits", 4), said.get("group_size", -1)
    for field, value, is_known in (
        ("bits", bits, bits in _WIDTHS),
        ("group_size", size, type(size) is int and (size > 0 or size == -1)),
    ):
        if not is_known:
            raise ModelError(f"{checkpoint.path}: {field} is {value!r:.20} in {CONFIG}; repair it")


def read_awq(module: StoredModule) -> Layer:
    """Return a layer. Raises ModelError for tensors that do not fit each other."""
    scales, packed = module.array("scales"), module.array("qweight")
    groups, outputs = scales.shape if scales.ndim == 2 else (0, 0)
    size = packed.shape[0] if packed.ndim == 2 else 0
    module.sized("qweight", (size, -(-outputs // 8)), np.int32)
    words = module.sized("qzeros", (groups, -(-outputs // 8)), np.int32)
    if not groups or size % groups:
        raise module.fault(f"has {groups} groups of {size} inputs")
    numbers = np.ascontiguousarray(unpack_awq(packed, outputs).T)
    zeros = unpack_awq(words, outputs).astype(np.int32).T
    return _make_layer(module, numbers, 4, zeros, _find_block(module, size, groups))


def read_gptq(module: StoredModule) -> Layer:
    """Return a layer. Raises ModelError for tensors that do not fit each other, or an unknown packing."""
    said = module.files.quantization
    packed, scales = module.array("qweight"), module.array("scales")
    bits = _find_bits(module, packed)
    groups, outputs = scales.shape if scales.ndim == 2 else (0, 0)
    order = module.array("g_idx") if "g_idx" in module else None
    size = packed.shape[0] * 32 // bits if order is None else len(order)
    module.sized("qweight", (-(-size * bits // 32), outputs), np.int32)
    words = module.sized("qzeros", (groups, -(-outputs * bits // 32)), np.int32)
    numbers = unpack_words(packed.T, bits, size)
    zeros = _read_zeros(words, bits, outputs, str(said.get("checkpoint_format", "gptq")) != "gptq_v2").T
    block = _find_block(module, size, groups)
    if order is not None and (order != np.arange(size) // block).any():
        why = "its groups follow the order of activations (desc_act), not blocks"
        what = f"layer {module.path!r}: g_idx"
        values = values_in_order(what, numbers, zeros, module.floats("scales").T, order)
        return FloatLayer(module.path, values, why, float_type_of(scales.dtype))
    return _make_layer(module, numbers, bits, zeros, block)


def _make_layer(
    module: StoredModule, numbers: NDArray[np.uint8], bits: int, zeros: NDArray[np.int32], block: int
) -> Layer:
    """Return the layer of numbers [N, K]; the scales have the type of the values."""
    is_whole, scale = block >= numbers.shape[1], module.floats("scales").T
    return with_positive_scales(
        scale[:, 0] if is_whole else scale,
        module=module.path,
        numbers=numbers,
        qtype=QTYPES[f"uint{bits}"],
        zero_point=zeros[:, 0] if is_whole else zeros,
        block_size=None if is_whole else block,
        float_type=float_type_of(module.array("scales").dtype),
    )


def _find_block(module: StoredModule, size: int, groups: int) -> int:
    """Return the inputs of a group. Raises ModelError where the configuration has another number."""
    said = module.files.quantization
    asked = said.get("group_size", -1)
    block = size if asked == -1 else min(asked, size)
    if -(-size // max(block, 1)) == groups:
        return block
    if "group_size" in said and not _OTHERS & said.keys():
        what = f"has {groups} groups of {size} inputs, and group_size is {asked} in {CONFIG}"
        raise module.fault(what, "repair it")
    return -(-size // max(groups, 1))


def _find_bits(module: StoredModule, packed: NDArray[Any]) -> int:
    """Return the bits of a layer: gptqmodel's `dynamic` may give it others than the rest has."""
    said = module.files.quantization.get("bits")
    if "g_idx" in module and packed.ndim == 2:
        rows = max(len(module.array("g_idx")), 1)
        said = packed.shape[0] * 32 // rows if packed.shape[0] * 32 % rows < 32 else said
    if packed.ndim != 2 or said not in _WIDTHS:
        what = f"has {said!r:.20} bits, and GPTQ is read with 2, 3, 4 or 8"
        raise module.fault(what, "quantize it with one of these")
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
