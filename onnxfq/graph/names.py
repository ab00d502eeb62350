"""Unused names in a graph."""

from __future__ import annotations

from collections.abc import Collection


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
