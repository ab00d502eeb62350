"""Words of other quantizers, and what stands for them here."""

from __future__ import annotations

_OVERRIDE = "recipe=onnxfq.load_recipe(NAME).override({})"

FUNCTIONS = {
    "quantize_static": "onnxfq.quantize",
    "quantize_dynamic": "onnxfq.quantize(..., recipe='onnxruntime-uint8-dynamic')",
    "quant_pre_process": "onnxfq.quantize, which needs no preparation",
    "quantize_with_accuracy_control": "onnxfq.quantize(..., accuracy=onnxfq.AccuracyTarget(max_drop=...))",
    "QuantizationSimModel": "onnxfq.torch.quantize_module",
    "TensorQuantizer": "onnxfq.torch.FakeQuantize",
    "auto_quantize": "onnxfq.sensitivity",
}
"""Functions and classes."""

KEYWORDS = {
    "activation_type": _OVERRIDE.format("activations={'qtype': ...}"),
    "weight_type": _OVERRIDE.format("weights={'qtype': ...}"),
    "per_channel": _OVERRIDE.format("weights={'granularity': ...}") + "; one scale a channel is the default",
    "calibrate_method": _OVERRIDE.format("activations={'calibrator': ...}"),
    "calibration_method": _OVERRIDE.format("activations={'calibrator': ...}"),
    "nodes_to_exclude": _OVERRIDE.format("overrides=[{'nodes': [...], 'keep_float': True}]"),
    "op_types_to_exclude": _OVERRIDE.format("overrides=[{'op_types': [...], 'keep_float': True}]"),
    "calibration_data": "data=...",
    "calibration_data_reader": "data=...",
    "output_path": "output=...",
    "model_output": "output=...",
    "subset_size": "options=onnxfq.QuantizeOptions(data=onnxfq.DataOptions(limit=...))",
}
"""Keywords of their functions."""
