"""`onnxfq report`: results as one HTML page, side by side."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from onnxfq.cli.console import Printing
from onnxfq.support.files import write_text


def report(
    results: Annotated[
        list[Path],
        typer.Argument(
            metavar="RESULT...",
            help="JSON files that quantize, evaluate or sensitivity print with --json or write.",
        ),
    ],
    output: Annotated[
        Path, typer.Option("--output", "-o", metavar="FILE.html", help="Write this page.")
    ] = Path("report.html"),
    *,
    printer: Printing,
) -> None:
    """Write one HTML page of results, side by side: verdicts, noise along the graph, and layers.

    --json also prints what the page shows.
    """
    from onnxfq.report.contents import page_contents, read_result
    from onnxfq.report.html import render_page  # with jinja2, which only pages need

    stems = [path.stem for path in results]
    labels = stems if len(set(stems)) == len(stems) else [str(path.with_suffix("")) for path in results]
    read = [(label, read_result(path)) for label, path in zip(labels, results, strict=True)]
    write_text(output, render_page(read))
    if printer.as_json:
        printer.report(page_contents(read))
    printer.wrote(output)
