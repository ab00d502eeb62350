"""Quantization of every model in a folder of real models, and its effect on their tasks.

    python benchmarks/real_models.py FOLDER [--only TEXT] [--out benchmarks/results/real_models.md]

FOLDER holds one folder a network with its model, its data and a README.txt, and `score.py` next to them:
`feeds(folder, model)` gives calibration feeds, `ev_s01` ... `ev_s11` the figures of the task, on data that
calibration does not see; they open models through the module's `S`, which is replaced here. Which
models, which functions and which figures: `real_cases.py`.

Each model is quantized in a separate process, with both recipes, and measured as float, with
FakeQuantize nodes and with Q/DQ, read back from the file that `onnxfq.quantize` wrote; then the
activations are calibrated again from the same statistics with `best_error` and the methods that it chooses
from, and all other recipes follow with FakeQuantize nodes. A model that onnxfq refuses stands in the table
with the reason.
"""

from __future__ import annotations

import argparse
import multiprocessing
import tempfile
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from real_cases import CASES, DTLN, DTLN_PAIR, Case, Folder, open_model, raised_to_float32
from real_page import FORMS, MEASURED, OTHERS, Outcome, Row, numbers, page
from timing import peak_bytes

import onnxfq
from onnxfq.calibration.calibrators.best_error import METHODS as BEST_ERROR
from onnxfq.layers.round_weights import round_weights
from onnxfq.support.files import write_text

COMPARED_FEEDS = 8
EXACT = onnxfq.RunOptions(exact=True)
METHODS = ("best_error", *BEST_ERROR)


def measure(path: Path, case: Case, work: Path) -> Row:
    """Quantize and measure one model; the files go to the folder `work`."""
    folder = Folder(path)
    model = path / case.file
    if case.raised:
        model = work / f"{case.name}.onnx"
        onnx.save(raised_to_float32(path / case.file), model)
    original = {case.file: model} if case.raised else {}
    row = Row(case, folder.measure(case, original))
    feeds = folder.feeds(case)
    for recipe in MEASURED:
        row.outcomes[recipe] = outcome = Outcome()
        files = form_files(work, case, recipe)
        try:
            result = onnxfq.quantize(model, feeds, files["Q/DQ"], recipe=recipe, options=EXACT)
        except onnxfq.OnnxfqError as error:
            outcome.refused = f"{type(error).__name__}: {error}".replace(f"{model}: ", "")
            continue
        row.peak_mb = row.peak_mb or peak_bytes() >> 20
        onnxfq.save(result.simulation, files["fake-quant"])
        outcome.coverage = ", ".join(str(one) for one in result.plan.coverage())
        scores = {one.candidate: one for one in result.evaluation.candidates}
        outcome.sqnr_db = min(output.sqnr_db for output in scores["Q/DQ"].outputs)
        outcome.figures = {form: folder.measure(case, {case.file: file}) for form, file in files.items()}
        compared = feeds[:COMPARED_FEEDS]
        outcome.differences = (
            largest_difference(files, compared),
            largest_difference(files, compared, packed=False),
        )
        if recipe == "tensorrt-int8":
            row.calibrators = dict(with_each_calibrator(folder, case, result, work))
            # They belong to another model if channels were smoothed.
            known = result.statistics if result.model.sha256 == onnxfq.load(model).sha256 else None
            row.recipes = dict(with_each_recipe(folder, case, model, feeds, known, work))
    return row


def form_files(work: Path, case: Case, recipe: str) -> dict[str, Path]:
    """Return the files of the forms of a quantized model."""
    return {form: work / f"{case.name}.{recipe}.{form.replace('/', '')}.onnx" for form in FORMS}


def with_each_calibrator(
    folder: Folder, case: Case, result: onnxfq.QuantizeResult, work: Path
) -> Iterator[tuple[str, tuple[float, ...]]]:
    """Yield the figures of the Q/DQ model for every calibrator, without running the float model again."""
    file = work / f"{case.name}.calibrator.onnx"
    for name in METHODS:
        encodings = onnxfq.calibrate(result.model, result.plan, result.statistics, name)
        onnxfq.save(onnxfq.insert_qdq(result.model, result.plan, encodings), file)
        yield name, folder.measure(case, {case.file: file})


def with_each_recipe(
    folder: Folder,
    case: Case,
    model: Path,
    feeds: Sequence[dict[str, Any]],
    statistics: onnxfq.Statistics | None,
    work: Path,
) -> Iterator[tuple[str, tuple[float, ...] | str]]:
    """Yield the figures of the fake-quant model by every other recipe, or why it has none.

    With a float16 remainder the figures are for the Q/DQ model, because the fake-quant model lacks casts.
    """
    file = work / f"{case.name}.recipe.onnx"
    for name in OTHERS:
        recipe, _, half = name.partition(" ")
        try:
            if half:
                made = onnxfq.quantize(
                    model,
                    feeds,
                    recipe=recipe,
                    sources=onnxfq.Sources(statistics=statistics),
                    options=onnxfq.QuantizeOptions(floats=onnxfq.FloatOptions("fp16")),
                ).qdq
            else:
                made = simulated(model, feeds, onnxfq.load_recipe(recipe), statistics)
            onnxfq.save(made, file)
            yield name, folder.measure(case, {case.file: file})
        except onnxfq.OnnxfqError as error:
            yield name, str(error).replace(f"{model}: ", "")


