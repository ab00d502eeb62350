"""The built-in recipes of ONNX Runtime."""

from __future__ import annotations

from onnxfq.targets.recipes import make_recipe

# The CPU kernels are fastest with uint8 activations and int8 weights, and take a zero point.
RECIPES = (
    make_recipe(
        "onnxruntime-int8",
        "onnxruntime",
        {"qtype": "uint8", "symmetric": False, "calibrator": "mse", "equalize": "depthwise"},
    ),
    make_recipe(
        "onnxruntime-uint8-dynamic", "onnxruntime", {"qtype": "uint8", "symmetric": False, "dynamic": True}
    ),
)
