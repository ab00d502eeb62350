"""onnxsim's quantizer, run by the python of its own environment; see `worker.py`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import onnx
import onnxsim
from worker import read_feeds, work


def quantize(folder: Path, auto: bool = False, out: str = "onnxsim.onnx", **more: Any) -> dict[str, Any]:
    """Write a Q/DQ model by `quantize_static`, or by `quantize_auto`, which chooses the format itself."""
    way = onnxsim.quantize_auto if auto else onnxsim.quantize_static
    onnx.save(
        way(onnx.load(folder / "model.onnx"), calibration_data=read_feeds(folder), **more), folder / out
    )
    return {"model": out}


if __name__ == "__main__":
    work({"quantize": quantize})
