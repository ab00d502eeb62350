"""AWQ: qweight [K, N / 8] and qzeros [groups, N / 8] of eight interleaved nibbles, scales [groups, N].

A value is (number - zero) * scale. Source: AutoAWQ's version `gemm` (MIT), gptqmodel 7.7 (packing_utils).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from onnxfq.errors import ModelError
from onnxfq.interchange.checkpoints.folder import Checkpoint
from onnxfq.interchange.checkpoints.layer import Layer, with_positive_scales
from onnxfq.interchange.checkpoints.packing import unpack_awq
from onnxfq.numerics.float_types import FLOATS
from onnxfq.numerics.qtypes import QTYPES

PARTS = ("qweight", "qzeros", "scales")


def is_one(quantization: Mapping[str, Any]) -> bool:
    """Tell whether a configuration is of this form: AWQ's own, or AutoRound's in AWQ's packing."""
    method, packing = quantization.get("quant_method"), str(quantization.get("packing_format", ""))
    return method == "awq" or (method in ("auto-round", "intel/auto-round") and "awq" in packing)


def find(checkpoint: Checkpoint) -> list[str]:
    """Return the modules of the layers."""
    said = checkpoint.quantization
    version = str(said.get("version", said.get("checkpoint_format", "gemm"))).lower()
    if version != "gemm" or said.get("bits", 4) != 4:
        raise ModelError(
            f"{checkpoint.path}: AWQ of version {version!r:.20} and {said.get('bits')!r:.10} bits "
            "is not read; "
            "save it as version gemm with 4 bits"
        )
    return list(checkpoint.modules("qweight"))


def read(checkpoint: Checkpoint, module: str) -> Layer:
    """Return a layer. Raises ModelError for tensors that do not fit each other."""
    scales, packed = checkpoint.array(f"{module}.scales"), checkpoint.array(f"{module}.qweight")
    groups, outputs = scales.shape if scales.ndim == 2 else (0, 0)
    size = packed.shape[0] if packed.ndim == 2 else 0
    checkpoint.sized(f"{module}.qweight", (size, -(-outputs // 8)), np.int32)
    words = checkpoint.sized(f"{module}.qzeros", (groups, -(-outputs // 8)), np.int32)
    if not groups or size % groups:
        raise ModelError(
            f"{checkpoint.path}: layer {module!r} has {groups} groups of {size} inputs; download it again"
        )
    block, zeros = size // groups, unpack_awq(words, outputs).astype(np.int32).T
    scale = checkpoint.floats(f"{module}.scales").T
    return with_positive_scales(
        scale if block < size else scale[:, 0],
        module=module,
        numbers=np.ascontiguousarray(unpack_awq(packed, outputs).T),
        qtype=QTYPES["uint4"],
        zero_point=zeros if block < size else zeros[:, 0],
        block_size=block if block < size else None,
        float_type=next((name for name, info in FLOATS.items() if info.dtype == scales.dtype), "float32"),
    )
