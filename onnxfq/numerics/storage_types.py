"""Storage types of number formats in written models: an ONNX type, or a block format."""

from __future__ import annotations

from dataclasses import dataclass

from onnxfq.numerics.qtypes import QTYPES, QType, qtype_by_name


@dataclass(frozen=True)
class BlockFormat:
    """Number format, type of the scales, and size of blocks along the summed axis."""

    qtype: str
    scale_type: str
    block_size: int


BLOCK_FORMATS = {
    "MXFP8": BlockFormat("float8e4m3fn", "e8m0", 32),
    "NVFP4": BlockFormat("float4e2m1", "e4m3", 16),
}
"""Block formats with small scales in hardware: OCP MX (2023), and NVFP4 of NVIDIA's Blackwell."""


def block_format_name(qtype: QType, scale_type: str) -> str:
    """Return the name in `BLOCK_FORMATS` of the format with these numbers and scales; empty for none."""
    for name, one in BLOCK_FORMATS.items():
        if (one.qtype, one.scale_type) == (qtype.name, scale_type):
            return name
    return ""


def find_storage_qtype(qtype: QType) -> QType | None:
    """Return the type of ONNX's QuantizeLinear that holds all numbers of `qtype`; None for none.

    int8[-127,127] is stored as int8, an odd width as the next wider integer: int3 as int4, int5 as int8,
    int12 as int16. Weights are stored within their limits; activations are clipped to them.
    The result is None if the installed onnx is older than the float type.
    """
    if qtype.min_opset is not None:
        return qtype_by_name(qtype.base)
    if qtype.is_float:
        return None
    width = next(bits for bits in (4, 8, 16) if bits >= qtype.bits)
    return QTYPES[f"{'' if qtype.signed else 'u'}int{width}"]
