"""Repair of trained networks: figures of the task, printed and true SQNR, kept remedies, processor time.

    python benchmarks/repair.py FOLDER [--only TEXT,TEXT] [--ways off,auto,thorough] [--recipe tensorrt-int8]
        [--damage scaled,channel,tail,sample] [--gpu 8.9] [--jobs 2] [--trials] [--out PAGE.md --title TITLE]

FOLDER is the one of `real_models.py`. Remedies are chosen on calibration data. The figures of the tasks and
the true SQNR come from the data of the task. Each model is quantized in a separate process, with one thread
of BLAS: several spin where others use the machine. planted_damage.py has what `--damage` plants.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from itertools import product
from pathlib import Path
from statistics import median
from typing import NamedTuple

import onnx
from planted_damage import DAMAGES, enlarge_sample
from real_cases import CASES, DTLN, SILERO, Case, Folder, raised_to_float32
from real_page import numbers
from timing import machine, markdown_table, write_section

import onnxfq
from onnxfq.documents.trial import Trial
from onnxfq.report.text import is_unseen

TRUE_FEEDS = 64
"""Most samples of the task that tell the true SQNR."""

SEEN = " seen"
"""Behind the SQNR of samples that gave ranges."""

HEADER = [
    "model",
    "metric",
    "float",
    "repair",
    "figure",
    "printed dB",
    "true dB",
    "kept",
    "processor s",
]


class Result(NamedTuple):
    """One way of quantizing one model; the printed SQNR is of samples that gave no ranges if `unseen`."""

    figures: tuple[float, ...]
    unseen: bool
    printed_db: float
    true_db: float
    trials: tuple[Trial, ...]
    processor: float


def repair_of(way: str) -> float | str | None:
    """Return the argument `repair` of a word or a number of dB."""
    if way == "off":
        return None
    return way if way in ("auto", "thorough") else float(way)


def measure(path: Path, case: Case, recipe: str, way: str, damage: str, gpu: str | None) -> Result:
    """Quantize and measure one model in one way. Raises OnnxfqError if it is refused."""
    folder = Folder(path)
    with tempfile.TemporaryDirectory() as work:
        model, file = path / case.file, Path(work) / "quantized.onnx"
        if case.raised:
            model = Path(work) / "raised.onnx"
            onnx.save(raised_to_float32(path / case.file), model)
        feeds = folder.feeds(case)
        if damage == "sample":
            feeds = enlarge_sample(feeds)
        elif damage:
            model = plant(damage, model, Path(work))
        processor = time.process_time()  # not the clock: others may use the machine
        result = onnxfq.quantize(
            model,
            feeds,
            file,
            recipe=recipe,
            accuracy=onnxfq.AccuracyTarget(repair=repair_of(way)),
            options=onnxfq.QuantizeOptions(gpus=(gpu,) if gpu else ()),
        )
        used = time.process_time() - processor
        if result.evaluation.notes:  # ONNX Runtime may have no kernels for the written form
            file = Path(work) / "simulated.onnx"
            onnxfq.save(result.simulation, file)
        figures = folder.measure(case, {case.file: file})
        task = folder.task_feeds(case)
        # A stream is taken as it is, and other data at equal distances.
        step = 1 if case.file in (SILERO, *DTLN) else -(-len(task) // TRUE_FEEDS)
        truth = onnxfq.evaluate(model, file, task[::step])
        unseen, printed_db = is_unseen(result), result.evaluation.lowest_db
        return Result(figures, unseen, printed_db, truth.lowest_db, result.trials, used)


def plant(damage: str, model: Path, work: Path) -> Path:
    """Return the file of a damaged model; the model itself for damage of the data."""
    write = DAMAGES.get(damage)
    if write is None:
        return model
    write(model, work / "damaged.onnx")
    return work / "damaged.onnx"


def measure_float(path: Path, case: Case, damage: str) -> tuple[float, ...]:
    """Return the figures of the float model."""
    with tempfile.TemporaryDirectory() as work:
        model = plant(damage, path / case.file, Path(work))
        return Folder(path).measure(case, {case.file: model} if damage else {})


def describe(trial: Trial) -> str:
    """Return a trial in a few words."""
    return f"{trial.remedy} {trial.figures}".strip() if trial.is_kept else ""


def merge_rows(out: Path | None, title: str, rows: Sequence[list[str]]) -> list[list[str]]:
    """Return the rows in a section of `out`, with `rows` in the places of their models and ways of repair."""
    text = out.read_text() if out is not None and out.exists() else ""
    section = text.partition(f"\n## {title}\n")[2].partition("\n## ")[0]
    lines = [line for line in section.splitlines() if line.startswith("| ")][2:]
    given = [[cell.strip() for cell in line.strip(" |").split(" | ")] for line in lines]
    return list({(row[0], row[3]): row for row in (*given, *rows)}.values())


def judge_estimates(rows: Sequence[Sequence[str]]) -> str:
    """Return how far the printed SQNR is from the true one, for three rows and more of a kind of samples."""
    lines = []
    for name, seen in (("unseen", False), ("seen, of too few to leave some out,", True)):
        errors = [float(row[5].split()[0]) - float(row[6]) for row in rows if (SEEN in row[5]) is seen]
        if len(errors) > 2:
            lines.append(
                f"Printed dB of samples that are {name} are {median(map(abs, errors)):.1f} dB from the true\n"
                f"ones, the median of {len(errors)} rows, and at most {max(errors):.1f} dB too good."
            )
    return "\n".join(lines)


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--only", default="", help="models whose path holds one of these texts, by commas")
    parser.add_argument("--ways", default="off,auto,thorough", help="words or dB of --repair, by commas")
    parser.add_argument("--recipe", default="tensorrt-int8")
    parser.add_argument("--damage", default="", help="words, by commas")
    parser.add_argument("--gpu", help="compute capability of the least GPU")
    parser.add_argument("--out", type=Path, help="put the rows into the section of this title")
    parser.add_argument("--title", default="Default", help="of the section")
    parser.add_argument("--jobs", type=int, default=1, help="models at once")
    parser.add_argument("--trials", action="store_true", help="print every trial")
    arguments = parser.parse_args()
    path, recipe = arguments.folder.resolve(), arguments.recipe
    damages, ways = arguments.damage.split(","), arguments.ways.split(",")
    rows: list[list[str]] = []
    cases = [case for case in CASES if any(text in case.file for text in arguments.only.split(","))]
    spawn = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(arguments.jobs, mp_context=spawn, max_tasks_per_child=1) as pool:
        floats = {
            (case.name, damage): pool.submit(measure_float, path, case, damage)
            for case, damage in product(cases, damages)
        }
        wanted = [
            (case, damage, way, pool.submit(measure, path, case, recipe, way, damage, arguments.gpu))
            for case, damage, way in product(cases, damages, ways)
        ]
        for case, damage, way, job in wanted:
            name, exact = f"{case.name}, {damage}".rstrip(", "), floats[case.name, damage].result()
            try:
                got = job.result()
            except onnxfq.OnnxfqError as error:
                print(f"| {name} | | {numbers(exact)} | {way} | {error} |", flush=True)
                continue
            figures = f"{got.printed_db:.1f}{'' if got.unseen else SEEN}", f"{got.true_db:.1f}"
            kept = ", ".join(filter(None, map(describe, got.trials)))
            cells = [name, " / ".join(case.metrics), numbers(exact), way, numbers(got.figures), *figures]
            rows.append([*cells, kept, f"{got.processor:.1f}"])
            print(f"| {' | '.join(rows[-1])} |", flush=True)
            for trial in got.trials if arguments.trials else ():
                words = "; ".join(trial.texts)
                line = f"{trial.remedy} {trial.result} {trial.figures} {trial.seconds:.1f} s {words}"
                print(f"    {line:.300}", flush=True)
    rows = merge_rows(arguments.out, arguments.title, rows)
    text = f"Recipe {Path(arguments.recipe).stem}. {machine()}.\n\n{markdown_table(HEADER, rows)}"
    text += f"\n\n{judge_estimates(rows)}\n"
    write_section(arguments.out, "Repair of trained networks", arguments.title, text)


if __name__ == "__main__":
    os.environ["OPENBLAS_NUM_THREADS"] = "1"  # processes started from here on inherit it
    main()
