"""The built-in recipes of QNN."""

from __future__ import annotations

from onnxfq.targets.recipes import make_recipe

RECIPES = (
    # On the HTP's emulation a finer grid behind a Softmax loses .3 dB, though a simulation gains by it.
    make_recipe("qnn-int8", "qnn", {"qtype": "uint8", "symmetric": False, "known_ranges": ("Softmax",)}),
    make_recipe("qnn-a16w8", "qnn", {"qtype": "uint16", "symmetric": False}),
)
