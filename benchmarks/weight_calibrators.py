"""Weights of 4 bits by each calibrator, on the tasks of a folder of real models.

    python benchmarks/weight_calibrators.py FOLDER [--only TEXT]

FOLDER is the one of `real_models.py`. Only weights are quantized, with FakeQuantize nodes: int4 for each
output channel, int4 in blocks of 128, NVFP4 in blocks of 16. The last two columns are the mean over the int4
weights of sum(w q) / sum(w w) - 1, the change of a layer's gain.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

import numpy as np
import onnx
from real_cases import CASES, Case, Folder, raised_to_float32
from real_page import numbers

import onnxfq
from onnxfq.graph.constants import weight_array

CALIBRATORS = ("minmax", "mse")
SCHEMES = {
    "int4": {"qtype": "int4"},
    "int4/128": {"qtype": "int4", "granularity": "blocked", "block_size": 128},
    "NVFP4": {"qtype": "float4e2m1", "granularity": "blocked", "scale_type": "e4m3"},
}


def make_recipe(scheme: dict[str, object], calibrator: str) -> onnxfq.Recipe:
    """Return a recipe of weights only."""
    weights = scheme | {"calibrator": calibrator}
    return onnxfq.Recipe.model_validate(
        {"name": "weights", "target": "simulation", "activations": None, "weights": weights}
    )


def measure(path: Path, case: Case, work: Path) -> list[str]:
    """Return the cells of a model: its figures as float, by each scheme and calibrator, and the gains."""
    folder, model, file = Folder(path), path / case.file, work / "weights.onnx"
    if case.raised:
        model = work / "raised.onnx"
        onnx.save(raised_to_float32(path / case.file), model)
    loaded = onnxfq.load(model)
    cells, gains = [numbers(folder.measure(case, {case.file: model} if case.raised else {}))], []
    for scheme in SCHEMES.values():
        for calibrator in CALIBRATORS:
            plan = onnxfq.make_plan(loaded, make_recipe(scheme, calibrator))
            nothing = onnxfq.Statistics(loaded.sha256, 0, {})
            encodings = onnxfq.calibrate(loaded, plan, nothing)
            onnxfq.save(onnxfq.insert_fake_quantize(loaded, plan, encodings), file)
            cells.append(numbers(folder.measure(case, {case.file: file})))
            if scheme is SCHEMES["int4"]:
                gains.append(f"{100 * mean_gain(loaded, encodings):+.1f} %")
    return cells + gains


def mean_gain(model: onnxfq.Model, encodings: onnxfq.Encodings) -> float:
    """Return the mean over all weights of sum(w q) / sum(w w) - 1."""
    gains = []
    for encoding in encodings.encodings:
        w = np.asarray(weight_array(model, encoding.tensor), np.float32)
        rounded = encoding.fake_quantize(w).astype(np.float64)
        gains.append(float((rounded * w).sum() / np.square(w, dtype=np.float64).sum()) - 1.0)
    return float(np.mean(gains))


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--only", default="", help="models whose path holds one of these texts, by commas")
    arguments = parser.parse_args()
    heads = [f"{scheme} {name}" for scheme in SCHEMES for name in CALIBRATORS]
    print("| model | metric | float | " + " | ".join([*heads, *(f"gain {n}" for n in CALIBRATORS)]) + " |")
    with tempfile.TemporaryDirectory() as work:
        for case in CASES:
            if any(text in case.file for text in arguments.only.split(",")):
                cells = measure(arguments.folder.resolve(), case, Path(work))
                print(f"| {case.name} | {' / '.join(case.metrics)} | {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
