"""Requirements of GPU sessions on this machine and onnxruntime, and the missing ones."""

from __future__ import annotations

import io
import re
import warnings
from contextlib import redirect_stdout
from functools import cache
from typing import Any

from onnx import parser

from onnxfq.errors import OnnxfqError
from onnxfq.runtime.devices import Device, gpus
from onnxfq.runtime.ort import ONLY_FATAL, new_options, onnxruntime, open_inference_session
from onnxfq.support.records import join_lines

CPU_PROVIDER = "CPUExecutionProvider"
CUDA_PROVIDER = "CUDAExecutionProvider"

_WARNINGS = 2
_NOT_LOADED = re.compile(r"^Failed to load (\S*?):? ", re.MULTILINE)


@cache
def cuda_problem() -> str:
    """Return in one line why sessions cannot use a GPU, with the remedy; empty if they can."""
    try:
        gpus()
    except OnnxfqError as error:
        return str(error)
    if CUDA_PROVIDER not in onnxruntime.get_available_providers():
        return (
            f"onnxruntime {onnxruntime.__version__} as installed has no CUDA provider; uninstall onnxruntime "
            "and install onnxruntime-gpu"
        )
    return _provider_problem(_load_cuda_libraries())


def providers(device: Device) -> list[Any]:
    """Return the execution providers of a session on `device`, as onnxruntime takes them.

    float32 products stay float32: the CUDA provider would use TensorFloat-32, which keeps 10 bits of each
    factor. Convolution algorithms are chosen by rule, not by timing, so that a model computes the same sums
    in every session.
    """
    if device == "cpu":
        return [CPU_PROVIDER]
    return [(CUDA_PROVIDER, {"use_tf32": "0", "cudnn_conv_algo_search": "HEURISTIC"}), CPU_PROVIDER]


def _load_cuda_libraries() -> list[str]:
    """Load CUDA's and cuDNN's libraries from pip's folders; return the libraries that are missing.

    onnxruntime itself searches only the system's paths, and prints errors for missing ones.
    """
    preload = getattr(onnxruntime, "preload_dlls", None)
    if preload is None:
        return []
    said = io.StringIO()
    with redirect_stdout(said), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        preload()
    return [path.rsplit("/", 1)[-1] for path in _NOT_LOADED.findall(said.getvalue())]


def _provider_problem(missing: list[str]) -> str:
    """Return why a minimal session lacks the CUDA provider; onnxruntime falls back instead of raising."""
    text = '<ir_version: 8, opset_import: ["" : 17]> probe (float[1] x) => (float[1] y) { y = Identity(x) }'
    # The reason is logged by onnxruntime's own logger, in several lines.
    onnxruntime.set_default_logger_severity(ONLY_FATAL)
    try:
        content = parser.parse_model(text).SerializeToString()
        used = open_inference_session(content, new_options(), providers=providers("cuda")).get_providers()
    except Exception as error:  # onnxruntime raises its own classes, one per status code
        return f"onnxruntime cannot use the GPU: {join_lines(error)[:200]}; `onnxfq doctor` tests it"
    finally:
        onnxruntime.set_default_logger_severity(_WARNINGS)
    if CUDA_PROVIDER in used:
        return ""
    lacks = f" ({', '.join(missing)} not found)" if missing else ""
    return (
        f"onnxruntime {onnxruntime.__version__} cannot load its CUDA provider; it needs the CUDA and cuDNN "
        f'libraries{lacks}: `pip install "onnxruntime-gpu[cuda,cudnn]"`'
    )
