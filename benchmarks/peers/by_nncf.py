"""NNCF, run by the python of its own environment; see `worker.py`."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import nncf
import numpy as np
import onnx
import onnxruntime
from worker import Feed, read_feeds, top1, work


def quantize(
    folder: Path,
    out: str = "nncf.onnx",
    transformer: bool = False,
    smooth: float | None = None,
    bias_correction: str = "fast",
) -> dict[str, Any]:
    """Write a Q/DQ model.

    `smooth` is SmoothQuant's alpha for MatMul, -1 for none, None for NNCF's own. `bias_correction` is none,
    fast or full.
    """
    model, feeds = onnx.load(folder / "model.onnx"), read_feeds(folder)
    advanced = nncf.AdvancedQuantizationParameters(disable_bias_correction=bias_correction == "none")
    if smooth is not None:
        advanced.smooth_quant_alphas = nncf.AdvancedSmoothQuantParameters(matmul=smooth, convolution=-1)
    made = nncf.quantize(
        model,
        nncf.Dataset(feeds),
        subset_size=len(feeds),
        preset=nncf.QuantizationPreset.PERFORMANCE,
        model_type=nncf.ModelType.TRANSFORMER if transformer else None,
        fast_bias_correction=bias_correction != "full",
        advanced_parameters=advanced,
    )
    onnx.save(made, folder / out)
    return {"model": out}


def control(folder: Path, max_drop: float, out: str = "nncf.onnx") -> dict[str, Any]:
    """Write a Q/DQ model that loses at most `max_drop` of top-1 on the job's data."""
    model, feeds, labels = (
        onnx.load(folder / "model.onnx"),
        read_feeds(folder),
        np.load(folder / "labels.npy"),
    )

    def validate(model: onnx.ModelProto, data: Iterable[Feed]) -> tuple[float, None]:
        session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
        return top1(session, list(data), labels), None

    made = nncf.quantize_with_accuracy_control(
        model,
        calibration_dataset=nncf.Dataset(feeds),
        validation_dataset=nncf.Dataset(feeds),
        validation_fn=validate,
        max_drop=max_drop,
        subset_size=len(feeds),
    )
    onnx.save(made, folder / out)
    return {"model": out}


if __name__ == "__main__":
    work({"quantize": quantize, "control": control})
