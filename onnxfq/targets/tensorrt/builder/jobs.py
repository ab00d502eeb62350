"""Builds of TensorRT for RTX in a separate process."""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from onnxfq.errors import RuntimeLibraryError
from onnxfq.support.progress import announce
from onnxfq.support.records import join_lines
from onnxfq.support.workers import Worker, WorkerFault
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
        with Worker(process.__file__) as worker:
            while len(reports) < len(jobs) and not worker.ended:
                reports.append(_run(worker, jobs[len(reports)], seconds))
                announce("build", len(reports), len(jobs))
    return reports


def _run(worker: Worker, job: Job, seconds: float) -> Report:
    try:
        fields = worker.ask("build", {**vars(job), "path": str(job.path)}, seconds=seconds)
    except WorkerFault as fault:
        if fault.kind:  # a Python exception, not a crash of the library
            raise RuntimeLibraryError(f"TensorRT for RTX does not run: {join_lines(fault)[:200]}") from None
        return Report(ended=str(fault))
    faults = tuple((str(node), str(op), str(text)) for node, op, text in fields.pop("faults"))
    return Report(faults=faults, errors=tuple(fields.pop("errors")), **fields)
