"""Engines of TensorRT for RTX: refusals, the precision of each node, and counts."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import onnx
from onnx import TensorProto

from onnxfq.errors import RuntimeLibraryError
from onnxfq.graph.external.tensor import is_external
from onnxfq.graph.io.save import save
from onnxfq.support.records import join_lines
from onnxfq.support.temporary import scratch_folder
from onnxfq.targets.engine_figures import EngineComparison
from onnxfq.targets.findings import EngineNode, Finding, about_model
from onnxfq.targets.profiles import profiles
from onnxfq.targets.reading.context import CheckContext
from onnxfq.targets.reading.proof import Built, describe_node
from onnxfq.targets.target import BuildOptions
from onnxfq.targets.tensorrt.builder.figures import compare_layers
from onnxfq.targets.tensorrt.builder.jobs import Job, Report, run_jobs
from onnxfq.targets.tensorrt.builder.layers import EngineLayer, parse_layers, verdict
from onnxfq.targets.tensorrt.builder.process import LAYERS
from onnxfq.targets.tensorrt.builder.shape_values import guess_values
from onnxfq.targets.tensorrt.builder.without_pairs import without_pairs
from onnxfq.targets.tensorrt.gpus import BUILDS, BUILT, read_gpu

OLDEST = (1, 7)
"""Oldest usable release: int8 convolutions do not build before."""


def capabilities(reading: CheckContext, gpus: Sequence[str] = ()) -> tuple[str, ...]:
    """Return the GPU architectures to build for: of `gpus`, or those that support all formats of the model.

    A GPU whose kernels the builder lacks counts as one that is not given.
    int8 is built for two, because SM86 and SM89 choose different kernels. SM75 has no int8 convolution.
    """
    given = dict.fromkeys(gpu.capability for gpu in map(read_gpu, gpus))
    if given.keys() & BUILT:
        return tuple(f"SM{capability}" for capability in given if capability in BUILT)
    types = {q.qtype for q in reading.quantizers}
    mx = any("MXFP8" in site.op or "FP4" in site.op for site in reading.sites)
    if mx or TensorProto.FLOAT4E2M1 in types:
        return ("SM120",)
    if TensorProto.FLOAT8E4M3FN in types:
        return ("SM89",)
    return ("SM86",) if types <= {TensorProto.INT4} else ("SM86", "SM89")


def build_model(reading: CheckContext, options: BuildOptions) -> Built:
    """Build the model for each of its `capabilities`, and the graph without pairs if it is asked for.

    Raises RuntimeLibraryError if TensorRT for RTX is missing, too old or logs in another format, DataError
    for shapes that do not fit.
    """
    wanted = options.covered if options.covered is not None else profiles(reading.proto, options.shapes)
    chosen = capabilities(reading, options.gpus)
    with scratch_folder() as folder:
        protos = {"model.onnx": reading.proto}
        if options.against:
            protos["plain.onnx"] = without_pairs(reading)
        for name, proto in protos.items():
            _store(proto, folder / name)
        values = guess_values(reading, options.values)
        jobs = [Job(folder / name, capability, wanted, values) for name in protos for capability in chosen]
        reports = run_jobs(jobs, options.seconds)
    version = next((report.version for report in reports if report.version), "")
    if version:
        _check_version(version)
    findings = list(_lack_kernels(options.gpus, chosen))
    nodes: list[EngineNode] = []
    compared: list[EngineComparison] = []
    plain: list[Report | None] = list(reports[len(chosen) :]) or [None] * len(chosen)
    for capability, report, other in zip(chosen, reports, plain, strict=False):
        refusals = _refusals(report, capability)
        findings += refusals
        if refusals:
            continue
        layers = _read_layers(report)
        nodes += [
            describe_node(promised, capability, verdict(layers, promised.site.name, promised.is_sum))
            for promised in reading.counted
        ]
        if other is not None and other.built:
            compared.append(compare_layers(reading, capability, layers, _read_layers(other)))
        elif other is not None:
            why = "; ".join(found.message for found in _refusals(other, capability))
            findings.append(about_model("against", f"without pairs: {why}", "warning"))
    name = f"TensorRT for RTX {version}" if version else ""
    return Built(name, tuple(findings), tuple(nodes), tuple(compared))


def _lack_kernels(gpus: Sequence[str], chosen: Sequence[str]) -> Iterator[Finding]:
    """Yield a warning for each GPU that the builder has no kernels for."""
    for gpu in map(read_gpu, gpus):
        if gpu.capability not in BUILT:
            why = f"{BUILDS} have no kernels for {gpu}: built for {' and '.join(chosen)} instead"
            yield about_model("builder", why, "warning")


def _store(proto: onnx.ModelProto, path: Path) -> None:
    if any(is_external(tensor) for tensor in proto.graph.initializer):
        save(proto, path)
    else:  # unchanged, valid or not: the builder judges it
        onnx.save_model(proto, path)


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
        return [about_model(rule, f"{builder} {report.ended} on this model for {capability}")]
    if not report.parsed:
        faults = report.faults or (("", "", "; ".join(report.errors) or "no reason is given"),)
        return [
            about_model("parser", f"{builder} cannot parse it: {join_lines(text)[:300]}").model_copy(
                update={"node": node, "op_type": op or "model"}
            )
            for node, op, text in faults
        ]
    if not report.built:
        text = join_lines("; ".join(report.errors) or "no reason is given")[:300]
        return [about_model("builder", f"{builder} cannot build it for {capability}: {text}")]
    return []


def _read_layers(report: Report) -> tuple[EngineLayer, ...]:
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
    return layers
