"""Float types of 16 bits."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from onnx import TensorProto

FloatName = Literal["fp32", "fp16", "bf16"]


@dataclass(frozen=True)
class HalfType:
    """A float type of 16 bits.

    largest: finite number. smallest: normal number. min_opset: from which on ONNX's QuantizeLinear, and Conv,
    take it.
    """

    onnx_type: int
    largest: float
    smallest: float
    min_opset: int


HALF_TYPES = {
    "fp16": HalfType(int(TensorProto.FLOAT16), 65504.0, 2.0**-14, 19),
    "bf16": HalfType(int(TensorProto.BFLOAT16), float(2.0**127 * (2 - 2**-7)), 2.0**-126, 22),
}
