"""The recipe that makes a repaired file from its float model."""

from __future__ import annotations

from typing import Any

import yaml

from onnxfq.diagnosis.reading.candidate import FileCandidate
from onnxfq.errors import ModelError
from onnxfq.graph.ops import WEIGHTED_INPUTS


def recipe_text(candidate: FileCandidate) -> str:
    """Return a recipe in YAML: the form of the file, and its layers in float.

    Ranges, scales of weights and biases come from the data and the float model, and are right then.
    Raises ModelError without the float model, whose layers it names.
    """
    if candidate.floats is None:
        raise ModelError(
            f"a recipe for {candidate.source} names layers of the float model; give it with --float"
        )
    symmetric = all(quantizer.is_centered for quantizer in candidate.form.activations)
    stored = {one.constant for one in candidate.form.constants}
    layers = candidate.floats.layers
    weighted = [node for node in candidate.form_index.nodes if node.op_type in WEIGHTED_INPUTS]
    unquantized = [node.name for node in weighted if not stored & {*node.input}]
    floats = [layers[name].node for name in unquantized if name in layers]
    recipe: dict[str, Any] = {"base": "tensorrt-int8" if symmetric else "onnxruntime-int8"}
    if floats:
        recipe["overrides"] = [{"nodes": floats, "keep_float": True}]
    return yaml.safe_dump(recipe, sort_keys=False)
