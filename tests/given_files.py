"""Files of other tools for the tests, and what onnxfq makes of them."""

from __future__ import annotations

import functools
import json
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from builders import build
from numpy.typing import NDArray

from onnxfq.documents.encodings import Encoding
from onnxfq.documents.plan import Plan
from onnxfq.documents.recipe import Recipe
from onnxfq.graph.io.load import load
from onnxfq.interchange import ExternalEncodingsFile
from onnxfq.interchange.apply import MatchedEncodings
from onnxfq.stages.planned_encodings import plan_encodings
from onnxfq.targets.recipes import load_recipe

VECTORS = Path(__file__).parent / "interchange" / "aimet_vectors.json"


@functools.cache
def vectors() -> dict[str, Any]:
    """Return what AIMET made; the file tells how."""
    content: dict[str, Any] = json.loads(VECTORS.read_text(encoding="utf-8"))
    return content


def constants() -> dict[str, NDArray[np.float32]]:
    """Return the constants of the small model."""
    return {name: np.asarray(values, np.float32) for name, values in vectors()["constants"].items()}


def small() -> onnx.ModelProto:
    """Return the model that AIMET quantized."""
    _, _, graph = vectors()["model"].partition(">\n")
    return build(graph, constants())


def fitted(
    proto: onnx.ModelProto, given: ExternalEncodingsFile, recipe: str | Recipe = "tensorrt-int8"
) -> tuple[Plan, MatchedEncodings]:
    """Return the plan of `proto` with a file, and what the file has for it."""
    planned = plan_encodings(load(proto), load_recipe(recipe), given)
    assert planned.matched is not None
    return planned.plan, planned.matched


def by_tensor(found: MatchedEncodings) -> dict[str, Encoding]:
    """Return the encodings by tensor."""
    return {encoding.tensor: encoding for encoding in found.encodings}


def file(folder: Path, content: Any, name: str = "given") -> Path:
    """Write text or a JSON document; the name says nothing of the format."""
    path = folder / name
    path.write_text(content if isinstance(content, str) else json.dumps(content, indent=4), encoding="utf-8")
    return path
