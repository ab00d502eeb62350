"""The built-in recipes of ONNX Runtime GenAI."""

from __future__ import annotations

from onnxfq.targets.recipes import make_recipe

# Blocks of 32 are the default of GenAI's own builder. Scales of least squared error lost least on the
# language models of docs/llm.md.
_BLOCKS = {"granularity": "blocked", "block_size": 32, "calibrator": "mse"}

RECIPES = (
    make_recipe("genai-int4", "genai", None, {"qtype": "int4", **_BLOCKS}),
    make_recipe("genai-int8", "genai", None, {"qtype": "int8", **_BLOCKS}),
)
