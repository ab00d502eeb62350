"""The pictures of README and docs/, drawn by onnxfq from the network of the demo.

    python scripts/figures.py [FOLDER]

It writes to docs/figures by default, and prints the figures that the pages quote.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from pathlib import Path

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

import onnxfq
from onnxfq.calibration.calibrators.grid_error import range_sqnr_db
from onnxfq.calibration.statistics.bins import bin_edges
from onnxfq.cli.digits import PER_AXIS, DemoResult, run_demo
from onnxfq.documents.scores import CandidateScore
from onnxfq.numerics.qtypes import qtype_by_name
from onnxfq.report.calibrator_table import calibrator_rows
from onnxfq.report.tensor_rows import quantized_tensors
from onnxfq.targets.recipes import load_recipe

ROOT = Path(__file__).resolve().parent.parent
INK = "#7d8590"
"""A grey with the same contrast on a white and on a dark page."""

COLOURS = ("#009485", "#d9730d", "#5b8def", "#b05cc8", "#b8860b")
TENSOR = "relu_4"
"""An activation with a long tail, on which calibrators disagree."""


def draw_grids() -> Figure:
    """Draw int4 quantization of a line and its error, and the numbers of three 4-bit grids."""
    x = np.linspace(-1.3, 1.3, 2001, dtype=np.float32)
    int4 = qtype_by_name("int4")
    scale, _ = onnxfq.choose_qparams(-1.0, 1.0, int4, symmetric=True)
    uneven, zero_point = onnxfq.choose_qparams(-1 / 3, 1.0, int4, symmetric=False)
    y = onnxfq.fake_quantize(x, scale, qtype="int4")
    figure, (steps, numbers) = _figure(2, (6.8, 2.9), [1, 1.15])
    steps.plot(x, x, color=INK, linewidth=0.8)
    steps.plot(x, y, color=COLOURS[0], linewidth=1.8, label="on the grid of int4")
    steps.plot(x, y - x, color=COLOURS[1], linewidth=1.2, label="error")
    steps.set_xlabel("value x, in float")
    steps.set_ylabel("value on the grid, and error")
    _legend(steps, "upper left")
    grids = {
        "float4e2m1": onnxfq.fake_quantize(x, np.float32(1 / 6), qtype="float4e2m1"),
        "int4, zero point": onnxfq.fake_quantize(x, uneven, zero_point, qtype="int4"),
        "int4": y,
    }
    for row, values in enumerate(grids.values()):
        found = np.unique(values)
        numbers.scatter(found, np.full(len(found), row), marker="|", s=240, color=COLOURS[row])
    numbers.set_yticks(range(len(grids)), list(grids))
    numbers.set_ylim(-0.6, len(grids) - 0.4)
    numbers.set_xlabel("values that the format holds")
    return figure


def draw_calibration(result: onnxfq.QuantizeResult) -> tuple[Figure, dict[str, float]]:
    """Draw the histogram of one activation, and its SQNR by the end of the range; return the SQNR."""
    seen = result.statistics[TENSOR]
    placed = next(one for one in result.plan.activations if one.tensor == TENSOR)
    edges = np.linspace(0, seen.rmax, 80)
    low, high = bin_edges(seen.bins)
    values = (low + high) / 2
    figure, (counts, noise) = _figure(2, (6.8, 2.9), [1, 1.15])
    counts.hist(values, bins=edges, weights=seen.counts, color=COLOURS[0], alpha=0.75)
    counts.set_yscale("log")
    counts.set_xlabel(f"value of activation {TENSOR}")
    counts.set_ylabel("elements, of all samples")
    ends = np.linspace(0.3, 1.15, 120) * seen.rmax
    noise.plot(ends, [range_sqnr_db(seen, (0.0, end), placed.spec) for end in ends], color=INK, linewidth=1.2)
    rows = [row for row in calibrator_rows(result.plan, result.statistics) if row.tensor == TENSOR]
    for colour, name in zip(COLOURS, ("minmax", "mse", "percentile", "entropy"), strict=False):
        row = next(row for row in rows if row.calibrator.startswith(name))
        noise.plot(row.rmax, row.sqnr_db, "o", color=colour, label=row.calibrator)
    noise.set_xlabel("largest value that int8 holds")
    noise.set_ylabel("signal to noise (SQNR), dB")
    _legend(noise, "lower center")
    return figure, {row.calibrator: row.sqnr_db for row in rows}


def draw_noise(result: onnxfq.QuantizeResult, scores: CandidateScore) -> Figure:
    """Draw the SQNR of each activation by itself and in the running model, in the order of computation."""
    alone = {
        row.tensor: row.sqnr_db
        for row in quantized_tensors(result.model, result.plan, result.statistics, result.encodings)
        if row.role == "activation"
    }
    running = {one.output: one.sqnr_db for one in scores.tensors}
    names = [name for name in running if name in alone]
    figure, (axes,) = _figure(1, (6.8, 3.0), [1])
    axes.plot(names, [alone[name] for name in names], "o", color=COLOURS[0], label="rounded alone")
    axes.plot(
        names,
        [running[name] for name in names],
        "-s",
        color=COLOURS[1],
        markersize=4,
        label="in the int8 model",
    )
    axes.set_xlabel("activations, from the input to the logits")
    axes.set_ylabel("signal to noise (SQNR), dB")
    axes.set_ylim(bottom=20)
    axes.tick_params(axis="x", rotation=55, labelsize=8)
    axes.legend(loc="lower center", bbox_to_anchor=(0.5, 1.0), ncols=2, frameon=False, labelcolor=INK)
    return figure


def _evaluate(result: onnxfq.QuantizeResult, demo: Path) -> tuple[CandidateScore, ...]:
    """Return the scores of the quantized model, and of one with quantized weights alone.

    The latter is a simulation: no kernel of TensorRT has a Conv with float activations and int8 weights. The
    float model is the equalized one: activations between equalized layers have other sizes than in the file.
    """
    changes = {"activations": None, "target": "simulation"}
    recipe = load_recipe("tensorrt-int8").model_copy(update=changes)
    plan = onnxfq.make_plan(result.model, recipe)
    encodings = onnxfq.calibrate(result.model, plan, result.statistics)
    candidates = {"all": result.qdq, "weights": onnxfq.insert_fake_quantize(result.model, plan, encodings)}
    scores = onnxfq.evaluate(result.model.proto, candidates, demo / "test.npz", per_tensor=True)
    return scores.candidates


def _figure(columns: int, size: tuple[float, float], widths: list[float]) -> tuple[Figure, list[Axes]]:
    figure = Figure(figsize=size, layout="constrained")
    axes = list(figure.subplots(1, columns, width_ratios=widths, squeeze=False)[0])
    for one in axes:
        one.grid(color=INK, alpha=0.2)
        one.set_axisbelow(True)
        one.spines[["top", "right"]].set_visible(False)
    return figure, axes


def _legend(axes: Axes, place: str) -> None:
    axes.legend(loc=place, frameon=False, fontsize=9, labelcolor=INK)


def write_figures(folder: Path, demo: DemoResult) -> dict[str, float]:
    """Write all pictures to `folder` as SVG; return the SQNR in dB that the pages quote, by name.

    Args:
        folder: is there, or is made.
        demo: with its files, among them the float model and the test data.
    """
    inks = ("text.color", "axes.labelcolor", "axes.edgecolor", "xtick.color", "ytick.color")
    style = {"svg.hashsalt": "onnxfq", "svg.fonttype": "none", "font.size": 10, **dict.fromkeys(inks, INK)}
    folder.mkdir(parents=True, exist_ok=True)
    with matplotlib.rc_context(style):
        result = demo.results[PER_AXIS]
        whole, weights = _evaluate(result, demo.files[0].parent)
        calibration, quoted = draw_calibration(result)
        drawn = {"grids": draw_grids(), "calibration": calibration, "noise": draw_noise(result, whole)}
        for name, figure in drawn.items():
            figure.savefig(folder / f"{name}.svg", transparent=True, metadata={"Date": None, "Creator": None})
    lowest = min(one.sqnr_db for one in whole.tensors)
    outputs = {"weights": weights.outputs[0].sqnr_db, "all": whole.outputs[0].sqnr_db}
    return quoted | outputs | {"lowest": lowest, "logits": outputs["all"]}


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", nargs="?", type=Path, default=ROOT / "docs" / "figures")
    target = parser.parse_args().folder
    with tempfile.TemporaryDirectory() as name:
        print(json.dumps(write_figures(target, run_demo(name)), indent=2))
