"""The built-in recipes of ONNX Runtime."""

from __future__ import annotations

from onnxfq.targets.recipes import make_recipe

# The CPU kernels are fastest with uint8 activations and int8 weights, and take a zero point. No Mul may stand
# between an operator and its pair, so that `depthwise` only lets repair equalize channels in the weights.
RECIPES = (
    make_recipe(
        "onnxruntime-int8", "onnxruntime", {"qtype": "uint8", "symmetric": False, "equalize": "depthwise"}
    ),
    make_recipe(
        "onnxruntime-uint8-dynamic", "onnxruntime", {"qtype": "uint8", "symmetric": False, "dynamic": True}
    ),
)
