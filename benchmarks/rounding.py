"""Weights of 3 to 8 bits by each method of rounding, on the tasks of a folder of real models.

    python benchmarks/rounding.py FOLDER [--only TEXT] [--schemes W8A8,int4/64] [--methods nearest,gptq]

FOLDER is the one of `real_models.py`. The figures are for the fake-quant model without protected layers, on
data that calibration does not see; the dB are the SQNR of the worst output on calibration feeds. In the
schemes from W8A8 to fp8 activations are quantized too, in the others only weights.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path
from typing import Any

import onnx
from real_cases import CASES, Case, Folder, raised_to_float32
from real_page import numbers

import onnxfq
from onnxfq.errors import ModelError, PlanError, RecipeError
from onnxfq.layers.round_weights import round_weights

INT8 = {"qtype": "int8", "equalize": "depthwise"}
BLOCKED = {"granularity": "blocked", "calibrator": "mse"}
FLOAT4 = BLOCKED | {"qtype": "float4e2m1"}

SCHEMES: dict[str, tuple[dict[str, Any] | None, dict[str, Any]]] = {
    "W8A8": (INT8, {"qtype": "int8"}),
    "W4A8": (INT8, {"qtype": "int4"}),
    "W3A8": (INT8, {"qtype": "int3"}),
    "int4": (None, {"qtype": "int4"}),
    "int3": (None, {"qtype": "int3"}),
    "int4/128": (None, BLOCKED | {"qtype": "int4", "block_size": 128}),
    "int4/64": (None, BLOCKED | {"qtype": "int4", "block_size": 64}),
    "int4/32": (None, BLOCKED | {"qtype": "int4", "block_size": 32}),
    "NVFP4": (None, FLOAT4 | {"scale_type": "e4m3"}),
    "MXFP4": (None, FLOAT4 | {"scale_type": "e8m0"}),
}
"""Activations and weights of the schemes that no built-in recipe has."""

METHODS: dict[str, dict[str, Any]] = {
    "nearest": {"calibrator": "minmax", "rounding": "nearest"},
    "mse": {"calibrator": "mse", "rounding": "nearest"},
    "gptq": {"rounding": "gptq"},
    "qronos": {"rounding": "qronos"},
}
"""Changes of each method to the weights of a scheme."""


def make_recipe(scheme: str, method: str) -> onnxfq.Recipe:
    """Return the recipe of a scheme with a method of rounding."""
    if scheme == "fp8":
        return onnxfq.load_recipe("tensorrt-fp8").override(weights={"rounding": method})
    activations, weights = SCHEMES[scheme]
    return onnxfq.Recipe.model_validate(
        {
            "name": scheme,
            "target": "simulation",
            "activations": activations,
            "weights": weights | METHODS[method],
        }
    )


def score(folder: Folder, case: Case, model: Path, recipe: onnxfq.Recipe) -> tuple[tuple[float, ...], float]:
    """Return the figures of a model quantized by `recipe`, and the SQNR of its worst output in dB.

    Raises PlanError if the recipe quantizes nothing.
    """
    loaded, feeds = onnxfq.load(model), folder.feeds(case)
    plan = onnxfq.make_plan(loaded, recipe)
    statistics = onnxfq.collect_statistics(loaded, plan, feeds)
    made = round_weights(loaded, plan, onnxfq.calibrate(loaded, plan, statistics), feeds)
    simulation = onnxfq.insert_fake_quantize(made.model, plan, made.encodings)
    outputs = onnxfq.evaluate(model, simulation, feeds).candidates[0].outputs
    with tempfile.TemporaryDirectory() as work:
        onnxfq.save(simulation, Path(work) / "quantized.onnx")
        figures = folder.measure(case, {case.file: Path(work) / "quantized.onnx"})
    return figures, min(output.sqnr_db for output in outputs)


def measure(path: Path, case: Case, scheme: str, methods: list[str], work: Path) -> list[str]:
    """Return the cells of a row: the figures as float, and figures and SQNR by each method."""
    folder, model = Folder(path), path / case.file
    if case.raised:
        model = work / "raised.onnx"
        onnx.save(raised_to_float32(path / case.file), model)
    cells = [numbers(folder.measure(case, {case.file: model} if case.raised else {}))]
    for method in methods:
        try:
            figures, lowest = score(folder, case, model, make_recipe(scheme, method))
        except (ModelError, PlanError, RecipeError):  # nothing to quantize, or not by this method
            cells.append("-")
        else:
            cells.append(f"{numbers(figures)} ({lowest:.1f} dB)")
    return cells


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--only", default="", help="models whose path holds one of these texts, by commas")
    parser.add_argument("--schemes", default="W8A8,fp8", help=", ".join([*SCHEMES, "fp8"]))
    parser.add_argument("--methods", default=",".join(METHODS))
    arguments = parser.parse_args()
    methods, schemes = arguments.methods.split(","), arguments.schemes.split(",")
    print(f"| model | metric | scheme | float | {' | '.join(methods)} |")
    with tempfile.TemporaryDirectory() as work:
        for case in CASES:
            for scheme in schemes if any(text in case.file for text in arguments.only.split(",")) else ():
                cells = measure(arguments.folder.resolve(), case, scheme, methods, Path(work))
                print(
                    f"| {case.name} | {' / '.join(case.metrics)} | {scheme} | {' | '.join(cells)} |",
                    flush=True,
                )


if __name__ == "__main__":
    main()
