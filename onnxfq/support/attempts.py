"""Attempts at changes that a model does not need: if one fails, a note says so and the rest goes on."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TypeVar

from onnxfq.errors import OnnxfqError
from onnxfq.support.records import join_lines

Result = TypeVar("Result")
log = logging.getLogger(__name__)


def attempt(what: str, change: Callable[[], Result], otherwise: Callable[[], Result]) -> Result:
    """Return the result of `change`; if it fails, log a note and return the result of `otherwise`.

    Errors that say what is wrong with an input, and a lack of memory, are raised as they are.

    Args:
        what: the change and the node or model, for the note.
        change: must leave everything that it was given unchanged if it fails.
        otherwise: called after a failure.
    """
    try:
        return change()
    except (OnnxfqError, MemoryError):
        raise
    except Exception as fault:
        log.warning(
            f"{what} is left out, because it failed: {type(fault).__name__} ({join_lines(fault)[:120]})"
        )
        return otherwise()
