"""The built-in recipe of OpenVINO."""

from __future__ import annotations

from onnxfq.targets.recipes import make_recipe

# Unsigned with a zero point: no step is lost on the negative side of a Relu. The policy makes those tensors
# signed that OpenVINO multiplies without zero points only, and scales the channels of depthwise convolutions.
# `depthwise` equalizes those that take one scale, and lets repair equalize channels in the weights.
RECIPES = (
    make_recipe("openvino-int8", "openvino", {"qtype": "uint8", "symmetric": False, "equalize": "depthwise"}),
)
