"""Values in groups: by their keys, and by what connects them."""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from typing import TypeVar

Key = TypeVar("Key", bound=Hashable)
Value = TypeVar("Value")


def group_pairs(pairs: Iterable[tuple[Key, Value]]) -> dict[Key, list[Value]]:
    """Return the values of each key; keys and values stay in the order in which they come."""
    groups: dict[Key, list[Value]] = {}
    for key, value in pairs:
        groups.setdefault(key, []).append(value)
    return groups


def find_connected(members: Iterable[Key], links: Iterable[tuple[Key, Key]]) -> list[list[Key]]:
    """Return the members in groups that links connect, in their own order."""
    heads = {one: one for one in members}

    def find(one: Key) -> Key:
        while heads[one] != one:
            heads[one] = one = heads[heads[one]]
        return one

    for one, other in links:
        heads[find(one)] = find(other)
    return list(group_pairs((find(one), one) for one in heads).values())
