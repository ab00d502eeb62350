"""The demo: a really trained network, quantized and measured on digits it never saw."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from onnxfq.documents.recipe import RECIPES, Recipe
from onnxfq.documents.scores import Evaluation
from onnxfq.errors import OutputError
from onnxfq.graph.io.save import save
from onnxfq.pipeline import QuantizeResult, quantize
from onnxfq.report.html import write_report
from onnxfq.report.plot import error_figure, save_figure
from onnxfq.report.tensor_errors import tensor_errors
from onnxfq.stages.evaluate import evaluate
from onnxfq.stages.options import RunOptions
from onnxfq.support.resources import package_file

# models/digits.py splits the same way: the network was trained on the images before these.
CALIBRATION = slice(8000, 8500)
SCORING = slice(8500, 10000)
BATCH = 50

PER_TENSOR = "int8, weights per tensor"
PER_AXIS = "int8, weights per axis"


@dataclass(frozen=True)
class DemoResult:
    """What the demo measured. results: by scheme. files: what it wrote. seconds: from start to end."""

    results: dict[str, QuantizeResult]
    evaluation: Evaluation
    files: tuple[Path, ...]
    seconds: float

    def accuracies(self) -> dict[str, float]:
        """Return the share of scoring digits read right, float first."""
        scores = {c.candidate: c.accuracy or 0.0 for c in self.evaluation.candidates}
        return {"float32": self.evaluation.accuracy or 0.0} | scores


def run_demo(folder: str | Path) -> DemoResult:
    """Quantize the digit network twice, measure it on 1,500 unseen digits, write all into `folder`.

    Raises OutputError for a folder that cannot be made.
    """
    start = time.perf_counter()
    folder = Path(folder)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as fault:
        raise OutputError(
            f"cannot make folder {folder}: {fault.strerror}; give another with --output"
        ) from None
    model = package_file("digits", "digits_cnn.onnx")
    images, labels = _digits()
    options = RunOptions(batch=BATCH)
    calibration = [{"image": batch} for batch in _batches(images[CALIBRATION])]
    scoring = [{"image": batch} for batch in _batches(images[SCORING])]
    results: dict[str, QuantizeResult] = {}
    files = []
    for name, recipe in _recipes().items():
        path = folder / f"digits_{recipe.name.replace('-', '_')}.onnx"
        results[name] = quantize(model, calibration, path, recipe=recipe, options=options)
        files.append(path)
    evaluation = evaluate(
        model,
        {name: result.qdq for name, result in results.items()},
        scoring,
        labels=labels[SCORING],
        options=options,
    )
    best = results[PER_AXIS]
    save(best.simulation, folder / "digits_fakequant.onnx")
    write_report(best, folder / "report.html")
    rows = {name: tensor_errors(r.model, r.plan, r.statistics, r.encodings) for name, r in results.items()}
    save_figure(error_figure(rows, "Digit network: noise of each quantized tensor"), folder / "errors.png")
    files += [folder / name for name in ("digits_fakequant.onnx", "report.html", "errors.png")]
    return DemoResult(results, evaluation, tuple(files), time.perf_counter() - start)


def _recipes() -> dict[str, Recipe]:
    base = RECIPES["tensorrt-int8"]
    weights = base.weights.model_copy(update={"granularity": "per_tensor"})
    return {
        PER_TENSOR: base.model_copy(update={"name": "int8-per-tensor", "weights": weights}),
        PER_AXIS: base.model_copy(update={"name": "int8-per-axis"}),
    }


def _digits() -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    with np.load(package_file("digits", "mnist_t10k.npz")) as data:
        images = data["images"].reshape(-1, 1, 28, 28).astype(np.float32) / np.float32(255)
        return images, data["labels"].astype(np.int64)


def _batches(images: NDArray[np.float32]) -> list[NDArray[np.float32]]:
    return [images[i : i + BATCH] for i in range(0, len(images), BATCH)]
