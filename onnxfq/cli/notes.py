"""Notes of the library as lines on standard error."""

from __future__ import annotations

import logging
import sys
from typing import TYPE_CHECKING, TextIO

if TYPE_CHECKING:
    _Handler = logging.StreamHandler[TextIO]
else:
    _Handler = logging.StreamHandler  # Python 3.10 takes no type there


class _Notes(_Handler):
    """Handler that writes to the current standard error, which a live progress bar may replace.

    Every note is written once: stages that try several plans say the same of each.
    """

    def __init__(self) -> None:
        super().__init__()
        self._written: set[str] = set()

    def emit(self, record: logging.LogRecord) -> None:
        self.stream = sys.stderr
        text = self.format(record)
        if text not in self._written:
            self._written.add(text)
            super().emit(record)


def show_notes(level: int = logging.WARNING) -> None:
    """Print what the library logs at this level or above, in lines that begin with `onnxfq: note:`."""
    handler = _Notes()
    handler.setFormatter(logging.Formatter("onnxfq: note: %(message)s"))
    logger = logging.getLogger("onnxfq")
    logger.handlers[:] = [handler]
    logger.setLevel(level)
    logger.propagate = False
