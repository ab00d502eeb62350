"""Bits, bytes and perplexity of a language model by recipe.

    python benchmarks/language.py MODEL TOKENS [--calibration 32] [--out FILE]

The first array of TOKENS, an .npz file, has a text of token numbers in each row. The first rows calibrate,
the others are scored with the fake-quant model. Bytes are what the products read: their
weights and the scales of these. The interval is printed by `onnxfq evaluate --metric
perplexity` too. It says what a recipe costs on other texts of this kind.
"""

from __future__ import annotations

import argparse
from math import prod
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import onnx

import onnxfq


class Row(NamedTuple):
    """A row of the table: a built-in recipe, its changes, and what is promised with it."""

    title: str
    base: str
    changes: dict[str, Any] = {}
    promise: dict[str, Any] = {}


QRONOS = {"weights": {"rounding": "qronos"}}
BLOCKS = {"weights": {"rounding": "qronos", "block_size": 32}}
ALONE: dict[str, Any] = {"activations": None, **QRONOS}
SMALL: dict[str, Any] = {"small_shapes": "quantize"}
LEAST = {"repair": "auto", "min_sqnr": 20.0, "fallback": "tensorrt-fp8"}
DYNAMIC = {"dynamic": True, "granularity": "per_row", "equalize": "none", "known_ranges": ()}
INT4 = {
    "target": "simulation",
    "activations": {"qtype": "int4", **DYNAMIC},
    "weights": {"qtype": "int4", "rounding": "qronos"},
}
INT8: dict[str, Any] = {"weights": {"rounding": "nearest"}}
TURNED: dict[str, Any] = {"rotate": "always"}
DROP = {"repair": "auto", "metric": "perplexity", "max_drop": 0.3, "fallback": "tensorrt-fp8"}
ROWS = (
    Row("`tensorrt-int8-weights`", "tensorrt-int8-weights"),
    Row("`tensorrt-int4` in blocks of 32, `qronos`", "tensorrt-int4", BLOCKS),
    Row("NVFP4 weights alone (`nvfp4`), nearest", "nvfp4", {"activations": None}),
    Row("NVFP4 weights alone (`nvfp4`), `qronos`", "nvfp4", ALONE),
    Row("`tensorrt-nvfp4`, `--rounding qronos --repair off`", "tensorrt-nvfp4", {**SMALL, **QRONOS}),
    Row("`tensorrt-nvfp4`", "tensorrt-nvfp4", SMALL, {"repair": "auto"}),
    Row("the same, `--min-sqnr 20 --fallback tensorrt-fp8`", "tensorrt-nvfp4", SMALL, LEAST),
    Row("the same, `--max-drop .3 --fallback tensorrt-fp8`", "tensorrt-nvfp4", SMALL, DROP),
    Row("`tensorrt-nvfp4`, `qronos`, `--rotate always`", "tensorrt-nvfp4", {**SMALL, **QRONOS, **TURNED}),
    Row("int8 weights and activations, nearest", "tensorrt-int8", INT8),
    Row("int8 weights and activations, `--rotate always`", "tensorrt-int8", {**INT8, **TURNED}),
    Row("int4 weights and activations, a scale a row, `qronos`", "tensorrt-int8", INT4),
    Row("int4 weights and activations, `--rotate always`", "tensorrt-int8", {**INT4, **TURNED}),
)


def main() -> None:
    """Print the table, and write it to a file."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model")
    parser.add_argument("tokens")
    parser.add_argument("--calibration", type=int, default=32, help="texts that calibrate")
    parser.add_argument("--out", type=Path)
    asked = parser.parse_args()
    with np.load(asked.tokens) as arrays:
        texts = next(iter(arrays.values())).astype(np.int64)
    rows = measure(onnx.load(asked.model), texts[: asked.calibration], texts[asked.calibration :])
    lines = ["| weights of products | bits | MB | perplexity | 90% |", "|---|---|---|---|---|"]
    table = "\n".join([*lines, *(f"| {' | '.join(cells)} |" for cells in rows)])
    print(table)
    if asked.out is not None:
        unseen, name = len(texts) - asked.calibration, Path(asked.model).stem
        intro = f"{name}, {asked.calibration} texts calibrate, {unseen} are scored."
        asked.out.write_text(f"# Language models by recipe\n\n{intro}\n\n{table}\n", encoding="utf-8")


def measure(model: onnx.ModelProto, known: np.ndarray, unseen: np.ndarray) -> list[list[str]]:
    """Return the rows: the float model, and each recipe calibrated by `known` and scored on `unseen`."""
    feeds, scored = ([{"input_ids": text[None]} for text in texts] for texts in (known, unseen))
    candidates, sizes = {"float": model}, {}
    for row in ROWS:
        recipe = onnxfq.load_recipe(row.base).override(**row.changes)
        accuracy = onnxfq.AccuracyTarget(**{"repair": None, **row.promise})
        result = onnxfq.quantize(model, feeds, recipe=recipe, accuracy=accuracy)
        candidates[row.title], sizes[row.title] = result.simulation, count_bits(result)
    whole = next(iter(sizes.values()))[0]
    sizes["float"] = (whole, 32 * whole)
    evaluation = onnxfq.evaluate(model, candidates, scored, metric="perplexity")
    rows = []
    for one in evaluation.candidates:
        if one.candidate in sizes:  # others are the same files in the session of their users
            count, bits = sizes[one.candidate]
            ends = "" if one.metric_interval is None else "{:.2f} to {:.2f}".format(*one.metric_interval)
            rows.append(
                [one.candidate, f"{bits / count:.2f}", f"{bits / 8e6:.3f}", f"{one.metric:.2f}", ends]
            )
    return rows


def count_bits(result: onnxfq.QuantizeResult) -> tuple[int, int]:
    """Return how many weights the products have, and the bits of these and of their scales."""
    graph, bits = result.staged.proto.graph, 0
    sizes = {tensor.name: prod(tensor.dims) for tensor in graph.initializer}
    # A head that shares the table of words reads it through a Transpose.
    turned = {node.output[0]: node.input[0] for node in graph.node if node.op_type == "Transpose"}
    read = {turned.get(node.input[1], node.input[1]) for node in graph.node if node.op_type == "MatMul"}
    weights = read & sizes.keys()
    encodings = {encoding.tensor: encoding for encoding in result.encodings.encodings}
    for name in weights:
        encoding = encodings.get(name)
        bits += sizes[name] * (32 if encoding is None else encoding.spec.qtype.bits)
        if encoding is not None:
            bits += encoding.scale.size * (32 if encoding.spec.scale_type == "float32" else 8)
    return sum(sizes[name] for name in weights), bits


if __name__ == "__main__":
    main()
