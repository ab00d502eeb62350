"""onnxfq: quantize ONNX models for TensorRT and measure them in ONNX Runtime.

    result = onnxfq.quantize("model.onnx", "calibration.npz", "model.int8.onnx")
    print(result.evaluation.table())
    onnxfq.write_report(result, "report.html")

`quantize` runs `load`, `make_plan`, `collect_statistics`, `calibrate` and `insert_qdq` in a row; `evaluate`
measures errors, `check` predicts the target's treatment of each node, `handoff` packs files for the machine
with the GPU. Every error is an `OnnxfqError` of one line.

The names here are the public API; everything else may change.
"""

from __future__ import annotations

import lazy_loader

from onnxfq import errors as errors
from onnxfq.version import VERSION

__version__ = VERSION

# The stub next to this file lists the names; each is imported at its first use, including torch.
__getattr__, _, _names = lazy_loader.attach_stub(__name__, __file__)
__all__ = sorted([*_names, "__version__"])


def __dir__() -> list[str]:
    """Return the public names."""
    return __all__
