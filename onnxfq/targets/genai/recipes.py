"""The built-in recipes of ONNX Runtime GenAI."""

from __future__ import annotations

from onnxfq.targets.genai.policy import ROUNDED_INPUT
from onnxfq.targets.recipes import make_recipe

# Blocks of 32 are the default of GenAI's own builder. Scales of least squared error lost least on the
# language models of docs/llm.md.
_BLOCKS = {"granularity": "blocked", "block_size": 32, "calibrator": "mse"}

# As in GenAI's own files for CPUs: their kernels of int8 products are faster, and cost hardly any accuracy.
_ROUNDED = {"qtype": ROUNDED_INPUT, "dynamic": True, "granularity": "blocked", "block_size": 32}

RECIPES = (
    make_recipe("genai-int4", "genai", _ROUNDED, {"qtype": "int4", **_BLOCKS}),
    make_recipe("genai-uint4", "genai", _ROUNDED, {"qtype": "uint4", "symmetric": False, **_BLOCKS}),
    make_recipe("genai-int8", "genai", _ROUNDED, {"qtype": "int8", **_BLOCKS}),
)
