"""The work of `onnxfq demo`: two recipes on a trained digit network, measured on digits that it never saw."""

from __future__ import annotations

import shutil
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from onnxfq.cli.console import command_line
from onnxfq.documents.recipe import Recipe
from onnxfq.documents.scores import Evaluation
from onnxfq.graph.io.save import save
from onnxfq.judging.accuracy_target import AccuracyTarget
from onnxfq.quantizing.pipeline import QuantizeResult, quantize
from onnxfq.report.html import render_page
from onnxfq.report.record import quantize_record
from onnxfq.stages.evaluate import evaluate
from onnxfq.stages.options import RunOptions
from onnxfq.support.files import make_folder, replace_file, write_text
from onnxfq.support.resources import package_file
from onnxfq.targets.recipes import RECIPES

# The split of models/digits.py: the network was trained on the images before these.
CALIBRATION = slice(8000, 8500)
SCORING = slice(8500, 10000)
BATCH = 50

PER_TENSOR = "int8 per tensor, unrepaired"
PER_AXIS = "int8 per axis, repaired"
"""A simple quantizer, and what `quantize` does by default: scales of weights per channel, and remedies."""


@dataclass(frozen=True)
class DemoResult:
    """Results of the demo by scheme, their evaluation, the written files, and the run time in seconds."""

    results: dict[str, QuantizeResult]
    evaluation: Evaluation
    files: tuple[Path, ...]
    seconds: float

    def accuracies(self) -> dict[str, float]:
        """Return the share of correct scoring digits, float first."""
        scores = {c.candidate: c.accuracy or 0.0 for c in self.evaluation.candidates}
        return {"float32": self.evaluation.accuracy or 0.0} | scores


def run_demo(folder: str | Path) -> DemoResult:
    """Quantize the digit network twice, measure it on 1,500 unseen digits and write all files to `folder`.

    Raises OutputError if the folder cannot be created.
    """
    start, folder = time.perf_counter(), Path(folder)
    with make_folder(folder):
        model = package_file("digits", "digits_cnn.onnx")
        with np.load(package_file("digits", "mnist_t10k.npz")) as data:
            images = data["images"].reshape(-1, 1, 28, 28).astype(np.float32) / np.float32(255)
            labels = data["labels"].astype(np.int64)
        options = RunOptions(batch=BATCH)
        calibration, scoring = ({"image": images[part]} for part in (CALIBRATION, SCORING))
        results: dict[str, QuantizeResult] = {}
        files = []
        for name, recipe in _recipes().items():
            path = folder / f"digits_{recipe.name.replace('-', '_')}.onnx"
            aim = AccuracyTarget() if name == PER_AXIS else AccuracyTarget(repair=None)
            results[name] = quantize(model, calibration, path, recipe=recipe, accuracy=aim, options=options)
            files.append(path)
        candidates = {name: result.qdq for name, result in results.items()}
        evaluation = evaluate(model, candidates, scoring, labels=labels[SCORING], options=options)
        save(results[PER_AXIS].simulation, folder / "digits_fakequant.onnx")
        records = [(name, quantize_record(made, command=command_line())) for name, made in results.items()]
        write_text(folder / "report.html", render_page(records))
        files += [folder / name for name in ("digits_fakequant.onnx", "report.html")]
        files += _write_inputs(folder, images, labels)
        return DemoResult(results, evaluation, tuple(files), time.perf_counter() - start)


def _write_inputs(folder: Path, images: NDArray[np.float32], labels: NDArray[np.int64]) -> list[Path]:
    """Write the float network, its data and labels, as the other commands read them; return the files."""
    arrays = {"calibration.npz": images[CALIBRATION], "test.npz": images[SCORING]}
    for name, array in arrays.items():
        with replace_file(folder / name) as temporary, open(temporary, "wb") as file:
            np.savez_compressed(file, image=array)
    with replace_file(folder / "labels.npy") as temporary, open(temporary, "wb") as file:
        np.save(file, labels[SCORING])
    with replace_file(folder / "digits.onnx") as temporary:
        shutil.copyfile(package_file("digits", "digits_cnn.onnx"), temporary)
    return [folder / name for name in ("digits.onnx", *arrays, "labels.npy")]


def _recipes() -> dict[str, Recipe]:
    base = RECIPES["tensorrt-int8"]
    weights = base.weights.model_copy(update={"granularity": "per_tensor"})
    return {
        PER_TENSOR: base.model_copy(update={"name": "int8-per-tensor", "weights": weights}),
        PER_AXIS: base.model_copy(update={"name": "int8-per-axis"}),
    }
