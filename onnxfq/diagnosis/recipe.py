"""The recipe that makes a repaired file from its float model."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import yaml

from onnxfq.diagnosis.causes.coarse_weights import COARSE
from onnxfq.diagnosis.reading.candidate import FileCandidate
from onnxfq.diagnosis.reading.cause import Suspicion
from onnxfq.errors import ModelError
from onnxfq.graph.node_fields import attributes_of, input_name
from onnxfq.graph.normalize.experts import find_unit
from onnxfq.graph.ops import WEIGHTED_INPUTS


def recipe_text(candidate: FileCandidate, causes: Sequence[Suspicion]) -> str:
    """Return a recipe in YAML: the form of the file, its layers in float, and the ones that need 8 bits.

    Ranges, scales of weights and biases come from the data and the float model, and are right then.
    Raises ModelError without the float model, whose layers it names.
    """
    if candidate.floats is None:
        raise ModelError(
            f"a recipe for {candidate.source} names layers of the float model; give it with --float"
        )
    stored = {one.constant for one in candidate.form.constants}
    layers = {name: layer.node for name, layer in candidate.floats.layers.items()}
    weighted = [node for node in candidate.form_index.nodes if node.op_type in WEIGHTED_INPUTS]
    floats = [layers[n.name] for n in weighted if not stored & {*n.input} and n.name in layers]
    coarse = {one.node for one in causes if one.kind == COARSE}
    wide = [layers[n.name] for n in weighted if find_unit(n.name) in coarse and n.name in layers]
    overrides: list[dict[str, Any]] = [{"nodes": floats, "keep_float": True}] if floats else []
    overrides += [{"nodes": wide, "weights": {"qtype": "int8"}}] if wide else []
    recipe = {"base": _find_base(candidate)} | ({"overrides": overrides} if overrides else {})
    return yaml.safe_dump(recipe, sort_keys=False)


def _find_base(candidate: FileCandidate) -> str:
    """Return the recipe whose form the file has."""
    block = next((node for node in candidate.index.nodes if node.op_type == "MatMulNBits"), None)
    if block is not None:
        few = "genai-uint4" if input_name(block, 3) else "genai-int4"
        return few if attributes_of(block).get("bits", 4) <= 4 else "genai-int8"
    symmetric = all(quantizer.is_centered for quantizer in candidate.form.activations)
    return "tensorrt-int8" if symmetric else "onnxruntime-int8"
