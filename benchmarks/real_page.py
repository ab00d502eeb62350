"""Page of `real_models.py`: method, tables and bad results."""

from __future__ import annotations

import datetime
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
import onnx
from real_cases import Case
from timing import machine, markdown_table

import onnxfq
from onnxfq.calibration.calibrators import DEFAULT_CALIBRATOR
from onnxfq.runtime.ort import onnxruntime

FORMS = ("fake-quant", "Q/DQ")
MEASURED = ("tensorrt-int8", "onnxruntime-int8")
"""The recipes of the page: 8 bits, run by ONNX Runtime."""

OTHERS = (
    "tensorrt-int8 fp16",
    "tensorrt-fp8",
    "tensorrt-int4",
    "tensorrt-int8-weights",
    "tensorrt-mxfp8",
    "tensorrt-nvfp4",
    "onnxruntime-uint8-dynamic",
    "mxint8",
    "mxfp6",
    "mxfp4",
)
"""All other recipes with task figures; fp16: with a float16 remainder."""

BAD = 0.05
"""A figure that is worse than the float model's by more than this share is named above the tables."""

INTRODUCTION = """\
# Real models

{models} models of trained public networks are quantized with `onnxfq.quantize(MODEL, DATA, OUT)` and
measured on their own tasks, with data that calibration did not see. It is one run without tuning: built-in
recipes, no overrides. Remedies are tried as by default (`--repair auto`).
Models and data are not part of this repository. A scorer next to the data computes the figures of the tasks.

    python benchmarks/real_models.py FOLDER --out benchmarks/results/real_models.md

{date}; onnxfq {onnxfq}, onnxruntime {onnxruntime}, onnx {onnx}, numpy {numpy}; {machine};
CPU only, the tasks on one thread.

- *quantized*: the number of Conv, ConvTranspose, Gemm, MatMul and residual Add in low precision, and their
  total. Recurrent operators are counted and stay in float.
- *SQNR*: signal to quantization noise of the Q/DQ model's worst output, from `result.evaluation`. It uses at
  most 128 samples of the calibration data.
- *float* runs at onnxruntime's default optimisation. *fake-quant* (FakeQuantize nodes) and *Q/DQ* (the
  written file, loaded again) run at ORT_ENABLE_BASIC.
- *ORT all*, *ORT C/M*: onnxruntime 1.31.1 `quantize_static`, from the README files next to the data: QDQ,
  int8 symmetric, per channel, MinMax; all its default operators, or only Conv, ConvTranspose, MatMul and
  Gemm. Graphs below opset 13 were raised to 17 first. This script does not repeat these runs. The files give
  one figure for two exports of one network. For yolox_nano they have better settings than these two: uint8
  asymmetric, Conv only, 0.481 / 0.56.
- The sets are small: one box of yolox_nano is 0.0096 of its recall.
- Both graphs of dtln are calibrated with the inputs and states of the float pair while it enhances 15 s of
  speech at two noise levels. In the rows of one graph the other stays float. An SI-SDR above float means that
  the output is nearer to the clean speech, not that it is nearer to the output of the float model.
"""


CALIBRATORS_TEXT = """\
The table gives the task figures of the Q/DQ model, recipe tensorrt-int8, with `best_error` and its candidate
methods for activations, all from the same statistics, with the nearest weights.
"""

RECIPES_TEXT = """\
The table gives the task figures with every other recipe, measured with FakeQuantize nodes, which compute the
same numbers as the written model. *tensorrt-int8 fp16* is the Q/DQ model with its non-quantized part in
float16, at ORT_DISABLE_ALL. A dash means that the recipe rejects the model, for the reason below the table.
"""

AGREEMENT_TEXT = """\
The table gives the largest difference between the outputs of the two forms at ORT_DISABLE_ALL, relative to
the output's largest magnitude. onnxruntime packs the constant weights of the fake-quant model, but not the
weights that a DequantizeLinear gives. A packed MatMul adds in a different order, and a different last bit can
move a value by a whole step of the next grid. *unpacked*: with `session.disable_prepacking`. Memory: the peak
of the process up to the end of the first `quantize`, data and float measurement included.
"""


@dataclass
class Outcome:
    """Result of one recipe for one model; `refused` holds the reason if there is none.

    sqnr_db: of the Q/DQ model's worst output on the first feeds. figures: of the task, by form.
    differences: largest |fake-quant - Q/DQ| over the output's largest magnitude, of the worst output, with
    and without onnxruntime's packing of weights.
    """

    refused: str = ""
    coverage: str = ""
    sqnr_db: float | None = None
    figures: dict[str, tuple[float, ...]] = field(default_factory=dict)
    differences: tuple[float, float] | None = None


@dataclass
class Row:
    """All measurements of one model.

    calibrators: figures of the Q/DQ model, recipe tensorrt-int8. recipes: figures by each other recipe, or
    the reason why there are none.
    """

    case: Case
    float_figures: tuple[float, ...]
    outcomes: dict[str, Outcome] = field(default_factory=dict)
    calibrators: dict[str, tuple[float, ...]] = field(default_factory=dict)
    recipes: dict[str, tuple[float, ...] | str] = field(default_factory=dict)
    peak_mb: int = 0


