"""ONNX Runtime's own quantizer, to convert its models and to compare it with ours where it fails."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import onnx
import onnxruntime
from builders import Arrays
from onnxruntime.quantization import CalibrationDataReader, QuantType, quantize_static

MEASURED = onnxruntime.__version__ == "1.31.1"
"""Whether this is the release whose failures were measured: of another one they are not asserted."""


class Reader(CalibrationDataReader):
    """Gives feeds to the quantizer."""

    def __init__(self, feeds: Iterable[Arrays]) -> None:
        self._feeds = iter(feeds)

    def get_next(self) -> Arrays | None:
        """Return the next feed, None at the end."""
        return next(self._feeds, None)


def by_ort(proto: onnx.ModelProto, feeds: Iterable[Arrays], folder: Path, **options: Any) -> onnx.ModelProto:
    """Return what quantize_static makes of `proto`: int8, unless the options say otherwise."""
    onnx.save(proto, folder / "float.onnx")
    chosen = {"activation_type": QuantType.QInt8, "weight_type": QuantType.QInt8} | options
    quantize_static(folder / "float.onnx", folder / "static.onnx", Reader(feeds), **chosen)
    return onnx.load(folder / "static.onnx")


def loads(proto: onnx.ModelProto) -> bool:
    """Tell whether ONNX Runtime loads `proto` as any caller would."""
    try:
        onnxruntime.InferenceSession(proto.SerializeToString(), providers=["CPUExecutionProvider"])
    except Exception:  # one class for each status code
        return False
    return True
