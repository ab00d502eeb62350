"""Quantize every model of a folder of real models and measure what it does to the task of each.

    python benchmarks/real_models.py FOLDER [--only TEXT] [--out docs/results.md] [--json FILE]

FOLDER holds one folder a network with its model, its data and a README.txt, and `score.py` beside them:
`feeds(folder, model)` gives calibration feeds, `ev_s01` ... `ev_s11` the figures of the task, on data that
calibration does not see; they open models through the module's `S`, which is replaced here. Which
models, which functions and which figures: `real_cases.py`.

Each model is quantized in a process of its own, with both recipes, and measured as float, with
FakeQuantize nodes and with Q/DQ, read back from the file that `onnxfq.quantize` wrote; then the
activations are calibrated again from the same statistics with every calibrator. A model that onnxfq
refuses stands in the table with the reason.
"""

from __future__ import annotations

import argparse
import datetime
import json
import multiprocessing
import tempfile
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from real_cases import CASES, DTLN, Case, Folder, open_model, raised_to_float32
from timing import machine, markdown_table

import onnxfq
from onnxfq.calibrators import CALIBRATORS
from onnxfq.files import write_text
from onnxfq.recipe import RECIPES
from onnxfq.runtime.ort import onnxruntime

FORMS = ("fake-quant", "Q/DQ")
COMPARED_FEEDS = 8
PAIR = replace(next(case for case in CASES if case.file == DTLN[0]), peer="")
"""Both graphs of the pair quantized; each alone is among CASES."""


@dataclass
class Outcome:
    """What one recipe made of one model; `refused` holds the reason when it made nothing.

    sqnr_db: of the worst output of the Q/DQ model on the first feeds. figures: of the task, by form.
    difference: largest |fake-quant - Q/DQ| over the output's largest magnitude, of the worst output.
    """

    refused: str = ""
    coverage: str = ""
    sqnr_db: float = 0.0
    seconds: float = 0.0
    figures: dict[str, tuple[float, ...]] = field(default_factory=dict)
    difference: float = 0.0


@dataclass
class Row:
    """Everything measured of one model. calibrators: figures of the Q/DQ model, recipe tensorrt-int8."""

    model: str
    metrics: tuple[str, ...]
    float_figures: tuple[float, ...]
    peer: str = ""
    peer_matrix: str = ""
    outcomes: dict[str, Outcome] = field(default_factory=dict)
    calibrators: dict[str, tuple[float, ...]] = field(default_factory=dict)
    peak_mb: int = 0


def measure(path: Path, case: Case, work: Path) -> Row:
    """Quantize and measure one model; the files go to the folder `work`."""
    folder = Folder(path)
    model = path / case.file
    if case.raised:
        model = work / f"{case.name}.onnx"
        onnx.save(raised_to_float32(path / case.file), model)
    original = {case.file: model} if case.raised else {}
    row = Row(case.name, case.metrics, folder.measure(case, original), case.peer, case.peer_matrix)
    feeds = folder.feeds(case)
    for recipe in RECIPES:
        row.outcomes[recipe] = outcome = Outcome()
        files = form_files(work, case, recipe)
        try:
            result = onnxfq.quantize(model, feeds, files["Q/DQ"], recipe=recipe)
        except onnxfq.OnnxfqError as error:
            outcome.refused = f"{type(error).__name__}: {error}".replace(f"{model}: ", "")
            continue
        row.peak_mb = row.peak_mb or peak_megabytes()
        onnxfq.save(result.simulation, files["fake-quant"])
        outcome.coverage = ", ".join(str(one) for one in result.plan.coverage())
        outcome.seconds = sum(result.seconds.values())
        scores = {one.candidate: one for one in result.evaluation.candidates}
        outcome.sqnr_db = min(output.sqnr_db for output in scores["Q/DQ"].outputs)
        outcome.figures = {form: folder.measure(case, {case.file: file}) for form, file in files.items()}
        outcome.difference = largest_difference(files, feeds[:COMPARED_FEEDS])
        if recipe == "tensorrt-int8":
            row.calibrators = dict(with_each_calibrator(folder, case, result, work))
    return row


def form_files(work: Path, case: Case, recipe: str) -> dict[str, Path]:
    """Where the forms of a quantized model are written."""
    return {form: work / f"{case.name}.{recipe}.{form.replace('/', '')}.onnx" for form in FORMS}


