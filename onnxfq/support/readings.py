"""`reading`: what a reader took of a file or of data, and what it left and why, as a part of a log record."""

from __future__ import annotations

from typing import Any

READING = "onnxfq_reading"
"""Attribute of a log record: the source, and its fields `took` or `left`."""


def reading(source: str, **found: str) -> dict[str, Any]:
    """Return the `extra` of a log record that `--json` of a command prints with its result."""
    return {READING: (source, found)}
