"""Processor time of the files of tests, as `make durations` recorded it, and what is dear by it."""

from __future__ import annotations

import functools
import json
from pathlib import Path

RECORD = Path(__file__).with_name("durations.json")
DEAR = 8.0
"""Seconds of processor time from which a file runs whole with `--whole` or by its name, else its sample."""


@functools.cache
def read_durations() -> dict[str, float]:
    """Return the seconds of each file of tests by its path below this folder."""
    return json.loads(RECORD.read_text(encoding="utf-8")) if RECORD.exists() else {}


def duration_of(path: Path) -> float:
    """Return the seconds of a file of tests; 0 without a record."""
    return read_durations().get(str(path.relative_to(RECORD.parent)), 0.0)


def is_sampled(path: Path) -> bool:
    """Tell whether a file has tests with the marker `sample`."""
    return "mark.sample" in path.read_text(encoding="utf-8")
