"""Weights of 8 bits by each method of rounding, on the tasks of a folder of real models.

    python benchmarks/rounding.py FOLDER [--only TEXT]

FOLDER is the one of `real_models.py`. The figures are for the fake-quant model without protected layers, on
data that calibration does not see; the dB are the SQNR of the worst output on calibration feeds.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

import onnx
from real_cases import CASES, Case, Folder, raised_to_float32
from real_page import numbers

import onnxfq
from onnxfq.documents.rounding import ROUNDINGS

RECIPES = ("tensorrt-int8", "tensorrt-fp8")


def measure(path: Path, case: Case, recipe: str, work: Path) -> list[str]:
    """Return the cells of a row: the figures as float, and figures and SQNR by each method."""
    folder, model, file = Folder(path), path / case.file, work / "quantized.onnx"
    if case.raised:
        model = work / "raised.onnx"
        onnx.save(raised_to_float32(path / case.file), model)
    cells = [numbers(folder.measure(case, {case.file: model} if case.raised else {}))]
    for rounding in ROUNDINGS:
        try:
            made = onnxfq.quantize(model, folder.feeds(case), recipe=recipe, rounding=rounding, protect=None)
        except onnxfq.ModelError:  # nothing to quantize by this recipe
            return [*cells, "-"]
        onnxfq.save(made.simulation, file)
        lowest = min(output.sqnr_db for output in made.evaluation.candidates[0].outputs)
        cells.append(f"{numbers(folder.measure(case, {case.file: file}))} ({lowest:.1f} dB)")
    return cells


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--only", default="", help="models whose path holds one of these texts, by commas")
    arguments = parser.parse_args()
    print(f"| model | metric | recipe | float | {' | '.join(ROUNDINGS)} |")
    with tempfile.TemporaryDirectory() as work:
        for case in CASES:
            for recipe in RECIPES if any(text in case.file for text in arguments.only.split(",")) else ():
                cells = measure(arguments.folder.resolve(), case, recipe, Path(work))
                print(
                    f"| {case.name} | {' / '.join(case.metrics)} | {recipe} | {' | '.join(cells)} |",
                    flush=True,
                )


if __name__ == "__main__":
    main()
