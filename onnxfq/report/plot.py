"""Figures of results, and heat maps of one tensor before and after quantization, in matplotlib."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from onnxfq.documents.layers import TensorRow
from onnxfq.documents.scores import LOW_SQNR_DB
from onnxfq.documents.sensitivity import Sensitivity
from onnxfq.errors import PlanError, RuntimeLibraryError, SpecError, nearest
from onnxfq.quantizing.pipeline import QuantizeResult
from onnxfq.report.tensor_rows import tensor_row
from onnxfq.support.files import replace_file

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_GRID, _OTHERS, _VALUES = "#2b7bba", "#d95f02", "#59636e"


def new_figure(width: float, height: float) -> Figure:
    """Return an empty figure of a size in inches. Raises RuntimeLibraryError without matplotlib."""
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg  # slow, and not for every command
        from matplotlib.figure import Figure
    except ImportError:
        raise RuntimeLibraryError(
            "figures need matplotlib, which is not installed; run pip install 'onnxfq[plot]'"
        ) from None
    figure = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(figure)
    return figure


def histogram(result: QuantizeResult, tensor: str) -> Figure:
    """Draw the values of a quantized tensor with its grid, and the range of every calibrator.

    The counts are on a logarithmic axis. Lines mark the range that was taken, dots the ranges of others.

    Args:
        result: of `quantize`.
        tensor: name of an observed activation or of a weight.

    Raises PlanError for a tensor that is not quantized or has no values, with the nearest names.
    """
    row = _find_row(result, tensor)
    if row.edges is None or row.grid is None or not row.counts:
        raise PlanError(f"tensor {tensor!r} has no histogram: it was not observed; quantize with data")
    figure = new_figure(8, 3.6)
    axes = figure.add_subplot()
    edges = np.linspace(*row.edges, len(row.counts) + 1)
    axes.stairs(row.counts, edges, fill=True, color=_VALUES)
    axes.set_yscale("symlog")
    axes.set_xlabel("value")
    axes.set_ylabel("count, logarithmic")
    axes.axvspan(*row.grid, color=_GRID, alpha=0.12, label=f"grid, {row.format}")
    for end in row.grid:
        axes.axvline(end, color=_GRID, linestyle="--", linewidth=1.2)
    taken = row.calibrator.removeprefix("best_error: ")
    for number, (name, ends) in enumerate(row.thresholds.items()):
        colour = _GRID if name == taken else _OTHERS
        height = 0.97 - 0.05 * number
        axes.plot(ends, [height] * 2, "|", color=colour, transform=axes.get_xaxis_transform())
        axes.annotate(
            name, (ends[1], height), xycoords=axes.get_xaxis_transform(), fontsize=7, ha="right", va="center"
        )
    title = f"{tensor}: {row.calibrator}" + ("" if row.sqnr_db is None else f", {row.sqnr_db:.1f} dB")
    axes.set_title(title, fontsize=10, parse_math=False)
    axes.legend(loc="upper left", fontsize=8)
    return figure


def channel_ranges(result: QuantizeResult, tensor: str) -> Figure:
    """Draw the largest magnitude of each channel of an equalized tensor, before and after.

    Args:
        result: of `quantize`.
        tensor: name of an activation with a scale for each channel.

    Raises PlanError for a tensor whose channels were not observed.
    """
    row = _find_row(result, tensor)
    if not row.channels:
        known = [name for name in result.statistics.channels if name in result.encodings]
        hint = nearest(tensor, known) or "; none was equalized"
        raise PlanError(f"tensor {tensor!r} has no ranges of channels: it was not equalized{hint}")
    figure = new_figure(8, 3.2)
    axes = figure.add_subplot()
    places = np.arange(len(row.channels))
    axes.bar(places - 0.2, row.channels, 0.4, color=_VALUES, label="as observed")
    axes.bar(places + 0.2, row.equalized_channels, 0.4, color=_GRID, label="equalized")
    axes.set_yscale("log")
    axes.set_xlabel("channel, or run of channels")
    axes.set_ylabel("largest magnitude")
    axes.set_title(tensor, fontsize=10, parse_math=False)
    axes.legend(fontsize=8)
    return figure


def sensitivity(found: Sensitivity, shown: int = 30) -> Figure:
    """Draw the SQNR of the outputs with each group of layers quantized alone, the worst first.

    Args:
        found: of `onnxfq.sensitivity`, or of a result that has one.
        shown: number of groups.
    """
    groups = found.groups[:shown]
    figure = new_figure(8, 1.2 + 0.24 * len(groups))
    axes = figure.add_subplot()
    finite = [group.alone_db for group in groups if np.isfinite(group.alone_db)]
    edge = max(finite, default=0.0) + 5.0
    values = [min(group.alone_db, edge) for group in groups]
    colours = [_OTHERS if value < LOW_SQNR_DB else _GRID for value in values]
    axes.barh(range(len(groups)), values, color=colours)
    names = [", ".join(group.modules or group.nodes)[-60:] for group in groups]
    axes.set_yticks(range(len(groups)), names, fontsize=8, parse_math=False)
    axes.set_ylim(len(groups) - 0.5, -0.5)
    axes.axvline(found.sqnr_db if np.isfinite(found.sqnr_db) else edge, color=_VALUES, linestyle="--")
    axes.set_xlabel("SQNR of the outputs with only this group quantized, dB; the line: with all")
    return figure


def _find_row(result: QuantizeResult, tensor: str) -> TensorRow:
    placements = {placement.tensor: placement for placement in result.plan.placements}
    if tensor not in placements:
        raise PlanError(f"tensor {tensor!r} is not quantized{nearest(tensor, placements)}")
    return tensor_row(result.model, placements[tensor], result.statistics, result.encodings)


MAX_LABELLED = 256
"""Elements up to which each cell shows its value."""


def plot_quantization_errors(
    original: ArrayLike,
    quantized: ArrayLike,
    dequantized: ArrayLike,
    path: str | os.PathLike[str] | None = None,
) -> Figure:
    """Draw four heat maps: the original, its integers, the dequantized values, and their absolute error.

    Args:
        original: tensor of NumPy or torch; more than two axes are flattened to [first axis, rest].
        quantized: its integers.
        dequantized: their values.
        path: image file to write, of any type that Matplotlib knows; None writes none.

    Raises SpecError for different shapes, OutputError if the file cannot be written,
    RuntimeLibraryError without matplotlib.
    """
    arrays = [_matrix(tensor) for tensor in (original, quantized, dequantized)]
    if len({array.shape for array in arrays}) != 1:
        shapes = ", ".join(str(list(array.shape)) for array in arrays)
        raise SpecError(f"the three tensors must have one shape, got {shapes}")
    arrays.append(np.abs(arrays[0] - arrays[2]))
    figure = new_figure(14, 3.8)
    titles = ("original", "quantized", "dequantized", "absolute error")
    for axes, array, title in zip(figure.subplots(1, 4), arrays, titles, strict=True):
        image = axes.imshow(array, cmap="viridis" if title != "absolute error" else "magma", aspect="auto")
        figure.colorbar(image, ax=axes)
        axes.set_title(title)
        axes.set_xlabel("element of the other axes")
        axes.set_ylabel("index of the first axis")
        for row, column in np.ndindex(array.shape) if array.size <= MAX_LABELLED else ():
            light = image.norm(array[row, column]) > 0.6
            colour = "black" if light else "white"
            axes.text(
                column, row, f"{array[row, column]:.4g}", ha="center", va="center", color=colour, size=6
            )
    if path is not None:
        with replace_file(Path(path)) as temporary:
            figure.savefig(temporary, format=Path(path).suffix[1:] or "png")
    return figure


def _matrix(values: Any) -> NDArray[np.float64]:
    if hasattr(values, "detach"):
        values = values.detach().cpu().double().numpy()
    array = np.asarray(values, np.float64)
    return array.reshape(array.shape[0] if array.ndim > 1 else 1, -1)
