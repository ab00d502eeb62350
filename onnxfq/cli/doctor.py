"""`onnxfq doctor`: what is installed, which devices work, and whether each kernel gives the right bits."""

from __future__ import annotations

import importlib.metadata
import platform

import typer

from onnxfq.cli.console import say
from onnxfq.errors import RuntimeLibraryError
from onnxfq.runtime.devices import cuda_problem
from onnxfq.runtime.gpus import cuda_built, gpus
from onnxfq.runtime.library import custom_ops_path
from onnxfq.runtime.ort import onnxruntime
from onnxfq.runtime.self_test import Outcome, self_test
from onnxfq.text_table import table_lines
from onnxfq.version import VERSION

_PACKAGES = ("onnx", "numpy", "ml-dtypes", "onnx-graphsurgeon", "torch", "ray", "tensorrt-rtx")


def doctor() -> None:
    """Print versions, library, providers and devices; test every kernel on every device that can be used.

    Exit code 0 when all tests pass, else 1.
    """
    problem = cuda_problem()
    gpu_names, gpu_fault = _gpus()
    outcomes = self_test("cpu")
    # The kernels alone where onnxruntime cannot use the GPU.
    on_gpu = self_test("cuda", in_sessions=not problem) if gpu_names else []
    fit = bool(on_gpu) and not problem and not any(outcome.fault for outcome in on_gpu)
    outcomes += on_gpu
    rows = [
        ["onnxfq", f"{VERSION}, Python {platform.python_version()}, {platform.platform()}"],
        ["packages", ", ".join(_versions())],
        ["onnxruntime", f"{_onnxruntime()}: {', '.join(onnxruntime.get_available_providers())}"],
        ["library", custom_ops_path()],
        ["CUDA kernels", "built" if cuda_built() else "not built: there was no CUDA compiler"],
        *(["GPU", name] for name in gpu_names or [f"none: {gpu_fault}"]),
        ["sessions", f"on the CPU; {problem}" if problem else "on the CPU and the GPU"],
        ["device auto", "cuda" if fit else "cpu"],
    ]
    for line in [*table_lines(rows), "", *table_lines([_row(outcome) for outcome in outcomes])]:
        say(line)
    if any(outcome.fault for outcome in outcomes):
        raise typer.Exit(1)


def _onnxruntime() -> str:
    built_for = getattr(onnxruntime, "cuda_version", "")
    return f"{onnxruntime.__version__} for CUDA {built_for}" if built_for else str(onnxruntime.__version__)


def _versions() -> list[str]:
    found = importlib.metadata.distributions()
    installed = {d.name.lower().replace("_", "-"): d.version for d in found if d.name}
    return [f"{package} {installed[package]}" for package in _PACKAGES if package in installed]


def _gpus() -> tuple[list[str], str]:
    """Return the GPUs in words, and why there is none."""
    try:
        return [str(gpu) for gpu in gpus()], "no GPU is visible"
    except RuntimeLibraryError as error:
        return [], str(error)


def _row(outcome: Outcome) -> list[str]:
    return [outcome.device, outcome.kernel, outcome.fault or "ok"]
