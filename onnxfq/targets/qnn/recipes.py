"""The built-in recipes of QNN."""

from __future__ import annotations

from onnxfq.targets.recipes import make_recipe

RECIPES = (
    make_recipe("qnn-int8", "qnn", {"qtype": "uint8", "symmetric": False}),
    make_recipe("qnn-a16w8", "qnn", {"qtype": "uint16", "symmetric": False}),
)
