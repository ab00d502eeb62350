"""Registration of the custom-op library in session options."""

from __future__ import annotations

from pathlib import Path

import onnx

from onnxfq.errors import ModelError, RuntimeLibraryError
from onnxfq.graph.model import list_nodes
from onnxfq.graph.ops import ONNXFQ_DOMAIN
from onnxfq.runtime.ort import onnxruntime
from onnxfq.support.records import join_lines
from onnxfq.support.resources import custom_ops_library

# Domains that come with onnxruntime; `explain_unsupported` handles `trt`.
_KNOWN_DOMAINS = {"", ONNXFQ_DOMAIN} | set(
    """ai.onnx ai.onnx.ml ai.onnx.preview ai.onnx.preview.training ai.onnx.training com.microsoft
    com.microsoft.dml com.microsoft.experimental com.microsoft.nchwc com.ms.internal.nhwc org.pytorch.aten
    trt""".split()
)


def custom_ops_path() -> str:
    """Return the path of the library of domain `onnxfq`. Raises RuntimeLibraryError if it is not built."""
    return str(custom_ops_library())


_own_libraries: list[str] = []
_REMEDY = "the library must be built for this onnxruntime and system"


def use_custom_ops(path: str | Path) -> None:
    """Register the user's custom-op library at `path` in every session that onnxfq creates from now on.

    Raises RuntimeLibraryError if there is no such file or ONNX Runtime rejects it; it is not used then.
    """
    if not Path(path).is_file():
        raise RuntimeLibraryError(f"no such custom-op library: {path}; check the path")
    place = str(Path(path).absolute())
    if place not in _own_libraries:
        _register(onnxruntime.SessionOptions(), place, _REMEDY)
        _own_libraries.append(place)


def list_custom_ops() -> tuple[str, ...]:
    """Return the absolute paths of the libraries registered with `use_custom_ops`."""
    return tuple(_own_libraries)


def register_libraries(session_options: onnxruntime.SessionOptions, proto: onnx.ModelProto) -> None:
    """Register the operators that `proto` needs: onnxfq's and the libraries of `use_custom_ops`.

    Raises RuntimeLibraryError for a library that is rejected, ModelError for an operator that no library has:
    one line with node, domain and option.
    """
    if any(opset.domain == ONNXFQ_DOMAIN for opset in proto.opset_import):
        register_custom_ops(session_options)
    for path in _own_libraries:
        _register(session_options, path, _REMEDY)
    functions = {(function.domain, function.name) for function in proto.functions}
    for node in () if _own_libraries else list_nodes(proto.graph):
        if node.domain not in _KNOWN_DOMAINS and (node.domain, node.op_type) not in functions:
            raise ModelError(
                f"node {node.name!r} is {node.op_type} of domain {node.domain!r}, which ONNX Runtime lacks; "
                "give the library that has it with --custom-ops LIB"
            )


def register_custom_ops(session_options: onnxruntime.SessionOptions) -> None:
    """Register `FakeQuantize` and `Observe` for sessions created with `session_options`.

    Raises RuntimeLibraryError if the library is missing or ONNX Runtime rejects it.
    """
    remedy = "onnxruntime 1.20 or later and a library built for this system are needed"
    _register(session_options, custom_ops_path(), remedy)


def _register(session_options: onnxruntime.SessionOptions, path: str, remedy: str) -> None:
    try:
        session_options.register_custom_ops_library(path)
    except Exception as error:  # onnxruntime raises its own classes, one per status code
        raise RuntimeLibraryError(
            f"onnxruntime {onnxruntime.__version__} refused {path}: {join_lines(error)}; {remedy}"
        ) from error
