"""The custom-op library as ONNX Runtime takes it: a path to register in session options."""

from __future__ import annotations

from onnxfq.documents import one_line
from onnxfq.errors import RuntimeLibraryError
from onnxfq.package_files import custom_ops_library
from onnxfq.runtime.ort import onnxruntime


def custom_ops_path() -> str:
    """Path of the custom-op library, domain `onnxfq`. Raises RuntimeLibraryError when it is not built."""
    return str(custom_ops_library())


def register_custom_ops(session_options: onnxruntime.SessionOptions) -> None:
    """Make `FakeQuantize` and `Observe` known to sessions made with `session_options`.

    Raises RuntimeLibraryError when the library is missing or ONNX Runtime refuses it.
    """
    path = custom_ops_path()
    try:
        session_options.register_custom_ops_library(path)
    except Exception as error:  # onnxruntime raises classes of its own, one per status code
        reason = one_line(error)
        raise RuntimeLibraryError(
            f"onnxruntime {onnxruntime.__version__} refused {path}: {reason}; "
            "onnxruntime 1.20 or later and a library built for this system are needed"
        ) from error
