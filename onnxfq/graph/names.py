"""Names in a graph: unused ones, and the slots that read a tensor of a name."""

from __future__ import annotations

from collections.abc import Collection
from typing import NamedTuple

from onnxfq.support.records import Record


def pick_name(name: str, taken: Collection[str]) -> str:
    """Return `name`, or `name_2`, `name_3` ... if it is in `taken`."""
    free, number = name, 1
    while free in taken:
        number += 1
        free = f"{name}_{number}"
    return free


class Names(set[str]):
    """Set of taken names."""

    def claim(self, name: str) -> str:
        """Add `name`, or `name_2`, `name_3` ... if it is taken already, and return it."""
        free = pick_name(name, self)
        self.add(free)
        return free


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
