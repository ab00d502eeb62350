"""Which device sessions run on: `auto` is the GPU where all that it needs is there."""

from __future__ import annotations

import logging
from functools import cache
from typing import Any, Literal

from onnx import TensorProto, helper

from onnxfq.documents import one_line
from onnxfq.errors import RuntimeLibraryError
from onnxfq.runtime.gpus import gpus
from onnxfq.runtime.ort import onnxruntime
from onnxfq.runtime.places import Device

log = logging.getLogger(__name__)

DeviceChoice = Literal["auto", "cpu", "cuda"]

CPU_PROVIDER = "CPUExecutionProvider"
CUDA_PROVIDER = "CUDAExecutionProvider"

_ONLY_FATAL, _WARNINGS = 4, 2


def choose_device(wanted: DeviceChoice) -> Device:
    """Return the device to run on, and say in one line when that is a GPU nobody asked for by name.

    Raises RuntimeLibraryError with what is missing and the remedy when "cuda" is wanted and cannot be used.
    """
    if wanted == "cpu":
        return "cpu"
    problem = cuda_problem()
    if wanted == "cuda" and problem:
        raise RuntimeLibraryError(f"device 'cuda' cannot be used: {problem}")
    if problem:
        log.info("running on the CPU: %s", problem)
        return "cpu"
    if wanted == "auto":
        log.warning("running on %s; choose device cpu for the CPU", gpus()[0])
    return "cuda"


@cache
def cuda_problem() -> str:
    """Return in one line what keeps sessions from a GPU, with the remedy; empty when nothing does."""
    try:
        gpus()
    except RuntimeLibraryError as error:
        return str(error)
    if CUDA_PROVIDER not in onnxruntime.get_available_providers():
        return (
            f"onnxruntime {onnxruntime.__version__} as installed has no CUDA provider; uninstall onnxruntime "
            "and install onnxruntime-gpu"
        )
    return _provider_problem()


def providers(device: Device) -> list[Any]:
    """Return the execution providers of a session on `device`, as onnxruntime takes them.

    float32 products stay float32: TensorFloat-32, which the CUDA provider would use, keeps 10 bits of each
    factor.
    """
    if device == "cpu":
        return [CPU_PROVIDER]
    return [(CUDA_PROVIDER, {"use_tf32": "0"}), CPU_PROVIDER]


def _provider_problem() -> str:
    """Make the smallest session there is: onnxruntime falls back to the CPU in place of raising."""
    identity = helper.make_graph(
        [helper.make_node("Identity", ["x"], ["y"])],
        "probe",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [1])],
    )
    model = helper.make_model(identity, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    options = onnxruntime.SessionOptions()
    options.log_severity_level = _ONLY_FATAL
    # What keeps the provider from loading is logged by the library's own logger, in several lines.
    onnxruntime.set_default_logger_severity(_ONLY_FATAL)
    try:
        content = model.SerializeToString()
        used = onnxruntime.InferenceSession(content, options, providers=providers("cuda")).get_providers()
    except Exception as error:  # onnxruntime raises classes of its own, one per status code
        return f"onnxruntime cannot use the GPU: {one_line(error)[:200]}"
    finally:
        onnxruntime.set_default_logger_severity(_WARNINGS)
    if CUDA_PROVIDER in used:
        return ""
    return (
        f"onnxruntime {onnxruntime.__version__} cannot load its CUDA provider; it needs the CUDA and cuDNN "
        'libraries: `pip install "onnxruntime-gpu[cuda,cudnn]"`'
    )
