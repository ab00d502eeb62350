"""AIMET, run by the python of its own environment; see `worker.py`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
from aimet_onnx import QuantizationSimModel, apply_adaround
from aimet_onnx.cross_layer_equalization import equalize_model
from aimet_onnx.quant_analyzer import QuantAnalyzer
from worker import read_feeds, sqnr_db, top1, work


def quantize(folder: Path, out: str = "aimet.onnx") -> dict[str, Any]:
    """Write a Q/DQ model."""
    model, feeds = onnx.load(folder / "model.onnx"), read_feeds(folder)
    sim = QuantizationSimModel(model, param_type="int8", activation_type="int8")
    sim.compute_encodings(feeds)
    onnx.save(sim.to_onnx_qdq(prequantize_constants=True), folder / out)
    return {"model": out}


def repair(folder: Path, equalize: bool, iterations: int, out: str = "aimet.onnx") -> dict[str, Any]:
    """Write a Q/DQ model, with channels equalized between layers or weights rounded by AdaRound."""
    model, feeds = onnx.load(folder / "model.onnx"), read_feeds(folder)
    if equalize:
        equalize_model(model)
    sim = QuantizationSimModel(model, param_type="int8", activation_type="int8")
    if iterations:
        apply_adaround(sim, feeds, num_iterations=iterations)
    sim.compute_encodings(feeds)
    onnx.save(sim.to_onnx_qdq(prequantize_constants=True), folder / out)
    return {"model": out}


def analyze(folder: Path, metric: str = "sqnr", alone: bool = True, samples: int = 2) -> dict[str, Any]:
    """Rank the layers by QuantAnalyzer: each quantized alone, or each left out."""
    model, feeds = onnx.load(folder / "model.onnx"), read_feeds(folder)
    reference = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    some = feeds[:samples]
    wanted = [reference.run(None, feed)[0] for feed in some]

    def evaluate(session: Any) -> float:
        if metric == "top1":
            return top1(session, some, np.load(folder / "labels.npy"))
        return sqnr_db(wanted, [session.run(None, feed)[0] for feed in some])

    sim = QuantizationSimModel(model, param_type="int8", activation_type="int8")
    sim.compute_encodings(feeds)
    analyzer = QuantAnalyzer(model, feeds[0], lambda session: None, evaluate)
    if alone:
        found = analyzer.perform_per_layer_analysis_by_enabling_quantizers(sim)
    else:
        found = analyzer.perform_per_layer_analysis_by_disabling_quantizers(sim)
    ranked = sorted(found, key=lambda name: found[name] if alone else -found[name])
    return {"ranking": [[name] for name in ranked], "values": [float(found[name]) for name in ranked]}


if __name__ == "__main__":
    work({"quantize": quantize, "repair": repair, "analyze": analyze})
