"""Limits on the memory of a process: what is free at its start, and the least that a command needs."""

from __future__ import annotations

import os
from pathlib import Path

from onnxfq.errors import OnnxfqError

_LEAST = 1 << 30
"""Least limit in bytes: imports and their threads need a part of it."""
_LEAST_OF_COMMANDS = 512 << 20
"""Least limit in bytes of a command: NumPy and ONNX Runtime reserve 330 MB before they read a model."""

_GROUP_LIMITS = (Path("/sys/fs/cgroup/memory.max"), Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"))
"""Limits of a container: cgroup v2, cgroup v1."""


def limit_memory(process: int = 0, most: int | None = None) -> None:
    """Let a process and its children allocate what is free now, each at most, and `most` bytes; Linux only.

    A model of some bytes, a Loop or a Range for example, may make any number of gigabytes. With the limit an
    allocation fails, and the error names the node; without it the system ends this process or another one.
    Mapped files do not count. A lower limit, of `ulimit -d`, stays.

    Args:
        process: its number; 0 for this one.
        most: bytes; None for no other bound.
    """
    free = free_memory()
    if free is None:
        return
    import resource  # POSIX only

    bound = max(min(free, most or free), _LEAST)
    now, hard = resource.getrlimit(resource.RLIMIT_DATA)
    if now != resource.RLIM_INFINITY:
        bound = min(now, bound)
    resource.prlimit(process, resource.RLIMIT_DATA, (bound, hard))


def check_limits() -> None:
    """Raise `OnnxfqError` if a limit of this process is below what the libraries of any command reserve.

    Below it libraries end the process in the middle of a call, or never return.
    """
    if os.name != "posix":
        return
    import resource  # POSIX only

    for flag, number in (("-v", resource.RLIMIT_AS), ("-d", resource.RLIMIT_DATA)):
        limit = resource.getrlimit(number)[0]
        if resource.RLIM_INFINITY != limit < _LEAST_OF_COMMANDS:
            raise OnnxfqError(
                f"the limit of `ulimit {flag}` is {limit >> 20} MB of memory, and a command needs "
                f"{_LEAST_OF_COMMANDS >> 20} MB; raise the limit"
            )


def free_memory() -> int | None:
    """Return the bytes that can be allocated without pushing out other processes; None if unknown."""
    try:
        lines = Path("/proc/meminfo").read_text("ascii").splitlines()
        sizes = {name: int(rest.split()[0]) for name, _, rest in (line.partition(":") for line in lines)}
        free = 1024 * (sizes["MemAvailable"] + sizes.get("SwapFree", 0))
    except (OSError, ValueError, IndexError, KeyError):
        return None
    return min([free, *_group_limits()])


def _group_limits() -> list[int]:
    limits = []
    for path in _GROUP_LIMITS:
        text = path.read_text("ascii").strip() if os.access(path, os.R_OK) else ""
        limits += [int(text)] if text.isdecimal() else []  # "max": no limit
    return limits
