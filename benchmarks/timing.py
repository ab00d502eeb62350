"""Paired timing: candidates take turns in one process, so that machine noise affects all of them."""

from __future__ import annotations

import os
import platform
import statistics
import time
from collections.abc import Callable, Mapping
from pathlib import Path


def paired_times(candidates: Mapping[str, Callable[[], object]], rounds: int) -> dict[str, list[float]]:
    """Return the seconds of every call: `rounds` calls of each candidate in turn, after an uncounted one."""
    for call in candidates.values():
        call()
    times: dict[str, list[float]] = {name: [] for name in candidates}
    for _ in range(rounds):
        for name, call in candidates.items():
            start = time.perf_counter()
            call()
            times[name].append(time.perf_counter() - start)
    return times


def paired_costs(
    candidates: Mapping[str, Callable[[], object]], rounds: int
) -> tuple[dict[str, list[float]], dict[str, list[float]]]:
    """Return seconds of every call as `paired_times`, and their processor seconds over all threads."""
    walls: dict[str, list[float]] = {name: [] for name in candidates}
    costs: dict[str, list[float]] = {name: [] for name in candidates}
    for call in candidates.values():
        call()
    for _ in range(rounds):
        for name, call in candidates.items():
            start = time.perf_counter(), time.process_time()
            call()
            walls[name].append(time.perf_counter() - start[0])
            costs[name].append(time.process_time() - start[1])
    return walls, costs


def median_ratio(times: Mapping[str, list[float]], name: str, base: str) -> float:
    """Return the median over the rounds of time(name) / time(base), both of the same round."""
    return statistics.median(a / b for a, b in zip(times[name], times[base], strict=True))


def peak_bytes() -> int:
    """Return the peak resident memory of this process; 0 if the system does not report it.

    Not getrusage's, which counts the memory of the process that started this one.
    """
    status = Path("/proc/self/status")
    lines = status.read_text().splitlines() if status.exists() else []
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM")), 0)


def machine() -> str:
    """Return processor and number of cores in one line."""
    name = platform.processor() or platform.machine()
    info = Path("/proc/cpuinfo")
    if info.exists():
        names = [line.split(":")[1].strip() for line in info.read_text().splitlines() if "model name" in line]
        name = names[0] if names else name
    return f"{name}, {os.cpu_count()} cores, {platform.system()}, Python {platform.python_version()}"


def markdown_table(header: list[str], rows: list[list[str]]) -> str:
    """Return the rows as a Markdown table."""
    lines = ["| " + " | ".join(cells) + " |" for cells in [header, ["---"] * len(header), *rows]]
    return "\n".join(lines)


def write_section(out: Path | None, page: str, title: str, text: str) -> None:
    """Print a section, and put it in the place of the section of the same title of the file `out`.

    A new file has the heading `page`.
    """
    section = f"## {title}\n\n{text.strip()}\n"
    print(section)
    if out is None:
        return
    parts = out.read_text().split("\n## ") if out.exists() else [f"# {page}\n"]
    kept = [part.strip() for part in parts[1:] if not part.startswith(f"{title}\n")]
    whole = [parts[0].strip(), *(f"## {part}" for part in [*kept, section.removeprefix("## ").strip()])]
    out.write_text("\n\n".join(whole) + "\n")


def report(title: str, text: str, out: str | None) -> None:
    """Print the text under its title, and write it to the file `out` if given."""
    page = f"# {title}\n\n{text}\n"
    print(page)
    if out:
        Path(out).write_text(page)
