"""`FloatPlan`: in which float type runs what is not quantized, and what stays in float32 for all that."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from onnx import TensorProto

from onnxfq.documents.plan import Skipped
from onnxfq.support.records import Record

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


@dataclass(frozen=True)
class FloatOptions:
    """What is asked for: the float type of the remainder, and whether inputs and outputs get it too."""

    name: FloatName = "fp32"
    io: bool = False


ALL_FLOAT32 = FloatOptions()
"""Nothing is cast."""


class FloatPlan(Record):
    """Which nodes and tensors of a Q/DQ model stay in float32, with the reason; all others are cast.

    clipped: tensors with numbers that stand for minus infinity and would become it; they are kept finite.
    """

    name: FloatName
    io: bool = False
    nodes: tuple[Skipped, ...] = ()
    tensors: tuple[Skipped, ...] = ()
    clipped: tuple[str, ...] = ()
