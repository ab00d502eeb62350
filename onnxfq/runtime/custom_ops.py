"""The custom-op library as ONNX Runtime takes it: a path to register in session options."""

from __future__ import annotations

from pathlib import Path

import onnx

from onnxfq.errors import ModelError, RuntimeLibraryError
from onnxfq.graph.model import all_nodes
from onnxfq.graph.ops import ONNXFQ_DOMAIN
from onnxfq.runtime.ort import onnxruntime
from onnxfq.support.records import one_line
from onnxfq.support.resources import custom_ops_library

# What onnxruntime brings along; `trt` has a line of its own in missing_kernels.
_KNOWN_DOMAINS = frozenset(
    {
        "",
        ONNXFQ_DOMAIN,
        "ai.onnx",
        "ai.onnx.ml",
        "ai.onnx.preview",
        "ai.onnx.preview.training",
        "ai.onnx.training",
        "com.microsoft",
        "com.microsoft.dml",
        "com.microsoft.experimental",
        "com.microsoft.nchwc",
        "com.ms.internal.nhwc",
        "org.pytorch.aten",
        "trt",
    }
)


def custom_ops_path() -> str:
    """Path of the custom-op library, domain `onnxfq`. Raises RuntimeLibraryError when it is not built."""
    return str(custom_ops_library())


_own_libraries: list[str] = []
_REMEDY = "the library must be built for this onnxruntime and system"


def use_custom_ops(path: str | Path) -> None:
    """Register the custom-op library of the user's at `path` in every session that onnxfq makes from now on.

    Raises RuntimeLibraryError when there is no such file, or ONNX Runtime refuses it: it is not used then.
    """
    if not Path(path).is_file():
        raise RuntimeLibraryError(f"no such custom-op library: {path}; check the path")
    place = str(Path(path).absolute())
    if place not in _own_libraries:
        _register(onnxruntime.SessionOptions(), place, _REMEDY)
        _own_libraries.append(place)


def used_custom_ops() -> tuple[str, ...]:
    """Return the absolute paths of the libraries that `use_custom_ops` was given."""
    return tuple(_own_libraries)


def register_libraries(session_options: onnxruntime.SessionOptions, proto: onnx.ModelProto) -> None:
    """Make known what `proto` needs: onnxfq's own operators, and those of `use_custom_ops`.

    Raises RuntimeLibraryError when a library is refused, ModelError for an operator that none has: one line
    with node, domain and option.
    """
    if any(opset.domain == ONNXFQ_DOMAIN for opset in proto.opset_import):
        register_custom_ops(session_options)
    for path in _own_libraries:
        _register(session_options, path, _REMEDY)
    functions = {(one.domain, one.name) for one in proto.functions}
    for node in () if _own_libraries else all_nodes(proto.graph):
        if node.domain not in _KNOWN_DOMAINS and (node.domain, node.op_type) not in functions:
            raise ModelError(
                f"node {node.name!r} is {node.op_type} of domain {node.domain!r}, which ONNX Runtime lacks; "
                "give the library that has it with --custom-ops LIB"
            )


def register_custom_ops(session_options: onnxruntime.SessionOptions) -> None:
    """Make `FakeQuantize` and `Observe` known to sessions made with `session_options`.

    Raises RuntimeLibraryError when the library is missing or ONNX Runtime refuses it.
    """
    remedy = "onnxruntime 1.20 or later and a library built for this system are needed"
    _register(session_options, custom_ops_path(), remedy)


def _register(session_options: onnxruntime.SessionOptions, path: str, remedy: str) -> None:
    try:
        session_options.register_custom_ops_library(path)
    except Exception as error:  # onnxruntime raises classes of its own, one per status code
        raise RuntimeLibraryError(
            f"onnxruntime {onnxruntime.__version__} refused {path}: {one_line(error)}; {remedy}"
        ) from error
