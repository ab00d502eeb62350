"""Notes to the user, each logged once."""

from __future__ import annotations

import logging

log = logging.getLogger(__name__)


class Notes:
    """Logger of warnings, each text once."""

    def __init__(self) -> None:
        self._told: set[str] = set()

    def once(self, text: str) -> None:
        """Log `text` as a warning unless it was logged before."""
        if text not in self._told:
            self._told.add(text)
            log.warning("%s", text)
