"""ONNX Runtime's static quantizer, run by the python of its own environment; see `worker.py`."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from onnxruntime.quantization import CalibrationDataReader, CalibrationMethod, quantize_static
from onnxruntime.quantization.shape_inference import quant_pre_process
from worker import Feed, read_feeds, work


class Reader(CalibrationDataReader):
    """The feeds of a job."""

    def __init__(self, folder: Path) -> None:
        """Read the feeds of the job in `folder`."""
        self.left: Iterator[Feed] = iter(read_feeds(folder))

    def get_next(self) -> Feed | None:
        """Return the next feed, None behind the last."""
        return next(self.left, None)


def quantize(
    folder: Path,
    method: str | None = None,
    prepared: bool = False,
    out: str = "onnxruntime.onnx",
    **more: Any,
) -> dict[str, Any]:
    """Write a Q/DQ model by the defaults, or by a `method` of calibration, `prepared` by its own tool."""
    source = folder / "model.onnx"
    if prepared:
        quant_pre_process(source, folder / "prepared.onnx", skip_symbolic_shape=True)
        source = folder / "prepared.onnx"
    if method:
        more["calibrate_method"] = CalibrationMethod[method]
    quantize_static(source, folder / out, Reader(folder), **more)
    return {"model": out}


if __name__ == "__main__":
    work({"quantize": quantize})
