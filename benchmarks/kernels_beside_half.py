"""Kernels and megabytes of engines in float8 and NVFP4, next to the same networks in half.

    python benchmarks/kernels_beside_half.py [--only TEXT] [--out benchmarks/results/kernels_beside_half.md]

The networks of tests/networks are built by TensorRT for RTX, without a GPU, with scales that are made up.
Bytes are the results that kernels write and the weights that they read, per sample. No time is measured. With
`--out` the counts also go to tests/networks/kernels_beside_half.json: a test lets no plan have more than its
count there, or than 1.05 times half's.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import warnings
from pathlib import Path

from timing import markdown_table, write_section

from onnxfq.errors import ModelError
from onnxfq.targets.engine_figures import EngineFigures

TESTS = Path(__file__).resolve().parents[1] / "tests"
sys.path[:0] = [str(TESTS), str(TESTS / "networks"), str(TESTS / "torch")]

import plan_networks  # noqa: E402  (just added)
from engines import build_beside_half, unmeasured  # noqa: E402

MOST = 1.05
RECIPES = ("tensorrt-fp8", "tensorrt-nvfp4")


def measure(recipe: str, only: str) -> dict[str, tuple[EngineFigures, EngineFigures]]:
    """Return the figures of both engines by network; none for one with nothing to quantize."""
    found = {}
    for name, make in plan_networks.NETWORKS.items():
        with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings(action="ignore"):
            if only in name:
                try:
                    plan = unmeasured(make(Path(folder)), recipe, "fp16")
                except ModelError:
                    continue
                found[name] = build_beside_half(plan, Path(folder))
                print(recipe, name, *(one.kernels for one in found[name]), flush=True)
    return found


def make_table(found: dict[str, tuple[EngineFigures, EngineFigures]]) -> str:
    """Return the table of a recipe, and what its networks have in all."""
    heads = ["network", "kernels", "half", "times", "MB", "half", "times", "only quantizing"]
    totals = [
        [sum(row) for row in zip(*map(_count, side), strict=True)]
        for side in zip(*found.values(), strict=True)
    ]
    sides = {**{name: [_count(one) for one in pair] for name, pair in found.items()}, "all": totals}
    rows = [
        [name, f"{ours[0]:,}", f"{half[0]:,}", f"{ours[0] / half[0]:.2f}"]
        + [f"{ours[1] / 1e6:.2f}", f"{half[1] / 1e6:.2f}", f"{ours[1] / half[1]:.2f}", str(ours[2])]
        for name, (ours, half) in sides.items()
    ]
    above = sum(ours.kernels > MOST * half.kernels for ours, half in found.values())
    text = f"{above} of {len(found)} networks have more than {MOST} times the kernels of half."
    return f"{text}\n\n{markdown_table(heads, rows)}"


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
        counts[recipe] = {name: [one.kernels for one in pair] for name, pair in found.items()}
        write_section(given.out, "Kernels next to half", recipe, make_table(found))
    if given.out:
        text = (
            json.dumps(counts, indent=1).replace("[\n   ", "[").replace(",\n   ", ", ").replace("\n  ]", "]")
        )
        (TESTS / "networks" / "kernels_beside_half.json").write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
