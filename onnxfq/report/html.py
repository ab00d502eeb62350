"""HTML page of results: self-contained, one or several side by side."""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Sequence
from pathlib import Path

import jinja2
from markupsafe import Markup

from onnxfq.quantizing.pipeline import QuantizeResult
from onnxfq.report.contents import AnyResult, page_contents
from onnxfq.report.record import quantize_record
from onnxfq.support.files import write_text
from onnxfq.support.records import to_json

_TEMPLATES = jinja2.PackageLoader("onnxfq.report")
# The filter `tojson` escapes all letters that could end a script or begin a tag.
_ENVIRONMENT = jinja2.Environment(loader=_TEMPLATES, autoescape=True, undefined=jinja2.StrictUndefined)


def _digest(text: str) -> Markup:
    """Return what the page's Content-Security-Policy calls an inline script or style of this text."""
    return Markup(f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'")


def _part(name: str) -> Markup:
    return Markup(_TEMPLATES.get_source(_ENVIRONMENT, name)[0])


_ENVIRONMENT.filters["digest"] = _digest


def render_page(results: Sequence[tuple[str, AnyResult]]) -> str:
    """Return a page of results with their labels; its script draws tables and plots from the data inside.

    The page loads nothing, and runs no script but its own.
    """
    contents = json.loads(to_json(page_contents(results)))
    title = " · ".join(dict.fromkeys(label for label, _ in results))
    parts = {"style": _part("page.css"), "script": _part("page.js")}
    return _ENVIRONMENT.get_template("page.html.j2").render(title=title, results=contents, **parts)


def render_report(result: QuantizeResult) -> str:
    """Return the page of one quantization."""
    return render_page([(Path(result.model.source).name, quantize_record(result))])


def write_report(result: QuantizeResult, path: str | Path) -> None:
    """Write the report of `result` to `path`, whole or not at all: one HTML page that needs no network.

    The float model and the fake-quant model run again on the samples that the result keeps.
    """
    write_text(path, render_report(result))
