"""The HTML report: one self-contained page."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import jinja2
from markupsafe import Markup

from onnxfq.files import write_text
from onnxfq.pipeline import QuantizeResult
from onnxfq.reporting.plot import error_figure, figure_svg
from onnxfq.reporting.tensor_errors import tensor_errors

_ENVIRONMENT = jinja2.Environment(
    loader=jinja2.PackageLoader("onnxfq.reporting"),
    autoescape=True,
    trim_blocks=True,
    lstrip_blocks=True,
    undefined=jinja2.StrictUndefined,
)


def render_report(result: QuantizeResult) -> str:
    """Return the report of one quantization as HTML: coverage, scores, tensors, and why the rest is float."""
    rows = tensor_errors(result.model, result.plan, result.statistics, result.encodings)
    figure = error_figure({result.recipe.name: rows}, "Noise of each quantized tensor")
    return _ENVIRONMENT.get_template("report.html.j2").render(
        result=result,
        rows=sorted(rows, key=lambda row: row.sqnr_db),
        plot=Markup(figure_svg(figure)),
        dynamic=[placement.tensor for placement in result.plan.placements if placement.spec.dynamic],
        reasons=Counter(skipped.why for skipped in result.plan.skipped).most_common(),
    )


def write_report(result: QuantizeResult, path: str | Path) -> None:
    """Write the report to `path`, whole or not at all."""
    write_text(path, render_report(result))
