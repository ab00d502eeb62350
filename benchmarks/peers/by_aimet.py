"""AIMET, run by the python of its own environment; see `worker.py`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
from aimet_onnx import QuantizationSimModel, apply_adaround, apply_seq_mse
from aimet_onnx.common.quantsim_config import quantsim_config
from aimet_onnx.cross_layer_equalization import equalize_model
from aimet_onnx.quant_analyzer import QuantAnalyzer
from worker import read_feeds, sqnr_db, top1, work


def symmetric_config(folder: Path) -> str:
    """Write AIMET's default configuration with symmetric activations, and return its path."""
    found = Path(quantsim_config.__file__).with_name("default_config_per_channel.json")
    config = json.loads(found.read_text())
    config["defaults"]["ops"]["is_symmetric"] = "True"
    made = folder / "aimet_config.json"
    made.write_text(json.dumps(config))
    return str(made)


def quantize(
    folder: Path,
    out: str = "aimet.onnx",
    weights: str = "int8",
    symmetric: bool = False,
    equalize: bool = False,
    adaround: int = 0,
    seq_mse: int = 0,
) -> dict[str, Any]:
    """Write a Q/DQ model; `adaround` are iterations for each layer, `seq_mse` candidates."""
    model, feeds = onnx.load(folder / "model.onnx"), read_feeds(folder)
    if equalize:
        equalize_model(model)
    config = symmetric_config(folder) if symmetric else "default"
    sim = QuantizationSimModel(model, param_type=weights, activation_type="int8", config_file=config)
    if seq_mse:
        apply_seq_mse(sim, feeds, num_candidates=seq_mse)
    if adaround:
        apply_adaround(sim, feeds, num_iterations=adaround)
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
    work({"quantize": quantize, "analyze": analyze})
