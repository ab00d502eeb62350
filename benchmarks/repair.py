"""Effect of repair on trained networks: the figure of the task, the printed SQNR and the true one, time.

    python benchmarks/repair.py FOLDER [--only TEXT,TEXT] [--ways off,auto,thorough] [--recipe tensorrt-int8]

FOLDER is the one of `real_models.py`. Remedies are chosen on calibration data; the figures of the tasks and
the true SQNR are of the data of the task. Each model is quantized in a process of its own.
"""

from __future__ import annotations

import argparse
import multiprocessing
import tempfile
import time
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import NamedTuple

import onnx
from real_cases import CASES, Case, Folder, raised_to_float32
from real_page import numbers
from timing import markdown_table

import onnxfq
from onnxfq.documents.trial import Trial

TRUE_FEEDS = 64
"""Most samples of the task that tell the true SQNR."""

HEADER = [
    "model",
    "metric",
    "float",
    "repair",
    "figure",
    "told dB",
    "true dB",
    "kept",
    "seconds",
    "processor s",
]


class Result(NamedTuple):
    """One way of quantizing one model."""

    figures: tuple[float, ...]
    told_db: float
    true_db: float
    trials: tuple[Trial, ...]
    seconds: float
    processor: float


def repair_of(way: str) -> float | str | None:
    """Return the argument `repair` of a word or a number of dB."""
    if way == "off":
        return None
    return way if way in ("auto", "thorough") else float(way)


def measure(path: Path, case: Case, recipe: str, way: str) -> Result:
    """Quantize and measure one model in one way. Raises OnnxfqError if it is refused."""
    folder = Folder(path)
    with tempfile.TemporaryDirectory() as work:
        model, file = path / case.file, Path(work) / "quantized.onnx"
        if case.raised:
            model = Path(work) / "raised.onnx"
            onnx.save(raised_to_float32(path / case.file), model)
        feeds = folder.feeds(case)
        wall, processor = time.perf_counter(), time.process_time()
        result = onnxfq.quantize(
            model,
            feeds,
            file,
            recipe=recipe,
            accuracy=onnxfq.AccuracyTarget(repair=repair_of(way)),
            options=onnxfq.RunOptions(threads=1),
        )
        seconds, used = time.perf_counter() - wall, time.process_time() - processor
        if recipe_target(recipe) == "simulation":
            file = Path(work) / "simulated.onnx"
            onnxfq.save(result.simulation, file)
        figures = folder.measure(case, {case.file: file})
        truth = onnxfq.evaluate(model, file, folder.task_feeds(case)[:TRUE_FEEDS])
        return Result(figures, result.evaluation.lowest_db, truth.lowest_db, result.trials, seconds, used)


def recipe_target(recipe: str) -> str:
    """Return the target of a recipe by its name."""
    return onnxfq.load_recipe(recipe).target


def measure_float(path: Path, case: Case) -> tuple[float, ...]:
    """Return the figures of the float model."""
    return Folder(path).measure(case, {})


def describe(trial: Trial) -> str:
    """Return a trial in a few words."""
    return f"{trial.remedy} {trial.figures}".strip() if trial.is_kept else ""


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--only", default="", help="models whose path holds one of these texts, by commas")
    parser.add_argument("--ways", default="off,auto,thorough", help="words or dB of --repair, by commas")
    parser.add_argument("--recipe", default="tensorrt-int8")
    parser.add_argument("--trials", action="store_true", help="print every trial")
    arguments = parser.parse_args()
    path = arguments.folder.resolve()
    spawn = multiprocessing.get_context("spawn")
    print(markdown_table(HEADER, []), flush=True)
    for case in CASES:
        if not any(text in case.file for text in arguments.only.split(",")):
            continue
        exact = numbers(measure_float(path, case))
        for way in arguments.ways.split(","):
            with ProcessPoolExecutor(1, mp_context=spawn) as pool:
                try:
                    got = pool.submit(measure, path, case, arguments.recipe, way).result()
                except onnxfq.OnnxfqError as error:
                    print(f"| {case.name} | | {exact} | {way} | {error} |", flush=True)
                    continue
            cells = [
                case.name,
                " / ".join(case.metrics),
                exact,
                way,
                numbers(got.figures),
                f"{got.told_db:.1f}",
                f"{got.true_db:.1f}",
                ", ".join(filter(None, map(describe, got.trials))),
                f"{got.seconds:.1f}",
                f"{got.processor:.1f}",
            ]
            print(f"| {' | '.join(cells)} |", flush=True)
            for trial in got.trials if arguments.trials else ():
                figures = f"{trial.result} {trial.figures} {trial.seconds:.1f} s {trial.why}"
                print(f"    {trial.remedy} {figures} {trial.details}"[:300])


if __name__ == "__main__":
    main()
