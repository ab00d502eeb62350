"""Kernels and megabytes of engines in float8 and NVFP4, next to the same networks in half.

    python benchmarks/kernels_beside_half.py [--only TEXT] [--out benchmarks/results/kernels_beside_half.md]

The networks of tests/networks are built by TensorRT for RTX, without a GPU, with scales that are made up.
Bytes are the results that kernels write and the weights that they read, per sample. The last columns have the
share of the multiply-adds in low precision, what each kernel more than in half saves by the prices of
`placement/prices.py`, in bytes, with multiply-adds as bytes, and what pays for the kernels above 1.05 times
half's. No time is measured. With `--out` the counts and these words also go to
tests/networks/kernels_beside_half.json: a test lets no plan have more than its count there, or than 1.05
times half's, and names each network whose kernels nothing pays for.
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

from onnxfq.errors import ModelError
from onnxfq.placement.prices import MULTIPLIES
from onnxfq.targets.engine_figures import EngineFigures
from onnxfq.targets.recipes import load_recipe

TESTS = Path(__file__).resolve().parents[1] / "tests"
sys.path[:0] = [str(TESTS), str(TESTS / "networks"), str(TESTS / "torch")]

import plan_networks  # noqa: E402  (just added)
from engines import build_beside_half, count_low, plan_model, unmeasured  # noqa: E402

MOST = 1.05
LAUNCH = 1 << 20
"""Bytes that a kernel counts as, the default of the recipe's field `entry_bytes`."""
RECIPES = ("tensorrt-fp8", "tensorrt-nvfp4")


NOTES = ("the model has no better one", "so are all of the model's")
"""Notes of a plan in which nothing pays for its kernels."""


class Found(NamedTuple):
    """Figures of a network.

    Attributes:
        ours: of the engine of its plan.
        half: of the engine in half.
        asked: whether nothing in it pays, so that its plan does what is asked nevertheless.
        low: multiply-adds in low precision.
        total: all multiply-adds.
    """

    ours: EngineFigures
    half: EngineFigures
    asked: bool
    low: int
    total: int


def measure(recipe: str, only: str) -> dict[str, Found]:
    """Return the figures by network; none for one with nothing to quantize."""
    found = {}
    for name, make in plan_networks.NETWORKS.items():
        with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings(action="ignore"):
            if only in name:
                try:
                    proto = make(Path(folder))
                    qdq, plan = unmeasured(proto, recipe, "fp16"), plan_model(proto, recipe)[1]
                except ModelError:
                    continue
                asked = any(note in placement.why for placement in plan.placements for note in NOTES)
                pair = build_beside_half(qdq, Path(folder))
                found[name] = Found(*pair, asked, *count_low(proto, recipe))
                print(recipe, name, *(one.kernels for one in found[name][:2]), flush=True)
    return found


def make_table(recipe: str, found: dict[str, Found]) -> str:
    """Return the table of a recipe, and what its networks have in all."""
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
        "above 1.05",
    ]
    rows = [
        [*_list_figures([one]), _describe_saved(recipe, one), explain(recipe, one)] for one in found.values()
    ]
    rows.append([*_list_figures([*found.values()]), "", ""])
    table = [[name, *row] for name, row in zip([*found, "all"], rows, strict=True)]
    words = [explain(recipe, one) for one in found.values()]
    above = [text for text in words if text]
    paid, asked = above.count(PAID), above.count(ASKED)
    text = (
        f"{len(above)} of {len(found)} networks have more than {MOST} times the kernels of half. In {paid} "
        f"of these ({PAID}) each kernel more saves {LAUNCH / 1e6:.2f} MB or more. In {asked} ({ASKED}) "
        "no part saves what its kernels cost, and the plan says so."
    )
    return f"{text}\n\n{markdown_table(heads, table)}"


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


PAID, ASKED, UNPAID = "bytes pay", "nothing pays", "does not pay"


def explain(recipe: str, one: Found) -> str:
    """Return what pays for the kernels of a network above 1.05 times half's; empty for others."""
    if one.ours.kernels <= MOST * one.half.kernels:
        return ""
    if _save(recipe, one) >= LAUNCH:
        return PAID
    return ASKED if one.asked else UNPAID


def _describe_saved(recipe: str, one: Found) -> str:
    return f"{_save(recipe, one) / 1e6:.2f}" if one.ours.kernels > one.half.kernels else ""


def _save(recipe: str, one: Found) -> float:
    """Return the bytes that each kernel more saves, with multiply-adds as bytes; 0 without one."""
    bits = load_recipe(recipe).weights.qtype.bits
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
    for recipe in RECIPES:
        found = measure(recipe, given.only)
        counts[recipe] = {
            name: [one.ours.kernels, one.half.kernels, explain(recipe, one)] for name, one in found.items()
        }
        write_section(given.out, "Kernels next to half", recipe, make_table(recipe, found))
    if given.out:
        text = (
            json.dumps(counts, indent=1).replace("[\n   ", "[").replace(",\n   ", ", ").replace("\n  ]", "]")
        )
        (TESTS / "networks" / "kernels_beside_half.json").write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
