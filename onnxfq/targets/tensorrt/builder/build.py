"""TensorRT for RTX builds in a separate process, and the precision of each node."""

from __future__ import annotations

import importlib.util
import json
import queue
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import onnx
from onnx import TensorProto

from onnxfq.errors import RuntimeLibraryError
from onnxfq.graph.external.tensor import is_external
from onnxfq.graph.io.save import save
from onnxfq.support.records import join_lines
from onnxfq.support.temporary import scratch_folder
from onnxfq.targets.findings import EngineNode, Finding
from onnxfq.targets.profiles import Profile, profiles
from onnxfq.targets.reading.context import CheckContext
from onnxfq.targets.reading.proof import Built, describe_node
from onnxfq.targets.target import BuildOptions
from onnxfq.targets.tensorrt.builder.layers import LAYERS, parse_layers, verdict

OLDEST = (1, 7)
"""Oldest usable release: int8 convolutions do not build before."""


@dataclass(frozen=True)
class Job:
    """One engine to build.

    Attributes:
        path: file of the model.
        capability: GPU architecture, such as SM89.
        profiles: optimization profiles by input name.
    """

    path: Path
    capability: str
    profiles: Mapping[str, Profile] = field(default_factory=dict)


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


def capabilities(reading: CheckContext) -> tuple[str, ...]:
    """Return the GPU architectures to build for; they support all formats of the model.

    int8 is built for two, because SM86 and SM89 choose different kernels. SM75 has no int8 convolution.
    """
    types = {q.qtype for q in reading.quantizers}
    mx = any("MXFP8" in site.op or "FP4" in site.op for site in reading.sites)
    if mx or TensorProto.FLOAT4E2M1 in types:
        return ("SM120",)
    if TensorProto.FLOAT8E4M3FN in types:
        return ("SM89",)
    return ("SM86",) if types <= {TensorProto.INT4} else ("SM86", "SM89")


def build_model(reading: CheckContext, options: BuildOptions) -> Built:
    """Build the model for each of its `capabilities`.

    Raises RuntimeLibraryError if TensorRT for RTX is missing, too old or logs in another format, DataError
    for shapes that do not fit.
    """
    wanted = profiles(reading.proto, options.shapes)
    chosen = capabilities(reading)
    with scratch_folder() as folder:
        path = folder / "model.onnx"
        if any(is_external(tensor) for tensor in reading.proto.graph.initializer):
            save(reading.proto, path)
        else:  # unchanged, valid or not: the builder judges it
            onnx.save_model(reading.proto, path)
        reports = run_jobs([Job(path, capability, wanted) for capability in chosen], options.seconds)
    version = next((report.version for report in reports if report.version), "")
    if version:
        _check_version(version)
    findings: list[Finding] = []
    nodes: list[EngineNode] = []
    for capability, report in zip(chosen, reports, strict=True):
        refusals = _refusals(report, capability)
        findings += refusals
        if not refusals:
            nodes += _engine_nodes(reading, report, capability)
    return Built(f"TensorRT for RTX {version}" if version else "", tuple(findings), tuple(nodes))


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
    while len(reports) < len(jobs):
        with _Worker(jobs[len(reports) :]) as worker:
            for line in worker.lines(seconds):
                reports.append(_report(line))
            if len(reports) < len(jobs):
                reports.append(Report(ended=worker.describe_end()))
    return reports


class _Worker:
    """Builder process; lines() yields its results until it ends or exceeds the time limit of a job."""

    def __init__(self, jobs: Sequence[Job]) -> None:
        requests = [
            {"path": str(job.path), "capability": job.capability, "profiles": job.profiles} for job in jobs
        ]
        self._requests, self._log = tempfile.TemporaryFile(), tempfile.TemporaryFile()
        self._requests.write(json.dumps(requests).encode())
        self._requests.seek(0)
        self._process = subprocess.Popen(
            [sys.executable, "-m", "onnxfq.targets.tensorrt.builder.process"],
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


def _check_version(version: str) -> None:
    found = tuple(int(part) for part in version.split(".")[:2])
    if found < OLDEST:
        raise RuntimeLibraryError(
            f"TensorRT for RTX {version} refuses every int8 convolution; install the release that "
            "onnxfq[tensorrt] names"
        )


def _refusals(report: Report, capability: str) -> list[Finding]:
    """Return why there is no engine; empty if there is one."""
    builder = f"TensorRT for RTX {report.version}".strip()
    if report.ended:
        rule = "timeout" if report.ended.startswith("took") else "crash"
        return [_refusal(rule, "", "", f"{builder} {report.ended} on this model for {capability}")]
    if not report.parsed:
        faults = report.faults or (("", "", "; ".join(report.errors) or "no reason is given"),)
        return [
            _refusal("parser", node, op, f"{builder} cannot parse it: {join_lines(text)[:300]}")
            for node, op, text in faults
        ]
    if not report.built:
        text = join_lines("; ".join(report.errors) or "no reason is given")[:300]
        return [_refusal("builder", "", "", f"{builder} cannot build it for {capability}: {text}")]
    return []


def _refusal(rule: str, node: str, op_type: str, message: str) -> Finding:
    return Finding(rule=rule, severity="refused", node=node, op_type=op_type or "model", message=message)


def _engine_nodes(reading: CheckContext, report: Report, capability: str) -> list[EngineNode]:
    if not report.layers:
        raise RuntimeLibraryError(
            f"TensorRT for RTX {report.version} logs no {LAYERS!r}: its log format is unknown; install the "
            "release that onnxfq[tensorrt] names"
        )
    layers = parse_layers(report.layers)
    if not layers:
        raise RuntimeLibraryError(
            f"TensorRT for RTX {report.version} lists layers in an unknown format; install the "
            "release that onnxfq[tensorrt] names"
        )
    return [
        describe_node(promised, capability, verdict(layers, promised.site.name))
        for promised in reading.promises
    ]
