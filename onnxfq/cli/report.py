"""`onnxfq report`: results as one HTML page, side by side."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from onnxfq.cli.artifacts import node_data_paths
from onnxfq.cli.console import Printing
from onnxfq.cli.option import argument, option

_RESULTS = argument(
    "RESULT...", "JSON files that quantize, evaluate or sensitivity print with --json or write."
)
_ENGINE = option("FILE.json", "Add an engine's precision and times by layer, from `check --layers --json`.")
_NODE_DATA = option(
    "FILE.json",
    "Also write the noise of the layers of one result for Model Explorer, sensitivity and bits next to it.",
)


def report(
    results: Annotated[list[Path], _RESULTS],
    output: Annotated[Path, option("FILE.html", "Write this page.", "--output", "-o")] = Path("report.html"),
    engine: Annotated[Path | None, _ENGINE] = None,
    node_data: Annotated[Path | None, _NODE_DATA] = None,
    *,
    printer: Printing,
) -> None:
    """--json also prints what the page shows."""
    from onnxfq.report.contents import page_contents, read_result
    from onnxfq.report.html import render_page  # with jinja2, which only pages need
    from onnxfq.report.layer_table import write_node_data
    from onnxfq.report.record import ResultRecord
    from onnxfq.support.files import write_text

    stems = [path.stem for path in results]
    labels = stems if len(set(stems)) == len(stems) else [str(path.with_suffix("")) for path in results]
    read = [(label, read_result(path)) for label, path in zip(labels, results, strict=True)]
    if engine is not None:
        from onnxfq.report.engine_columns import add_engine

        read = add_engine(read, engine)
    overlays: list[Path] = []
    if node_data is not None:
        (_, result), *others = read
        if others or not isinstance(result, ResultRecord):
            raise typer.BadParameter("--node-data is for one result of quantize; give its file alone")
        overlays = write_node_data(result.table, node_data_paths(node_data))
    write_text(output, render_page(read))
    if printer.as_json:
        printer.report(page_contents(read))
    printer.wrote(output, *overlays)
