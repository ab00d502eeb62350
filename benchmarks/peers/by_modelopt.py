"""ModelOpt, run by the python of its own environment; see `worker.py`."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

from modelopt.onnx.quantization import quantize as modelopt_quantize
from onnxruntime.quantization import CalibrationDataReader
from worker import Feed, read_feeds, work


class Reader(CalibrationDataReader):
    """The feeds of a job, as ModelOpt reads them."""

    def __init__(self, folder: Path) -> None:
        """Read the feeds of the job in `folder`."""
        self.feeds = read_feeds(folder)
        self.rewind()

    def get_next(self) -> Feed | None:
        """Return the next feed, None behind the last."""
        return next(self.left, None)

    def get_first(self) -> Feed:
        """Return the first feed."""
        return self.feeds[0]

    def rewind(self) -> None:
        """Start again at the first feed."""
        self.left = iter(self.feeds)


def quantize(
    folder: Path,
    mode: str = "int8",
    method: str | None = None,
    block: int | None = None,
    out: str = "modelopt.onnx",
) -> dict[str, Any]:
    """Write a Q/DQ model: weights and activations in int8, or weights in int4 with blocks of `block`.

    Without a `method` ModelOpt takes its own: entropy for int8, awq_clip for int4.
    """
    # ModelOpt writes to its input file.
    copy = Path(shutil.copy(folder / "model.onnx", folder / "modelopt_input.onnx"))
    modelopt_quantize(
        str(copy),
        quantize_mode=mode,
        calibration_method=method,
        calibration_data_reader=Reader(folder),
        calibration_eps=["cpu"],
        block_size=block,
        high_precision_dtype="fp32",
        output_path=str(folder / out),
        awqlite_fuse_nodes=False,  # to fuse, ModelOpt calls `get` of an array, which only cupy's have
    )
    return {"model": out}


if __name__ == "__main__":
    work({"quantize": quantize})
