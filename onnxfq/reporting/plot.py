"""The error plot: signal to quantization noise of every quantized tensor."""

from __future__ import annotations

import io
import math
from collections.abc import Mapping, Sequence
from pathlib import Path

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from onnxfq.files import replacing
from onnxfq.reporting.tensor_errors import TensorError

MAX_ROWS = 60
"""Tensors shown; of more, those with the most noise."""

_COLOURS = ("#c0504d", "#1f77b4", "#6aa84f", "#8064a2")
_MARKS = ("o", "s", "^", "D")


def error_figure(series: Mapping[str, Sequence[TensorError]], title: str) -> Figure:
    """Draw one dot a tensor and series: dB on the x axis, tensors in graph order on the y axis.

    series: label -> rows; rows of one tensor share a line. The further left, the more noise.
    """
    worst: dict[str, float] = {}
    roles: dict[str, str] = {}
    for rows in series.values():
        for row in rows:
            worst[row.tensor] = min(worst.get(row.tensor, math.inf), row.sqnr_db)
            roles[row.tensor] = row.role
    shown = set(sorted(worst, key=lambda name: worst[name])[:MAX_ROWS])
    names = [name for name in worst if name in shown]
    figure = Figure(figsize=(9, 1.6 + 0.24 * len(names)), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    position = {name: index for index, name in enumerate(names)}
    for number, (label, rows) in enumerate(series.items()):
        points = [(row.sqnr_db, position[row.tensor]) for row in rows if row.tensor in shown]
        # Nothing lies between a tensor without error and the rest; it stands at the right edge.
        finite = [x for x, _ in points if math.isfinite(x)]
        edge = max(finite, default=0.0) + 5.0
        axes.scatter(
            [min(x, edge) for x, _ in points],
            [y for _, y in points],
            label=_short(label),
            s=34,
            marker=_MARKS[number % len(_MARKS)],
            color=_COLOURS[number % len(_COLOURS)],
            alpha=0.85,
        )
    labels = [f"{_short(name)}  [{roles[name][0].upper()}]" for name in names]
    # A name may hold dollars, which matplotlib would read as mathematics.
    axes.set_yticks(range(len(names)), labels, fontsize=8, parse_math=False)
    axes.set_ylim(len(names) - 0.5, -0.5)
    axes.grid(alpha=0.3)
    axes.set_xlabel("signal to quantization noise, dB (left is worse)      [A] activation  [W] weight")
    hidden = len(worst) - len(names)
    axes.set_title(title + (f"\n{hidden} better tensors not shown" if hidden else ""), fontsize=11)
    for text in figure.legend(loc="outside lower center", ncols=4, fontsize=9).get_texts():
        text.set_parse_math(False)
    return figure


def save_figure(figure: Figure, path: str | Path) -> None:
    """Write the figure as PNG, whole or not at all."""
    with replacing(path) as temporary:
        figure.savefig(temporary, dpi=120, format="png", metadata={"Software": None})


def figure_svg(figure: Figure) -> str:
    """Return the figure as an <svg> element to put into a page."""
    stream = io.StringIO()
    figure.savefig(stream, format="svg", metadata={"Date": None, "Creator": None})
    text = stream.getvalue()
    return text[text.index("<svg") :]


def _short(name: str, length: int = 44) -> str:
    """Return the end of `name`, in letters that matplotlib's font has: Latin, Greek, Cyrillic."""
    shown = "".join(c if c < "\u0500" and c.isprintable() else ascii(c)[1:-1] for c in name)
    return shown if len(shown) <= length else "…" + shown[1 - length :]
