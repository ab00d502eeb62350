"""Notes of the library as lines on standard error."""

from __future__ import annotations

import logging
import sys
from typing import TextIO


class _Notes(logging.StreamHandler[TextIO]):
    """Handler that writes to the current standard error, which a live progress bar may replace."""

    def emit(self, record: logging.LogRecord) -> None:
        self.stream = sys.stderr
        super().emit(record)


def show_notes(level: int = logging.WARNING) -> None:
    """Print what the library logs at this level or above, in lines that begin with `onnxfq: note:`."""
    handler = _Notes()
    handler.setFormatter(logging.Formatter("onnxfq: note: %(message)s"))
    logger = logging.getLogger("onnxfq")
    logger.handlers[:] = [handler]
    logger.setLevel(level)
    logger.propagate = False
