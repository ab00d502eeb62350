"""`Clock`: seconds by stage."""

from __future__ import annotations

import time


class Clock:
    """Seconds since its start, by stage.

    Attributes:
        seconds: by name of the stage.
    """

    def __init__(self) -> None:
        """Start."""
        self.seconds: dict[str, float] = {}
        self._last = time.perf_counter()

    def lap(self, stage: str) -> None:
        """Add the time since the last call to `stage`."""
        now = time.perf_counter()
        self.seconds[stage] = self.seconds.get(stage, 0.0) + now - self._last
        self._last = now
