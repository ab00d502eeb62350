"""ModelOpt's AutoCast, run by the python of its own environment; see `worker.py`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
from modelopt.onnx.autocast import convert_to_mixed_precision
from worker import read_feeds, work


def cast(folder: Path, data: bool = True, out: str = "autocast.onnx") -> dict[str, Any]:
    """Write a float16 model with its inputs and outputs in float32; `data` observes the first feed.

    AutoCast takes one feed in a file of arrays.
    """
    given = None
    if data:
        given = str(folder / "first.npz")
        np.savez(given, **read_feeds(folder)[0])
    made = convert_to_mixed_precision(
        str(folder / "model.onnx"), low_precision_type="fp16", keep_io_types=True, calibration_data=given
    )
    onnx.save(made, folder / out)
    return {"model": out}


if __name__ == "__main__":
    work({"cast": cast})
