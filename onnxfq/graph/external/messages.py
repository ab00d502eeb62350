"""Fields of protobuf messages, one by one."""

from __future__ import annotations

from typing import TypeVar

from google.protobuf.message import Message

M = TypeVar("M", bound=Message)


def take_fields(new: M, old: Message, *fields: str) -> M:
    """Copy `fields` from `old` to `new`, and clear the ones that `old` lacks. Return `new`."""
    for field in fields:
        new.ClearField(field)
        value = getattr(old, field)
        if hasattr(value, "MergeFrom"):
            getattr(new, field).MergeFrom(value)
        elif old.HasField(field):
            setattr(new, field, value)
    return new
