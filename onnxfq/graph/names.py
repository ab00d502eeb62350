"""Names that a graph has not yet."""

from __future__ import annotations

from collections.abc import Collection


def unused(name: str, taken: Collection[str]) -> str:
    """Return `name`, or `name_2`, `name_3` ... when it is among `taken`."""
    free, number = name, 1
    while free in taken:
        number += 1
        free = f"{name}_{number}"
    return free


class Names(set[str]):
    """The names that are taken."""

    def claim(self, name: str) -> str:
        """Take `name`, or `name_2`, `name_3` ... when it is taken already, and return it."""
        free = unused(name, self)
        self.add(free)
        return free
