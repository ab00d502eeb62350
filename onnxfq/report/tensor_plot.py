"""Heat maps of one tensor before and after quantization."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from onnxfq.errors import SpecError
from onnxfq.report.plot import new_figure
from onnxfq.support.files import replace_file

if TYPE_CHECKING:
    from matplotlib.figure import Figure

MAX_LABELLED = 256
"""Elements up to which each cell shows its value."""


def plot_quantization_errors(
    original: Any, quantized: Any, dequantized: Any, path: str | os.PathLike[str] | None = None
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
    arrays = [_matrix(one) for one in (original, quantized, dequantized)]
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
