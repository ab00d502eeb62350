"""`FloatPlan`: in which float type runs what is not quantized, and what stays in float32 for all that."""

from __future__ import annotations

from dataclasses import dataclass

from onnxfq.documents.plan import Skipped
from onnxfq.numerics.float_types import HALF_TYPES, FloatName
from onnxfq.support.records import Record


@dataclass(frozen=True)
class FloatOptions:
    """What is asked for: the float type of the remainder, and whether inputs and outputs get it too."""

    name: FloatName = "fp32"
    io: bool = False

    @property
    def min_opset(self) -> int:
        """The opset from which on ONNX's operators take the type; 0 for fp32."""
        return 0 if self.name == "fp32" else HALF_TYPES[self.name].min_opset


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
