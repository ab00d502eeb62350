"""Builds of TensorRT for RTX in a separate process."""

from __future__ import annotations

import importlib.util
import json
import os
import queue
import subprocess
import tempfile
import threading
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from onnxfq.errors import RuntimeLibraryError
from onnxfq.support.children import python_command, python_environment
from onnxfq.support.progress import announce
from onnxfq.support.records import join_lines
from onnxfq.targets.profiles import Profile
from onnxfq.targets.tensorrt.builder import process


@dataclass(frozen=True)
class Job:
    """One engine to build.

    Attributes:
        path: file of the model.
        capability: GPU architecture, such as SM89.
        profiles: optimization profiles by input name.
        values: numbers of integer inputs that are read while building.
        build: whether to build the model, or only to parse it.
    """

    path: Path
    capability: str
    profiles: Mapping[str, Profile] = field(default_factory=dict)
    values: Mapping[str, Sequence[int]] = field(default_factory=dict)
    build: bool = True


@dataclass(frozen=True)
class Report:
    """Result of one build job.

    Attributes:
        faults: errors of the parser, as (node, operator, text).
        errors: errors of the log.
        layers: log message that lists the layers.
        ended: how the process ended on this job; empty if it did not end.
    """

    version: str = ""
    parsed: bool = False
    built: bool = False
    faults: tuple[tuple[str, str, str], ...] = ()
    errors: tuple[str, ...] = ()
    layers: str = ""
    ended: str = ""


def builder_installed() -> bool:
    """Tell whether TensorRT for RTX can be imported."""
    return importlib.util.find_spec("tensorrt_rtx") is not None


def run_jobs(jobs: Sequence[Job], seconds: float) -> list[Report]:
    """Build all jobs, in one process until a job ends it, then in a new one.

    Args:
        jobs: engines to build.
        seconds: time limit for one job.

    Raises RuntimeLibraryError if TensorRT for RTX is missing or does not run.
    """
    if not builder_installed():
        raise RuntimeLibraryError(
            "building needs TensorRT for RTX, which is not installed; pip install 'onnxfq[tensorrt]' "
            "(Linux or Windows on x86-64), or check by the rules alone"
        )
    reports: list[Report] = []
    announce("build", 0, len(jobs))
    while len(reports) < len(jobs):
        with _Worker(jobs[len(reports) :]) as worker:
            for line in worker.lines(seconds):
                reports.append(_report(line))
                announce("build", len(reports), len(jobs))
            if len(reports) < len(jobs):
                reports.append(Report(ended=worker.describe_end()))
    return reports


class _Worker:
    """Builder process; lines() yields its results until it ends or exceeds the time limit of a job."""

    def __init__(self, jobs: Sequence[Job]) -> None:
        requests = [{**vars(job), "path": str(job.path)} for job in jobs]
        self._requests, self._log = tempfile.TemporaryFile(), tempfile.TemporaryFile()
        self._requests.write(json.dumps(requests).encode())
        self._requests.seek(0)
        self._process = subprocess.Popen(
            python_command("import runpy, sys; runpy.run_path(sys.argv[1])['main']()", process.__file__),
            env=os.environ | python_environment(),
            stdin=self._requests,
            stdout=subprocess.PIPE,
            stderr=self._log,
            text=True,
            encoding="utf-8",
        )
        self._queue: queue.Queue[str] = queue.Queue()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._timed_out = 0.0
        self._reader.start()

    def __enter__(self) -> _Worker:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.wait()
        self._reader.join()
        assert self._process.stdout is not None
        self._process.stdout.close()
        self._requests.close()
        self._log.close()

    def lines(self, seconds: float) -> Iterable[str]:
        while True:
            try:
                line = self._queue.get(timeout=seconds)
            except queue.Empty:
                self._timed_out = seconds
                return
            if not line:
                return
            yield line

    def describe_end(self) -> str:
        """Return how the process ended on the job without a result."""
        if self._timed_out:
            return f"took more than {self._timed_out:g} s"
        code = self._process.wait()
        self._log.seek(0)
        last = join_lines(self._log.read().decode("utf-8", "replace").strip().rpartition("\n")[2])[:200]
        if code == 1:  # a Python exception, not a crash of the library
            raise RuntimeLibraryError(f"TensorRT for RTX does not run: {last or 'no reason is given'}")
        return f"was ended by signal {-code}" if code < 0 else f"ended with code {code}"

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self._queue.put(line)
        self._queue.put("")


def _report(line: str) -> Report:
    fields: dict[str, Any] = json.loads(line)
    faults = tuple((str(node), str(op), str(text)) for node, op, text in fields.pop("faults"))
    return Report(faults=faults, errors=tuple(fields.pop("errors")), **fields)
