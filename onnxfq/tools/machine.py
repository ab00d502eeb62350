"""`inspect_machine`: installed versions, devices, and a bit-exact test of each kernel."""

from __future__ import annotations

import importlib.metadata
import platform
from collections.abc import Sequence
from dataclasses import replace

from onnxfq.errors import RuntimeLibraryError
from onnxfq.runtime.custom_ops import custom_ops_path
from onnxfq.runtime.device_choice import Outcome, self_test
from onnxfq.runtime.devices import Gpu, cuda_built, gpus, use_gpu
from onnxfq.runtime.ort import onnxruntime
from onnxfq.runtime.providers import cuda_problem
from onnxfq.version import VERSION

_PACKAGES = ("onnx", "numpy", "ml-dtypes", "onnx-graphsurgeon", "torch", "ray", "tensorrt-rtx", "openvino")


def inspect_machine() -> tuple[list[list[str]], list[Outcome]]:
    """Return facts as pairs of a name and a text, and the outcome of every kernel on every usable device."""
    problem = cuda_problem()
    devices, gpu_fault = _gpus()
    outcomes = self_test("cpu")
    on_gpus = [_test_gpu(gpu, devices, problem) for gpu in devices]
    outcomes += [outcome for tested in on_gpus for outcome in tested]
    # Sessions run on the first GPU.
    is_fit = bool(devices) and not problem and not any(outcome.fault for outcome in on_gpus[0])
    installed = _installed()
    facts = [
        ["onnxfq", f"{VERSION}, Python {platform.python_version()}, {platform.platform()}"],
        ["packages", ", ".join(f"{name} {installed[name]}" for name in _PACKAGES if name in installed)],
        ["onnxruntime", f"{_onnxruntime()}: {', '.join(onnxruntime.get_available_providers())}"],
        ["library", custom_ops_path()],
        ["CUDA kernels", "built" if cuda_built() else "not built: there was no CUDA compiler"],
        *(["GPU", name] for name in [str(gpu) for gpu in devices] or [f"none: {gpu_fault}"]),
        ["sessions", _sessions(problem, gpu_fault)],
        ["device any", "cuda" if is_fit else "cpu"],
    ]
    return facts, outcomes


def _sessions(problem: str, gpu_fault: str) -> str:
    """Return the devices for sessions, and the problem unless the GPU line gives it."""
    if not problem:
        return "on the CPU and the GPU"
    return "on the CPU" if problem == gpu_fault else f"on the CPU; {problem}"


def _test_gpu(gpu: Gpu, among: Sequence[Gpu], problem: str) -> list[Outcome]:
    """Test the kernels on one GPU; on the first also in sessions if onnxruntime can use it."""
    if len(among) == 1:
        return self_test("cuda", in_sessions=not problem)
    use_gpu(gpu.index)
    try:
        outcomes = self_test("cuda", in_sessions=not problem and gpu is among[0])
    finally:
        use_gpu(among[0].index)
    return [replace(outcome, device=f"cuda:{gpu.index}") for outcome in outcomes]


def _onnxruntime() -> str:
    built_for = getattr(onnxruntime, "cuda_version", "")
    version = f"{onnxruntime.__version__} for CUDA {built_for}" if built_for else str(onnxruntime.__version__)
    both = {"onnxruntime", "onnxruntime-gpu"} <= _installed().keys()
    fault = " (onnxruntime and onnxruntime-gpu overwrite each other: uninstall both and install one)"
    return version + (fault if both else "")


def _installed() -> dict[str, str]:
    packages = importlib.metadata.distributions()
    return {one.name.lower().replace("_", "-"): one.version for one in packages if one.name}


def _gpus() -> tuple[tuple[Gpu, ...], str]:
    """Return the GPUs, and the reason if there are none."""
    try:
        return gpus(), "no GPU is visible"
    except RuntimeLibraryError as error:
        return (), str(error)
