"""Input slots of nodes, and the slots that read one tensor."""

from __future__ import annotations

from typing import NamedTuple

from onnxfq.support.records import Record


class Use(NamedTuple):
    """One input slot of one node: where a quantized value is read.

    Without a node it is the output of the model at that position.
    """

    node: str
    input: int


class TensorUses(Record):
    """A tensor and the input slots that are to read something in its place."""

    tensor: str
    uses: tuple[Use, ...]
