"""Repair of a loss by each tool: int8 by its own default, and with each of its remedies.

    python benchmarks/peers/repair.py FOLDER --aimet PYTHON --nncf PYTHON --modelopt PYTHON [--out PAGE.md]

Channels of one resnet20 are scaled by 2^-6 to 2^6, as in `planted_damage.py`. Its float function is the same.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import onnx
from job import Folder, find_case, float_model, job_folder, labelled, parse, run, score
from planted_damage import scale_channels
from real_page import numbers
from timing import machine, markdown_table, write_section

ITERATIONS = 300
"""Steps of AdaRound for each layer; its default of 10,000 takes hours."""

MAX_DROP = 0.005
NETWORKS = ("resnet20_op13_bn", "ppocr_cls_op11", "ultraface_rfb320_op9")
DAMAGED = NETWORKS[0]

WAYS: tuple[tuple[str, str, str, dict[str, Any]], ...] = (
    ("onnxfq, `--repair off`", "onnxfq", "repair", {"way": None}),
    ("onnxfq, default", "onnxfq", "repair", {}),
    ("onnxfq, `--repair thorough`", "onnxfq", "repair", {"way": "thorough"}),
    ("AIMET", "aimet", "repair", {"equalize": False, "iterations": 0}),
    ("AIMET, cross-layer equalization", "aimet", "repair", {"equalize": True, "iterations": 0}),
    ("AIMET, AdaRound", "aimet", "repair", {"equalize": False, "iterations": ITERATIONS}),
    ("NNCF, no bias correction", "nncf", "quantize", {"bias_correction": "none"}),
    ("NNCF, fast bias correction (default)", "nncf", "quantize", {}),
    ("NNCF, bias correction", "nncf", "quantize", {"bias_correction": "full"}),
    ("NNCF, accuracy control", "nncf", "control", {"max_drop": MAX_DROP}),
    ("ModelOpt, max", "modelopt", "quantize", {}),
    ("ModelOpt, entropy", "modelopt", "quantize", {"method": "entropy"}),
)
"""Title, tool, task and options of each row."""


def model_of(folder: Folder, name: str, work: Path) -> onnx.ModelProto:
    """Return the float model of a case, damaged if it is DAMAGED."""
    case = find_case(name)
    if name != DAMAGED:
        return float_model(folder, case)
    scale_channels(folder.path / case.file, work / "damaged.onnx", one_channel=False)
    return onnx.load(work / "damaged.onnx")


def measure(folder: Folder, name: str, pythons: dict[str, str | None]) -> Iterator[list[str]]:
    """Yield a row for each way."""
    case = find_case(name)
    title = f"{name}, channels scaled" if name == DAMAGED else name
    yield [title, " / ".join(case.metrics), "float", numbers(score(folder, case, None)), "", ""]
    with tempfile.TemporaryDirectory() as work:
        model = model_of(folder, name, Path(work))
    for label, tool, task, options in WAYS:
        if tool != "onnxfq" and not pythons.get(tool):
            continue
        has_classes = "top-1" in case.metrics
        if task == "control" and not has_classes:
            continue
        feeds, labels = labelled(folder, case, 1) if has_classes else (folder.feeds(case), None)
        with job_folder(model, feeds, labels) as place:
            result = run(pythons.get(tool), tool, task, place, **options)
            figure = result.get("error") or numbers(score(folder, case, place / result["model"]))
        costs = ["", ""] if "error" in result else [f"{result['processor']:.1f}", str(result["sessions"])]
        yield [title, "", label, figure, *costs]


def main() -> None:
    """Measure, and write the section."""
    arguments = parse(__doc__, "aimet", "nncf", "modelopt")
    folder = Folder(arguments.folder.resolve())
    pythons = {name: getattr(arguments, name) for name in ("aimet", "nncf", "modelopt")}
    rows = [row for name in NETWORKS for row in measure(folder, name, pythons)]
    table = markdown_table(["network", "metric", "tool", "figure", "processor s", "sessions"], rows)
    text = f"""int8 weights and activations, calibrated on the calibration data and scored on other data; one
thread; {machine()}. AdaRound has {ITERATIONS} iterations for each layer. Accuracy control has the labels of
the calibration data and may lose {100 * MAX_DROP:g} points of top-1 on them.

{table}"""
    write_section(arguments.out, "onnxfq next to other tools", "Repair of a loss", text)


if __name__ == "__main__":
    main()
