"""Trained networks quantized without data, judged by samples of their task.

    python benchmarks/no_data.py FOLDER [--only TEXT,TEXT] [--out benchmarks/results/no_data.md]

FOLDER is the one of `real_models.py`. Ranges come from 8 samples of data (64 of streams), or from drawn
inputs. Statistics of BatchNormalization tell their scale. PREPARED has the scale of other networks, as users
know it.
"""

from __future__ import annotations

import argparse
import math
from pathlib import Path
from typing import Any

import onnx
from real_cases import CASES, DTLN, SILERO, Case, Feed, Folder
from timing import machine, markdown_table, write_section

import onnxfq
from onnxfq.errors import OnnxfqError, join_lines

RECIPE = "tensorrt-int8"
SAMPLES, STREAMED, DRAWN, OTHERS = 8, 64, 16, 8
"""Samples of data, feeds of streams, drawn inputs, and samples that judge."""

PREPARED: dict[str, dict[str, Any]] = {
    "mnist": {"scale": 1.0},
    "yolox": {"scale": 1.0},
    "espcn": {"scale": 1 / 255},
}
"""Preprocessing by a text in the file of a network."""

WAYS = {"data": None, "drawn": None, "drawn, min-max": "minmax"}
"""Inputs, and the calibrator in place of the recipe's."""

HEADER = ["network", "statistics", *(f"{way}: dB" for way in WAYS), "printed, of drawn inputs: dB"]


def thin(feeds: list[Feed], most: int) -> list[Feed]:
    """Return up to `most` feeds at equal distances."""
    return feeds[:: max(1, len(feeds) // most)][:most]


def measure(folder: Folder, case: Case) -> list[str]:
    """Return the row of a network."""
    model, is_stream = folder.path / case.file, case.file in (SILERO, *DTLN)
    feeds, others = folder.feeds(case), folder.task_feeds(case)
    feeds = feeds[:STREAMED] if is_stream else thin(feeds, SAMPLES)
    others = others[:STREAMED] if is_stream else thin(others, OTHERS)
    nodes = onnx.load(model, load_external_data=False).graph.node
    count = sum(node.op_type == "BatchNormalization" for node in nodes)
    prepared = next((how for text, how in PREPARED.items() if text in case.file), {})
    row = [
        case.name,
        str(count) if count else ", ".join(f"{k} {v:.3g}" for k, v in prepared.items()) or "none",
    ]
    told = ""
    for way, calibrator in WAYS.items():
        drawn = way != "data"
        data = onnxfq.DrawnInputs() if drawn else feeds
        options = onnxfq.DataOptions(limit=DRAWN, **prepared) if drawn else onnxfq.DataOptions()
        recipe = onnxfq.load_recipe(RECIPE)
        if calibrator is not None:
            recipe = recipe.override(activations={"calibrator": calibrator})
        try:
            result = onnxfq.quantize(
                model,
                data,
                recipe=recipe,
                accuracy=onnxfq.AccuracyTarget(repair=None),
                options=onnxfq.QuantizeOptions(data=options, threads=1),
            )
        except OnnxfqError as error:
            row.append(join_lines(str(error).partition(" (")[0]))
            continue
        row.append(f"{onnxfq.evaluate(model, result.simulation, others).lowest_db:.1f}")
        if way == "drawn" and result.evaluation.lowest_db < math.inf:
            told = f"{result.evaluation.lowest_db:.1f}"
    return [*row, told]


def main() -> None:
    """Measure all networks and print the page."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path)
    parser.add_argument("--only", default="", help="texts in the names of files")
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    rows = []
    for case in CASES:
        if (
            not case.raised
            and "dynamo" not in case.file
            and any(text in case.file for text in given.only.split(","))
        ):
            rows.append(measure(Folder(given.folder), case))
            print(*rows[-1], sep=" | ", flush=True)
    text = (
        f"SQNR of the worst deciding part on {OTHERS} samples of the task ({STREAMED} feeds of a stream), "
        f"which gave no range. Recipe {RECIPE}, repair off. Statistics is the number of "
        "BatchNormalization that tell the scale, or the scale that was given. Data are "
        f"{SAMPLES} samples, drawn {DRAWN} inputs.\n\n{markdown_table(HEADER, rows)}\n\n{machine()}."
    )
    write_section(given.out, "Without data", "Drawn inputs judged by samples of the task", text)


if __name__ == "__main__":
    main()
