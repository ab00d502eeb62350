"""Bias correction on the tasks of a folder of real models.

    python benchmarks/bias_correction.py FOLDER [--only TEXT]

FOLDER is the one of `real_models.py`. `int8`, `int4` and `int4 gptq` quantize weights alone, with a scale for
each output channel; `tensorrt-int8` quantizes activations too, and no layer is protected. The SQNR is that of
the feeds that confirm the correction.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

from real_cases import CASES, Case, Folder
from real_page import numbers

import onnxfq
from onnxfq.remedies.correct_biases import correct_biases
from onnxfq.remedies.equalize_search import equalize_inputs
from onnxfq.remedies.round_weights import round_given
from onnxfq.stages.inputs import open_inputs
from onnxfq.stages.planned_encodings import plan_encodings
from onnxfq.stages.statistics_source import gather_statistics


def weights_alone(qtype: str, rounding: str = "nearest") -> onnxfq.Recipe:
    """Return a recipe of weights with one scale for each output channel."""
    weights = {"qtype": qtype, "rounding": rounding}
    fields = {"name": qtype, "target": "simulation", "activations": None, "weights": weights}
    return onnxfq.Recipe.model_validate(fields)


RECIPES = {
    "int8": weights_alone("int8"),
    "int4": weights_alone("int4"),
    "int4 gptq": weights_alone("int4", "gptq"),
    "tensorrt-int8": onnxfq.load_recipe("tensorrt-int8"),
}


def measure(path: Path, case: Case, recipe: onnxfq.Recipe, work: Path) -> list[str]:
    """Return the cells of a row: SQNR and figures of the task without and with correction."""
    folder, file, options = Folder(path), work / "quantized.onnx", onnxfq.RunOptions()
    inputs = open_inputs(path / case.file, folder.feeds(case), recipe, options)
    inputs = equalize_inputs(inputs, recipe, options)[0]
    found = plan_encodings(inputs.ranked, recipe)
    statistics = gather_statistics(inputs, found.unknown, None, options)
    plan, encodings = found.encode(inputs.model, statistics)
    rounding = round_given(inputs, plan, encodings, options)
    made = correct_biases(inputs, rounding.model, plan, rounding.encodings, options)
    cells = [f"{made.before_db:.1f}", f"{made.after_db:.1f}", "yes" if made.is_kept else "no"]
    for model in (rounding.model, made.model):
        onnxfq.save(onnxfq.insert_fake_quantize(model, plan, rounding.encodings), file)
        cells.append(numbers(folder.measure(case, {case.file: file})))
    return cells


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--only", default="", help="models whose path holds one of these texts, by commas")
    arguments = parser.parse_args()
    print("| model | recipe | SQNR dB | corrected | kept | task | with `auto` |")
    with tempfile.TemporaryDirectory() as work:
        for case in CASES:
            if any(text in case.file for text in arguments.only.split(",")) and not case.raised:
                for name, recipe in RECIPES.items():
                    cells = measure(arguments.folder.resolve(), case, recipe, Path(work))
                    print(
                        f"| {case.name}, {' / '.join(case.metrics)} | {name} | {' | '.join(cells)} |",
                        flush=True,
                    )


if __name__ == "__main__":
    main()
