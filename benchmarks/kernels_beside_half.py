"""Kernels and megabytes of engines in float8 and NVFP4, next to the same networks in half.

    python benchmarks/kernels_beside_half.py [--only TEXT] [--out benchmarks/results/kernels_beside_half.md]

The networks of tests/networks are built by TensorRT for RTX, without a GPU, with scales that are made up.
Bytes are the results that kernels write and the weights that they read, per sample. The last columns have the
share of the multiply-adds in low precision, and what each kernel more than in half saves by the prices of
`placement/prices.py`, in bytes, with multiply-adds as bytes. No time is measured. With `--out` the counts of
the recipes as they are also go to tests/networks/kernels_beside_half.json: a test lets no plan have more.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import warnings
from pathlib import Path
from typing import NamedTuple

from timing import markdown_table, write_section

from onnxfq.documents.recipe import Recipe
from onnxfq.errors import ModelError
from onnxfq.placement.costly_parts import MOST
from onnxfq.placement.prices import MULTIPLIES
from onnxfq.targets.engine_figures import EngineFigures
from onnxfq.targets.recipes import load_recipe

TESTS = Path(__file__).resolve().parents[1] / "tests"
sys.path[:0] = [str(TESTS), str(TESTS / "networks"), str(TESTS / "torch")]

import plan_networks  # noqa: E402  (just added)
from engines import build_beside_half, count_low, plan_model, unmeasured  # noqa: E402

RECIPES = ("tensorrt-fp8", "tensorrt-nvfp4")
FREE = "bytes"
"""The value of `small_shapes` that lets kernels be added where bytes pay for them."""


class Found(NamedTuple):
    """Figures of a network.

    Attributes:
        ours: of the engine of its plan.
        half: of the engine in half.
        low: multiply-adds in low precision.
        total: all multiply-adds.
    """

    ours: EngineFigures
    half: EngineFigures
    low: int
    total: int


def measure(recipe: Recipe, only: str) -> tuple[dict[str, Found], list[str]]:
    """Return the figures by network, and the networks in which nothing pays.

    A network with nothing to quantize is in neither, nor is one whose plan is the same without FREE.
    """
    found, unpaid = {}, []
    for name, make in plan_networks.NETWORKS.items():
        with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings(action="ignore"):
            if only in name:
                proto = make(Path(folder))
                try:
                    plan = plan_model(proto, recipe)[1]
                except ModelError:
                    continue
                if not plan.placements:
                    unpaid.append(name)
                    continue
                if recipe.small_shapes == FREE and plan == plan_model(proto, load_recipe(recipe.name))[1]:
                    continue
                pair = build_beside_half(unmeasured(proto, recipe, "fp16"), Path(folder))
                found[name] = Found(*pair, *count_low(proto, recipe))
                print(recipe.name, name, *(one.kernels for one in found[name][:2]), flush=True)
    return found, unpaid


def make_table(recipe: Recipe, found: dict[str, Found], unpaid: list[str]) -> str:
    """Return the table of a recipe, and what its networks have in all."""
    above = sum(one.ours.kernels > MOST * one.half.kernels for one in found.values())
    text = f"{above} of {len(found)} networks have more than {MOST} times the kernels of half. "
    if recipe.small_shapes == FREE:
        text += f"Other plans are the same without `small_shapes: {FREE}`."
    elif unpaid:
        text += f"In {len(unpaid)} others nothing pays, and their files have no pair: {', '.join(unpaid)}."
    heads = [
        "network",
        "kernels",
        "half",
        "times",
        "MB",
        "half",
        "times",
        "only quantizing",
        "low",
        "MB saved",
    ]
    rows = [[name, *_list_figures([one]), _describe_saved(recipe, one)] for name, one in found.items()]
    if found:
        rows.append(["all", *_list_figures([*found.values()]), ""])
    return f"{text}\n\n{markdown_table(heads, rows)}"


def _list_figures(found: list[Found]) -> list[str]:
    sides = zip(*((_count(one.ours), _count(one.half)) for one in found), strict=True)
    ours, half = ([sum(column) for column in zip(*side, strict=True)] for side in sides)
    share = sum(one.low for one in found) / sum(one.total for one in found)
    kernels = [f"{ours[0]:,}", f"{half[0]:,}", f"{ours[0] / half[0]:.2f}"]
    return [
        *kernels,
        *(f"{n / 1e6:.2f}" for n in (ours[1], half[1])),
        f"{ours[1] / half[1]:.2f}",
        str(ours[2]),
    ] + [f"{share:.0%}"]


def _describe_saved(recipe: Recipe, one: Found) -> str:
    return f"{_save(recipe, one) / 1e6:.2f}" if one.ours.kernels > one.half.kernels else ""


def _save(recipe: Recipe, one: Found) -> float:
    """Return the bytes that each kernel more saves, with multiply-adds as bytes; 0 without one."""
    bits = recipe.weights.qtype.bits
    saved = _count(one.half)[1] - _count(one.ours)[1] + one.low * (1 - bits / 16) / MULTIPLIES
    return saved / max(one.ours.kernels - one.half.kernels, 1)


def _count(figures: EngineFigures) -> list[int]:
    return [figures.kernels, figures.written + figures.weights, figures.quantizing]


def main() -> None:
    """Build all networks, and write the tables and the counts."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", default="")
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    counts = {}
    for name in RECIPES:
        recipe = load_recipe(name)
        for title, chosen in ((name, recipe), (f"{name}, {FREE}", recipe.override(small_shapes=FREE))):
            found, unpaid = measure(chosen, given.only)
            counts.setdefault(name, {key: [one.ours.kernels, one.half.kernels] for key, one in found.items()})
            write_section(given.out, "Kernels next to half", title, make_table(chosen, found, unpaid))
    if given.out:
        text = (
            json.dumps(counts, indent=1).replace("[\n   ", "[").replace(",\n   ", ", ").replace("\n  ]", "]")
        )
        (TESTS / "networks" / "kernels_beside_half.json").write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
