"""Notes of the library on standard error, as the command line prints them."""

from __future__ import annotations

import logging
import sys
from typing import TextIO


class _Notes(logging.StreamHandler[TextIO]):
    """Writes to what standard error is when a note comes: a live bar stands in for it, and goes on below."""

    def emit(self, record: logging.LogRecord) -> None:
        self.stream = sys.stderr
        super().emit(record)


def show_notes() -> None:
    """Print what the library logs as warnings in lines that begin with `onnxfq: note:`."""
    handler = _Notes()
    handler.setFormatter(logging.Formatter("onnxfq: note: %(message)s"))
    logger = logging.getLogger("onnxfq")
    logger.handlers[:] = [handler]
    logger.propagate = False
