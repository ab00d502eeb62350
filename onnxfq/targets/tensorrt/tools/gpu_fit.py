"""Recipes and models on named GPUs: what all of them have, and the nearest recipe that runs."""

from __future__ import annotations

from collections.abc import Sequence

import onnx
from onnx import TensorProto

from onnxfq.documents.recipe import Recipe
from onnxfq.errors import RecipeError
from onnxfq.graph.normalize.node_sites import NodeSite
from onnxfq.targets.findings import Finding
from onnxfq.targets.reading.context import make_finding, read
from onnxfq.targets.target import Hardware
from onnxfq.targets.tensorrt.gpus import NamedGpu, describe_gpus, find_cell, read_gpu
from onnxfq.targets.tensorrt.recipes import RECIPES
from onnxfq.targets.tensorrt.rules.structure import EXTRA

NEXT = {
    "tensorrt-nvfp4": "tensorrt-fp8",
    "tensorrt-mxfp8": "tensorrt-fp8",
    "tensorrt-fp8": "tensorrt-int8",
    "tensorrt-int4": "tensorrt-int8-weights",
}
"""Recipe -> the nearest one for GPUs that lack its format."""

_STORED = {
    TensorProto.INT8: "int8",
    TensorProto.INT4: "int4",
    TensorProto.FLOAT8E4M3FN: "float8e4m3fn",
    TensorProto.FLOAT4E2M1: "float4e2m1",
}
"""Element type of a quantizer -> the format in the table."""


def _read_gpus(names: Sequence[str]) -> list[NamedGpu]:
    return [read_gpu(name) for name in names]


def list_formats(recipe: Recipe) -> list[str]:
    """Return the formats of a recipe and of its overrides, as keys of the table."""
    schemes = [scheme.model_dump() for scheme in (recipe.activations, recipe.weights) if scheme is not None]
    schemes += [changes for one in recipe.overrides for changes in (one.activations, one.weights) if changes]
    keys = (_key_of(str(one.get("qtype", "")), str(one.get("scale_type", ""))) for one in schemes)
    return [key for key in dict.fromkeys(keys) if key]


def _key_of(qtype: str, scale_type: str) -> str:
    if scale_type == "e8m0" and qtype.startswith("float8"):
        return "MXFP8"
    return next((key for key in _STORED.values() if qtype.startswith(key)), "")


def judge_recipe(recipe: Recipe, names: Sequence[str]) -> bool | None:
    """Return whether all formats of a recipe run on all GPUs; None if that is unknown."""
    found = {find_cell(key, gpu).runs for key in list_formats(recipe) for gpu in _read_gpus(names)}
    return False if False in found else None if None in found else True


def refuse_recipe(recipe: Recipe, names: Sequence[str]) -> None:
    """Raise RecipeError, with the nearest recipe that runs, if a format of `recipe` does not run on a GPU."""
    for key in list_formats(recipe):
        for gpu in _read_gpus(names):
            cell = find_cell(key, gpu)
            if cell.runs is False:
                remedy = _find_next(recipe.name, names)
                raise RecipeError(
                    f"recipe {recipe.name}: {gpu} has no products of {key} ({cell.source}); {remedy}"
                )


def _find_next(name: str, names: Sequence[str]) -> str:
    known = {recipe.name: recipe for recipe in RECIPES}
    other = NEXT.get(name, "tensorrt-int8")
    while other in NEXT and judge_recipe(known[other], names) is not True:
        other = NEXT[other]
    runs = judge_recipe(known[other], names)
    return f"the nearest recipe that runs there is {other}" if runs else "cast it with `onnxfq cast` instead"


def check_gpus(proto: onnx.ModelProto, names: Sequence[str]) -> list[Finding]:
    """Return a finding for each format of a model that a GPU lacks."""
    first: dict[str, NodeSite] = {}
    for quantizer in read(proto, EXTRA).quantizers:
        key = "MXFP8" if "MXFP8" in quantizer.site.op else _STORED.get(quantizer.qtype, "")
        first.setdefault(key, quantizer.site)
    first.pop("", None)
    lacking = [
        (site, f"{gpu} has no products of {key} ({cell.source}); quantize with another recipe")
        for key, site in first.items()
        for gpu in _read_gpus(names)
        if (cell := find_cell(key, gpu)).runs is False
    ]
    return [make_finding("gpu", "refused", site, message) for site, message in lacking]


HARDWARE = Hardware(
    describe=lambda names: describe_gpus(_read_gpus(names)),
    judge=judge_recipe,
    refuse=refuse_recipe,
    check=check_gpus,
)