def page(rows: Sequence[Row]) -> str:
    """Return the whole page in Markdown."""
    parts = [
        INTRODUCTION.format(
            models=len({row.case.file for row in rows if row.case.file}),
            date=datetime.date.today().isoformat(),
            onnxfq=onnxfq.__version__,
            onnxruntime=onnxruntime.__version__,
            onnx=onnx.__version__,
            numpy=np.__version__,
            machine=machine(),
        ),
        "## Weak results\n",
        f"These Q/DQ figures are more than {BAD:.0%} worse than float (calibrators: recipe tensorrt-int8):\n",
        "\n".join(bad(rows)) or "None.",
        "\nRejected models, with the reason:\n",
        "\n".join(refusals(rows)) or "None.",
    ]
    for recipe in MEASURED:
        parts += [f"\n## Recipe {recipe}\n", recipe_table(rows, recipe)]
    parts += ["\n## Calibrators\n", CALIBRATORS_TEXT, calibrator_table(rows)]
    parts += ["\n## Every other recipe\n", RECIPES_TEXT, other_table(rows), "", *other_refusals(rows)]
    parts += ["\n## Fake-quant compared with Q/DQ\n", AGREEMENT_TEXT, agreement_table(rows)]
    return "\n".join(parts) + "\n"


def numbers(figures: Sequence[float]) -> str:
    """Return several figures of one model as one cell."""
    return " / ".join(f"{value:.2f}" if abs(value) >= 5 else f"{value:.4f}" for value in figures)


def bad(rows: Sequence[Row]) -> Iterator[str]:
    """Yield a line for every model and recipe, or calibrator, with a figure much worse than float."""
    for row in rows:
        found = {name: one.figures.get("Q/DQ", ()) for name, one in row.outcomes.items()}
        # The recipe's own calibrator is there already.
        others = {name: figures for name, figures in row.calibrators.items() if name != DEFAULT_CALIBRATOR}
        found |= {f"calibrator {name}": figures for name, figures in others.items()}
        for name, figures in found.items():
            worse = [
                f"{metric} {numbers([was])} -> {numbers([now])}"
                for metric, was, now in zip(row.case.metrics, row.float_figures, figures, strict=False)
                if (now - was if "lower is better" in metric else was - now) > BAD * abs(was)
            ]
            if worse:
                yield f"- {row.case.name}, {name}: {'; '.join(worse)}"


def refusals(rows: Sequence[Row]) -> list[str]:
    """Return the reasons for refused models, one line per model and reason."""
    reasons = [(row.case.name, one.refused) for row in rows for one in row.outcomes.values() if one.refused]
    return [f"- {model}: {reason}" for model, reason in dict.fromkeys(reasons)]


def recipe_table(rows: Sequence[Row], recipe: str) -> str:
    """Return the main table for one recipe."""
    header = ["model", "quantized", "SQNR dB", "metric", "float", *FORMS, "ORT all", "ORT C/M"]
    lines = []
    for row in rows:
        one = row.outcomes[recipe]
        coverage = "rejected, see above" if one.refused else one.coverage
        forms = [numbers(one.figures.get(form, ())) or "-" for form in FORMS]
        tasks = [" / ".join(row.case.metrics), numbers(row.float_figures), *forms]
        peers = [row.case.peer or "-", row.case.peer_matrix or "-"]
        lines.append([row.case.name, coverage, cell(one.sqnr_db, ".1f"), *tasks, *peers])
    return markdown_table(header, lines)


def calibrator_table(rows: Sequence[Row]) -> str:
    """Return the task figures of the Q/DQ model for each calibrator."""
    names = sorted({name for row in rows for name in row.calibrators})
    lines = []
    for row in rows:
        if row.calibrators:
            figures = [numbers(row.calibrators[name]) for name in names]
            lines.append([row.case.name, " / ".join(row.case.metrics), numbers(row.float_figures), *figures])
    return markdown_table(["model", "metric", "float", *names], lines)


def other_table(rows: Sequence[Row]) -> str:
    """Return the task figures by each other recipe."""
    lines = []
    for row in (row for row in rows if row.recipes):
        found = [row.recipes.get(name, "") for name in OTHERS]
        figures = ["-" if isinstance(one, str) else numbers(one) for one in found]
        lines.append([row.case.name, " / ".join(row.case.metrics), numbers(row.float_figures), *figures])
    return markdown_table(["model", "metric", "float", *OTHERS], lines)


def other_refusals(rows: Sequence[Row]) -> list[str]:
    """Return why the other recipes refuse models, one line per model and reason."""
    reasons: dict[tuple[str, str], list[str]] = {}
    for row in rows:
        for name, found in row.recipes.items():
            if isinstance(found, str):
                reasons.setdefault((row.case.name, found), []).append(name)
    return [f"- {model}, {', '.join(names)}: {why}" for (model, why), names in reasons.items()]


def agreement_table(rows: Sequence[Row]) -> str:
    """Return the table of differences between fake-quant and Q/DQ, and of memory."""
    kinds = [f"{recipe}{kind}" for recipe in MEASURED for kind in ("", ", unpacked")]
    header = ["model", *kinds, "peak resident MB"]
    lines = []
    for row in rows:
        if row.calibrators:
            differences = [row.outcomes[recipe].differences or (None, None) for recipe in MEASURED]
            cells = [cell(value, ".1e") for pair in differences for value in pair]
            lines.append([row.case.name, *cells, str(row.peak_mb or "-")])
    return markdown_table(header, lines)


def cell(value: float | None, form: str) -> str:
    """Return a number as a cell, or a dash."""
    return "-" if value is None else "0" if value == 0 else format(value, form)
