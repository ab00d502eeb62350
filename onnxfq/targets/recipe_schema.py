"""The JSON schema of recipe files, for editors that complete and check them."""

from __future__ import annotations

import inspect
import re
from typing import Any

from onnxfq.calibration.calibrators import spellings
from onnxfq.documents.override import Override
from onnxfq.documents.recipe import Recipe
from onnxfq.documents.rounding import Simulation
from onnxfq.documents.schemes import ActivationScheme, CacheScheme, WeightScheme
from onnxfq.numerics.qtypes import QTYPES
from onnxfq.targets.recipes import RECIPES

_OTHERS = {
    "name": "name of the recipe, which reports and written models repeat; default: the name of the file",
    "base": "built-in recipe to start from, for an override its schemes; the file lists only what differs",
    "weights": "scheme of constants",
    "overrides": "changes for some tensors or nodes; later ones win",
    "block_size": "number of elements that share a scale, for granularity blocked; default: 32 with "
    "scale_type e8m0, 16 with e4m3",
    "calibrator": "method that finds the range: " + ", ".join(spellings()),
    "tensors": "names or globs of tensors",
    "nodes": "names or globs of nodes",
    "op_types": "operators, as Conv",
}
"""Fields that no docstring describes."""


_PARTS = (ActivationScheme, CacheScheme, WeightScheme, Override, Simulation)


def recipe_schema() -> dict[str, Any]:
    """Return the JSON schema (draft 2020-12) of a recipe file, with a description for every field.

    A file has the fields of `Recipe` and `base`, all optional: what it leaves out is the base's. The schema
    has the types and the names; rules between fields are checked when the file is read.
    """
    schema = Recipe.model_json_schema()
    schema["$schema"] = "https://json-schema.org/draft/2020-12/schema"
    schema["properties"]["base"] = {"enum": list(RECIPES), "default": "tensorrt-int8"}
    schemes = schema["$defs"]
    schemes["Override"]["properties"]["base"] = {"enum": list(RECIPES)}
    for name, scheme in (("activations", "ActivationScheme"), ("weights", "WeightScheme")):
        schemes["Override"]["properties"][name] = {"anyOf": [{"$ref": f"#/$defs/{scheme}"}, {"type": "null"}]}
    for part, kind in ((schema, Recipe), *((schemes[one.__name__], one) for one in _PARTS)):
        texts = _OTHERS | _describe(kind)
        part["description"] = (inspect.getdoc(kind) or "").partition("\n")[0]
        part.pop("required", None)
        for name, field in part["properties"].items():
            field.pop("title", None)
            if part is not schema:
                field.pop("default", None)  # it is the base's
            field["description"] = texts[name]
            if name == "qtype":
                field["anyOf"] = [{"enum": list(QTYPES)}, {"pattern": r"^u?int\d+\[.*\]$"}]
    return schema


def _describe(kind: type) -> dict[str, str]:
    """Return the text of each field in the docstrings of `kind` and of the classes that it extends."""
    found: dict[str, str] = {}
    for one in reversed(kind.__mro__):
        lines = inspect.cleandoc(one.__doc__ or "").partition("Attributes:\n")[2]
        for name, text in re.findall(r"^    (\w+): (.*(?:\n     .*)*)", lines, re.MULTILINE):
            found[name] = " ".join(text.split())
    return found
