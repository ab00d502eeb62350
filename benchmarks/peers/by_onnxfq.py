"""onnxfq itself, run like the other tools; see `worker.py`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
from worker import read_feeds, work

import onnxfq

ONE_THREAD = onnxfq.RunOptions(batch=0, threads=1)


def quantize(
    folder: Path,
    recipe: dict[str, Any] | None = None,
    rounding: str = "auto",
    out: str = "onnxfq.onnx",
) -> dict[str, Any]:
    """Write the Q/DQ model of a recipe, without remedies."""
    file = folder / "recipe.json"
    file.write_text(json.dumps({"base": "tensorrt-int8"} | (recipe or {})))
    onnxfq.quantize(
        folder / "model.onnx",
        read_feeds(folder),
        folder / out,
        recipe=onnxfq.load_recipe(file).override(weights={"rounding": rounding}),
        accuracy=onnxfq.AccuracyTarget(repair=None),
        options=ONE_THREAD,
    )
    return {"model": out}


def repair(
    folder: Path,
    way: str | None = "auto",
    recipe: str = "tensorrt-int8",
    out: str = "onnxfq.onnx",
) -> dict[str, Any]:
    """Write the Q/DQ model of a recipe, with the remedies that `way` tries."""
    onnxfq.quantize(
        folder / "model.onnx",
        read_feeds(folder),
        folder / out,
        recipe=recipe,
        accuracy=onnxfq.AccuracyTarget(repair=way),
        options=ONE_THREAD,
    )
    return {"model": out}


def analyze(folder: Path, metric: str = "sqnr", samples: int = 2) -> dict[str, Any]:
    """Rank the groups of quantizers, by noise or by top-1."""
    labels = np.load(folder / "labels.npy") if metric == "top1" else None
    found = onnxfq.sensitivity(
        folder / "model.onnx", read_feeds(folder), samples=samples, labels=labels, options=ONE_THREAD
    )
    return {
        "ranking": [list(group.nodes) for group in found.groups],
        "values": [g.alone_db for g in found.groups],
    }


def control(folder: Path, max_drop: float, out: str = "onnxfq.onnx") -> dict[str, Any]:
    """Write a Q/DQ model that loses at most `max_drop` of top-1 on half of the job's data."""
    promise = onnxfq.AccuracyTarget(max_drop=100 * max_drop, labels=np.load(folder / "labels.npy"))
    onnxfq.quantize(
        folder / "model.onnx", read_feeds(folder), folder / out, accuracy=promise, options=ONE_THREAD
    )
    return {"model": out}


if __name__ == "__main__":
    work({"quantize": quantize, "repair": repair, "analyze": analyze, "control": control})
