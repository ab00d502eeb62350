"""HTML report in one self-contained page."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import jinja2
from markupsafe import Markup

from onnxfq.documents.scores import LOW_SQNR_DB
from onnxfq.pipeline import QuantizeResult
from onnxfq.report.plot import error_figure, figure_svg
from onnxfq.report.tensor_errors import tensor_errors
from onnxfq.stages.lost_values import find_lost_values
from onnxfq.support.files import write_text
from onnxfq.version import VERSION

_ENVIRONMENT = jinja2.Environment(
    loader=jinja2.PackageLoader("onnxfq.report"),
    autoescape=True,
    trim_blocks=True,
    lstrip_blocks=True,
    undefined=jinja2.StrictUndefined,
)


def render_report(result: QuantizeResult) -> str:
    """Return the report of one quantization as HTML: coverage, scores, tensors, and reasons for float."""
    rows = tensor_errors(result.model, result.plan, result.statistics, result.encodings)
    coverage = result.plan.coverage()
    # The last candidate is the written model if it was run, else its simulation.
    candidate = next(reversed(result.evaluation.candidates), None)
    outputs = candidate.outputs if candidate is not None else ()
    agreements = [one.top1_agreement for one in outputs if one.top1_agreement is not None]
    return _ENVIRONMENT.get_template("report.html.j2").render(
        result=result,
        name=Path(result.model.source).name,
        version=VERSION,
        low=LOW_SQNR_DB,
        quantized=sum(row.quantized for row in coverage),
        total=sum(row.total for row in coverage),
        candidate=candidate if outputs else None,
        worst=min(outputs, key=lambda one: one.sqnr_db, default=None),
        agreement=min(agreements, default=None),
        rows=sorted(rows, key=lambda row: row.sqnr_db),
        noisy=sum(row.sqnr_db < LOW_SQNR_DB for row in rows),
        plot=Markup(figure_svg(error_figure({result.recipe.name: rows}))),
        dynamic=[placement.tensor for placement in result.plan.placements if placement.spec.dynamic],
        given=[
            placement.tensor
            for placement in result.plan.activations
            if not placement.spec.dynamic and placement.tensor not in result.statistics.tensors
        ],
        lost=find_lost_values(result.plan, result.statistics, result.encodings),
        reasons=Counter(skipped.why for skipped in result.plan.skipped).most_common(),
    )


def write_report(result: QuantizeResult, path: str | Path) -> None:
    """Write the report to `path`, whole or not at all."""
    write_text(path, render_report(result))
