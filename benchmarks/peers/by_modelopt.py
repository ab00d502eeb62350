"""ModelOpt, run by the python of its own environment; see `worker.py`."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import modelopt.onnx.quantization.int4 as int4
import numpy as np
import onnx
from modelopt.onnx.quantization import quantize as modelopt_quantize
from worker import read_feeds, work


def weights(folder: Path, method: str, block: int, out: str = "modelopt.onnx") -> dict[str, Any]:
    """Write a model with weights in int4: `rtn_dq`, `awq_lite` or `awq_clip`, with blocks of `block`."""
    made = int4.quantize(
        str(folder / "model.onnx"),
        calibration_method=method,
        calibration_data_reader=iter_reader(folder),
        block_size=block,
        calibration_eps=["cpu"],
        use_external_data_format=False,
        nodes_to_exclude=[],
    )
    onnx.save(made, folder / out)
    return {"model": out}


def int8(folder: Path, method: str = "max", out: str = "modelopt.onnx") -> dict[str, Any]:
    """Write a Q/DQ model with weights and activations in int8."""
    # ModelOpt writes to its input file.
    copy = Path(shutil.copy(folder / "model.onnx", folder / "modelopt_input.onnx"))
    feeds = read_feeds(folder)
    stacked = {name: np.concatenate([feed[name] for feed in feeds]) for name in feeds[0]}
    modelopt_quantize(
        str(copy),
        quantize_mode="int8",
        calibration_data=stacked,
        calibration_method=method,
        calibration_eps=["cpu"],
        high_precision_dtype="fp32",
        output_path=str(folder / out),
    )
    return {"model": out}


def iter_reader(folder: Path) -> Any:
    """Return the feeds as onnxruntime's reader."""
    from onnxruntime.quantization import CalibrationDataReader

    class Reader(CalibrationDataReader):
        def __init__(self) -> None:
            self.rewind()

        def get_next(self) -> Any:
            return next(self.feeds, None)

        def rewind(self) -> None:
            self.feeds = iter(read_feeds(folder))

    return Reader()


if __name__ == "__main__":
    work({"weights": weights, "int8": int8})
