"""onnxfq: quantize ONNX models for TensorRT and measure them in ONNX Runtime.

    result = onnxfq.quantize("model.onnx", "calibration.npz", "model.int8.onnx")
    print(result.evaluation.table())
    onnxfq.write_report(result, "report.html")

`quantize` runs `load`, `make_plan`, `collect_statistics`, `calibrate` and `insert_qdq` in a row; `evaluate`
measures errors, `check` predicts the target's treatment of each node, `handoff` packs files for the machine
with the GPU. Every error is an `OnnxfqError` of one line.

The names here are the public API; everything else may change.
"""

import os
import sys

if sys.argv[:1] == ["-m"] and sys.orig_argv[-len(sys.argv)].endswith(__name__) and sys.path[0] == os.getcwd():
    # `python -m onnxfq`: the working folder may hold files of anyone, such as a __future__.py.
    del sys.path[0]

from collections.abc import Callable
from functools import cache
from types import FunctionType
from typing import Any

from onnxfq import errors as errors
from onnxfq.version import VERSION

__version__ = VERSION


@cache
def _read_stub() -> tuple[Callable[[str], Any], list[str]]:
    """Return what imports a name that the stub next to this file lists, and all names."""
    import lazy_loader  # it parses the stub, which no command needs

    load, _, names = lazy_loader.attach_stub(__name__, __file__)
    return load, sorted([*names, "__version__"])


def __getattr__(name: str) -> Any:
    """Return a public name, imported at its first use, including torch."""
    load, names = _read_stub()
    if name == "__all__":
        return names
    try:
        loaded = load(name)
        if not isinstance(loaded, FunctionType):
            return loaded
        from onnxfq.support.arguments import explain_types

        globals()[name] = explained = explain_types(loaded)
        return explained
    except AttributeError:
        if name in names or name[:1] == "_":
            raise
        from onnxfq.choices import OTHER_NAMES

        hint = f"; write {OTHER_NAMES[name]}" if name in OTHER_NAMES else errors.nearest(name, names)
        raise AttributeError(f"module 'onnxfq' has no attribute {name!r}{hint}") from None


def __dir__() -> list[str]:
    """Return the public names."""
    return _read_stub()[1]
