"""`FloatPlan`: float type of the non-quantized part, and its float32 exceptions."""

from __future__ import annotations

from dataclasses import dataclass

from onnxfq.documents.plan import Skipped
from onnxfq.numerics.float_types import HALF_TYPES, FloatName
from onnxfq.support.records import Record


@dataclass(frozen=True)
class FloatOptions:
    """Request for a float type of the non-quantized part.

    Attributes:
        name: the type.
        io: whether inputs and outputs are cast too.
    """

    name: FloatName = "fp32"
    io: bool = False

    @property
    def min_opset(self) -> int:
        """The lowest opset whose operators support the type; 0 for fp32."""
        return 0 if self.name == "fp32" else HALF_TYPES[self.name].min_opset


ALL_FLOAT32 = FloatOptions()
"""Nothing is cast."""


class FloatPlan(Record):
    """Nodes and tensors of a Q/DQ model that stay in float32, with the reason; all others are cast.

    Attributes:
        clipped: tensors whose values stand for minus infinity and would overflow to it; they are kept finite.
    """

    name: FloatName
    io: bool = False
    nodes: tuple[Skipped, ...] = ()
    tensors: tuple[Skipped, ...] = ()
    clipped: tuple[str, ...] = ()