def with_each_calibrator(
    folder: Folder, case: Case, result: onnxfq.QuantizeResult, work: Path
) -> Iterator[tuple[str, tuple[float, ...]]]:
    """Yield the figures of the Q/DQ model for every calibrator; no further inference of the float model."""
    file = work / f"{case.name}.calibrator.onnx"
    for name in CALIBRATORS:
        encodings = onnxfq.calibrate(result.model, result.plan, result.statistics, name)
        onnxfq.save(onnxfq.insert_qdq(result.model, result.plan, encodings), file)
        yield name, folder.measure(case, {case.file: file})


def largest_difference(files: dict[str, Path], feeds: Sequence[dict[str, Any]]) -> float:
    """Return max |a - b| / max |a| over the feeds, of the output where it is largest, without optimisation."""
    runs = [open_model(files[form], "ORT_DISABLE_ALL") for form in FORMS]
    results = [[run(feed) for run in runs] for feed in feeds]
    worst = 0.0
    for output in range(len(results[0][0])):
        pairs = [(np.asarray(a[output], np.float64), np.asarray(b[output], np.float64)) for a, b in results]
        largest = max(float(np.abs(a).max()) for a, _ in pairs)
        worst = max(worst, max(float(np.abs(a - b).max()) for a, b in pairs) / (largest or 1.0))
    return worst


def measure_pair(path: Path, work: Path) -> Row:
    """Measure the pair of graphs with both quantized, from the files that `measure` left."""
    folder = Folder(path)
    cases = [case for case in CASES if case.file in DTLN]
    row = Row("dtln_1 and dtln_2 together", PAIR.metrics, folder.measure(PAIR, {}))
    for recipe in RECIPES:
        files = [form_files(work, case, recipe) for case in cases]
        row.outcomes[recipe] = Outcome(
            coverage="as above",
            figures={
                form: folder.measure(PAIR, {c.file: f[form] for c, f in zip(cases, files, strict=True)})
                for form in FORMS
            },
        )
    return row


def peak_megabytes() -> int:
    """Peak resident memory of this process; 0 where the system does not tell."""
    status = Path("/proc/self/status")
    lines = status.read_text().splitlines() if status.exists() else []
    return next((int(line.split()[1]) // 1024 for line in lines if line.startswith("VmHWM")), 0)


def numbers(figures: Sequence[float]) -> str:
    """Several figures of one model as one cell."""
    return " / ".join(f"{value:.2f}" if abs(value) >= 5 else f"{value:.4f}" for value in figures)


def recipe_table(rows: Sequence[Row], recipe: str) -> str:
    """The main table for one recipe."""
    header = ["model", "quantized", "SQNR dB", "metric", "float", "fake-quant", "Q/DQ", "ORT all", "ORT C/M", "s"]
    lines = []
    for row in rows:
        one = row.outcomes[recipe]
        metric = " / ".join(row.metrics)
        middle = [metric, numbers(row.float_figures), *(numbers(one.figures.get(form, ())) or "-" for form in FORMS)]
        first = ["refused (below)", "-"] if one.refused else [one.coverage, f"{one.sqnr_db:.1f}" if one.seconds else "-"]
        last = [row.peer or "-", row.peer_matrix or "-", f"{one.seconds:.1f}" if one.seconds else "-"]
        lines.append([row.model, *first, *middle, *last])
    return markdown_table(header, lines)


def calibrator_table(rows: Sequence[Row]) -> str:
    """The metric of the Q/DQ model for each calibrator."""
    names = sorted({name for row in rows for name in row.calibrators})
    lines = [
        [row.model, " / ".join(row.metrics), numbers(row.float_figures), *(numbers(row.calibrators[n]) for n in names)]
        for row in rows
        if row.calibrators
    ]
    return markdown_table(["model", "metric", "float", *names], lines)


def agreement_table(rows: Sequence[Row]) -> str:
    """How far fake-quant and Q/DQ are apart without any optimisation."""
    done = [row for row in rows if row.peak_mb or any(one.seconds for one in row.outcomes.values())]
    lines = [
        [row.model, *(f"{row.outcomes[recipe].difference:.1e}" if row.outcomes[recipe].seconds else "-" for recipe in RECIPES), str(row.peak_mb)]
        for row in done
    ]
    return markdown_table(["model", *RECIPES, "peak resident MB"], lines)


def refusals(rows: Sequence[Row]) -> str:
    """The reasons, one line a model and reason."""
    reasons = {(row.model, one.refused): None for row in rows for one in row.outcomes.values() if one.refused}
    return "\n".join(f"- {model}: {reason}" for model, reason in reasons) or "None."
