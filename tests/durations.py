"""Processor time of the files of tests, as `make durations` recorded it, and what is dear by it."""

from __future__ import annotations

import functools
import json
import os
from contextlib import suppress
from pathlib import Path

RECORD = Path(__file__).with_name("durations.json")
DEAR = 7.0
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


def spent_seconds() -> float:
    """Return the processor time of this process, of ended children, and on Linux of those that live."""
    seconds, parents = {os.getpid(): sum(os.times()[:4])}, dict[int, int]()
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):  # it has just ended
            fields, process = (
                stat.read_text(errors="replace").rpartition(")")[2].split(),
                int(stat.parent.name),
            )
            parents[process] = int(fields[1])
            seconds[process] = sum(map(int, fields[11:15])) / os.sysconf("SC_CLK_TCK")
    family = {os.getpid()}
    while more := {one for one, parent in parents.items() if parent in family} - family:
        family |= more
    return sum(seconds[one] for one in family)
