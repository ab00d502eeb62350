"""onnxconverter-common's float16, run by the python of an environment that has it; see `worker.py`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import onnx
from onnxconverter_common import float16
from worker import work


def cast(folder: Path, out: str = "converter.onnx") -> dict[str, Any]:
    """Write a float16 model with its inputs and outputs in float32, by the package's own defaults."""
    model = onnx.load(folder / "model.onnx")
    onnx.save(float16.convert_float_to_float16(model, keep_io_types=True), folder / out)
    return {"model": out}


if __name__ == "__main__":
    work({"cast": cast})
