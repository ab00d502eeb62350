"""SQNR plot of quantized tensors."""

from __future__ import annotations

import io
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from onnxfq.report.tensor_errors import TensorError
from onnxfq.support.files import replace_file

if TYPE_CHECKING:
    from matplotlib.figure import Figure

MAX_ROWS = 60
"""Limit of tensors; the ones with the most noise are shown."""

_COLOURS = ("#d95f02", "#2b7bba", "#3f9b46", "#8064a2")
_MARKS = ("o", "s", "^", "D")
# A grey used nowhere else: in a page the colour of the surrounding text replaces it.
_INK = "#202122"


def error_figure(series: Mapping[str, Sequence[TensorError]], title: str = "") -> Figure:
    """Draw one mark per tensor and series: dB on the x axis, tensors in graph order on the y axis.

    A mark further left means more noise. A single series marks activations and weights differently; several
    series use letters after the names.

    Args:
        series: rows by label; rows of one tensor share a line.
        title: heading of the figure.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg  # slow to import, and not for every command
    from matplotlib.figure import Figure

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
    finite = [row.sqnr_db for rows in series.values() for row in rows if math.isfinite(row.sqnr_db)]
    # A tensor without error has infinite SQNR; its mark is at the right edge.
    edge = max(finite, default=0.0) + 5.0
    single = len(series) == 1
    drawn = _group_by_role(next(iter(series.values()))) if single else series
    for number, (label, rows) in enumerate(drawn.items()):
        points = [(row.sqnr_db, position[row.tensor]) for row in rows if row.tensor in shown]
        if not points:
            continue
        colour = _COLOURS[number % len(_COLOURS)]
        axes.scatter(
            [min(x, edge) for x, _ in points],
            [y for _, y in points],
            label=_short(label),
            # If marks coincide, the first is a ring around the others.
            s=58 if not number else 26,
            marker=_MARKS[number % len(_MARKS)],
            facecolor="none" if not number else colour,
            edgecolor=colour,
            linewidths=1.5,
            zorder=3,
        )
    labels = [_short(name) + ("" if single else f"  [{roles[name][0].upper()}]") for name in names]
    # A name may hold dollar signs, which matplotlib would parse as mathematics.
    axes.set_yticks(range(len(names)), labels, fontsize=8, parse_math=False)
    axes.set_ylim(len(names) - 0.5, -0.5)
    axes.grid(color=_INK, alpha=0.15)
    letters = "" if single else "      [A] activation  [W] weight"
    axes.set_xlabel(f"signal to quantization noise, dB (left is worse){letters}")
    hidden = len(worst) - len(names)
    heading = [title, f"{hidden} better tensors not shown" if hidden else ""]
    axes.set_title("\n".join(filter(None, heading)), fontsize=11)
    legend = figure.legend(loc="outside lower center", ncols=4, fontsize=9, frameon=False)
    for text in legend.get_texts():
        text.set_parse_math(False)
    for text in (axes.title, axes.xaxis.label, *legend.get_texts()):
        text.set_color(_INK)
    axes.tick_params(colors=_INK, length=0)
    for spine in axes.spines.values():
        spine.set_visible(False)
    return figure


def save_figure(figure: Figure, path: str | Path) -> None:
    """Write the figure as PNG, whole or not at all."""
    with replace_file(path) as temporary:
        figure.savefig(temporary, dpi=120, format="png", metadata={"Software": None})


def figure_svg(figure: Figure) -> str:
    """Return the figure as an <svg> element for a page, in the colour of the page's text.

    Its letters are text, so that they can be searched and copied. Equal figures give equal bytes.
    """
    import matplotlib

    stream = io.StringIO()
    with matplotlib.rc_context({"svg.fonttype": "none", "svg.hashsalt": "onnxfq"}):
        figure.savefig(stream, format="svg", transparent=True, metadata={"Date": None, "Creator": None})
    text = stream.getvalue()
    return text[text.index("<svg") :].replace(_INK, "currentColor")


def _group_by_role(rows: Sequence[TensorError]) -> dict[str, list[TensorError]]:
    return {
        f"{role}s": [row for row in rows if row.role == role] for role in dict.fromkeys(r.role for r in rows)
    }


def _short(name: str, length: int = 44) -> str:
    """Return the end of `name`, in letters of matplotlib's font: Latin, Greek, Cyrillic."""
    shown = "".join(c if c < "\u0500" and c.isprintable() else ascii(c)[1:-1] for c in name)
    return shown if len(shown) <= length else "…" + shown[1 - length :]
