"""Figures that are printed, promised and true behind a choice, for networks most of which lies behind one.

    python benchmarks/selections.py [--only NAME ...] [--out benchmarks/results/selections.md]

The networks have random weights: `tests/networks/selecting_networks.py`. Each is quantized with 256 samples:
by nearest rounding, by default, and with `--min-sqnr 30`. "True" is the SQNR of the outputs in ONNX
Runtime on other samples: of 256 those for which both models choose the same by themselves. "Same" is their
share. "Printed" is the number of the command, the worst of all that decides.
"""

from __future__ import annotations

import argparse
import math
import sys
import tempfile
from pathlib import Path

import onnx
from timing import markdown_table, write_section

import onnxfq
from onnxfq.errors import OnnxfqError

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests" / "networks"))

from selecting_networks import NETWORKS, SelectingNetwork, sqnr_where_equal

RECIPES = ("tensorrt-int8", "tensorrt-int8-weights", "onnxruntime-int8", "openvino-int8")
SAMPLES = 256
HEADS = "network, recipe, nearest: true, default: printed, true, same, promised 30: printed, true".split(", ")


def measure(network: SelectingNetwork, recipe: onnxfq.Recipe, promise: float | None) -> tuple[str, ...]:
    """Return the figure that is printed, the true one in dB and the share of samples."""
    feeds = [{"x": x[None]} for x in network.data(SAMPLES, 1)["x"]]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "q.onnx"
        accuracy = onnxfq.AccuracyTarget(min_sqnr=promise)
        try:
            result = onnxfq.quantize(network.proto, feeds, path, recipe=recipe, accuracy=accuracy)
        except OnnxfqError:
            return "refused", "", ""
        true_db, count = sqnr_where_equal(network, onnx.load(path), network.data(SAMPLES, 7))
    figures = ("equal" if one == math.inf else f"{one:.1f}" for one in (result.evaluation.lowest_db, true_db))
    return *figures, f"{count / SAMPLES:.0%}"


def row(name: str, recipe_name: str) -> list[str]:
    """Return the row of a network and a recipe."""
    network, recipe = NETWORKS[name](), onnxfq.load_recipe(recipe_name)
    weights = recipe.weights.model_copy(update={"rounding": "nearest"})
    nearest = measure(network, recipe.override(weights=weights), None)
    printed, true, same = measure(network, recipe, None)
    promised = measure(network, recipe, 30.0)
    return [name, recipe_name, nearest[1], printed, true, same, promised[0], promised[1]]


def main() -> None:
    """Measure all networks, and write the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", nargs="*", choices=list(NETWORKS), default=list(NETWORKS))
    parser.add_argument("--out", type=Path)
    asked = parser.parse_args()
    rows = [row(name, recipe) for name in asked.only for recipe in RECIPES]
    write_section(asked.out, "Behind a choice", "Printed and true", markdown_table(HEADS, rows))


if __name__ == "__main__":
    main()