def simulated(
    model: Path, feeds: Sequence[dict[str, Any]], recipe: onnxfq.Recipe, statistics: onnxfq.Statistics | None
) -> onnx.ModelProto:
    """Return the fake-quant model of `quantize`, or of the stages for recipes of target simulation."""
    if recipe.target != "simulation":
        return onnxfq.quantize(model, feeds, recipe=recipe).simulation
    loaded = onnxfq.load(model)
    plan = onnxfq.make_plan(loaded, recipe)
    names = {placement.tensor for placement in plan.activations}
    if statistics is None or not names <= statistics.tensors.keys():
        statistics = onnxfq.collect_statistics(loaded, plan, onnxfq.open_feeds(loaded.proto, feeds))
    encodings = onnxfq.calibrate(loaded, plan, statistics)
    rounded = round_weights(loaded, plan, encodings, onnxfq.open_feeds(loaded.proto, feeds))
    return onnxfq.insert_fake_quantize(rounded.model, plan, rounded.encodings)


def largest_difference(files: dict[str, Path], feeds: Sequence[dict[str, Any]], packed: bool = True) -> float:
    """Return max |a - b| / max |a| over the feeds, of the worst output, without graph optimisation."""
    runs = [open_model(files[form], "ORT_DISABLE_ALL", packed) for form in FORMS]
    results = [[run(feed) for run in runs] for feed in feeds]
    worst = 0.0
    for output in range(len(results[0][0])):
        pairs = [(np.asarray(a[output], np.float64), np.asarray(b[output], np.float64)) for a, b in results]
        largest = max(float(np.abs(a).max()) for a, _ in pairs)
        worst = max(worst, max(float(np.abs(a - b).max()) for a, b in pairs) / (largest or 1.0))
    return worst


def measure_pair(path: Path, work: Path) -> Row:
    """Measure a pair of graphs with both quantized, from the files that `measure` wrote."""
    folder = Folder(path)
    cases = [case for case in CASES if case.file in DTLN]
    row = Row(DTLN_PAIR, folder.measure(DTLN_PAIR, {}))
    for recipe in MEASURED:
        files = {case.file: form_files(work, case, recipe) for case in cases}
        row.outcomes[recipe] = outcome = Outcome(coverage="as above")
        if not all(file.is_file() for forms in files.values() for file in forms.values()):
            outcome.refused = "one of its graphs is refused"
            continue
        for form in FORMS:
            replaced = {name: forms[form] for name, forms in files.items()}
            outcome.figures[form] = folder.measure(DTLN_PAIR, replaced)
    return row


def run_all(path: Path, cases: Sequence[Case], work: Path) -> list[Row]:
    """Measure every case in a new process, to separate peak memory, and print progress."""
    spawn = multiprocessing.get_context("spawn")
    rows = []
    jobs = [(case.name, measure, (path, case, work)) for case in cases]
    if {case.file for case in cases} >= set(DTLN):
        place = max(i for i, case in enumerate(cases) if case.file in DTLN) + 1
        jobs.insert(place, (DTLN_PAIR.name, measure_pair, (path, work)))
    for number, (name, job, arguments) in enumerate(jobs, 1):
        start = time.perf_counter()
        with ProcessPoolExecutor(1, mp_context=spawn) as pool:
            rows.append(pool.submit(job, *arguments).result())
        one = rows[-1].outcomes["tensorrt-int8"]
        what = one.refused or f"{numbers(rows[-1].float_figures)} -> {numbers(one.figures['Q/DQ'])}"
        print(f"[{number}/{len(jobs)}] {name}: {what} ({time.perf_counter() - start:.0f} s)", flush=True)
    return rows


def main() -> None:
    """Measure and write the page."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--only", default="", help="models whose path holds this text")
    parser.add_argument("--out", type=Path, help="write the tables to this Markdown file")
    arguments = parser.parse_args()
    if not (arguments.folder / "score.py").is_file():
        parser.error(f"no score.py in {arguments.folder}; the top of this script says what the folder holds")
    cases = [case for case in CASES if arguments.only in case.file]
    with tempfile.TemporaryDirectory() as work:
        rows = run_all(arguments.folder.resolve(), cases, Path(work))
    text = page(rows)
    print(text)
    if arguments.out:
        write_text(arguments.out, text)


if __name__ == "__main__":
    main()
