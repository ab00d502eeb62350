"""Input slots of nodes, and the slots that read one tensor."""

from __future__ import annotations

from typing import NamedTuple

from onnxfq.support.records import Record


class Use(NamedTuple):
    """One input slot of one node: a reader of a quantized value.

    An empty node name stands for the output of the model at that position.
    """

    node: str
    input: int


class TensorUses(Record):
    """A tensor and the input slots that will read a replacement."""

    tensor: str
    uses: tuple[Use, ...]
