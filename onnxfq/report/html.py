"""HTML page of results: self-contained, one or several side by side."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import jinja2

from onnxfq.pipeline import QuantizeResult
from onnxfq.report.contents import AnyResult, page_contents
from onnxfq.report.record import quantize_record
from onnxfq.support.files import write_text
from onnxfq.support.records import to_json

# The filter `tojson` escapes all letters that could end a script or begin a tag.
_ENVIRONMENT = jinja2.Environment(
    loader=jinja2.PackageLoader("onnxfq.report"), autoescape=True, undefined=jinja2.StrictUndefined
)


def render_page(results: Sequence[tuple[str, AnyResult]]) -> str:
    """Return a page of results with their labels; its script draws tables and plots from the data inside."""
    contents = json.loads(to_json(page_contents(results)))
    title = " · ".join(dict.fromkeys(label for label, _ in results))
    return _ENVIRONMENT.get_template("page.html.j2").render(title=title, results=contents)


def render_report(result: QuantizeResult) -> str:
    """Return the page of one quantization."""
    return render_page([(Path(result.model.source).name, quantize_record(result))])


def write_report(result: QuantizeResult, path: str | Path) -> None:
    """Write the report of `result` to `path`, whole or not at all: one HTML page that needs no network.

    The float model and the fake-quant model run again on the samples that the result keeps.
    """
    write_text(path, render_report(result))
