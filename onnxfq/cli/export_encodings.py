"""`onnxfq export-encodings`: encodings in the file format of another tool."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from onnxfq.cli.console import Printing
from onnxfq.cli.options import OutputOption, PlanOption
from onnxfq.support.files import write_text


def export_encodings(
    encodings: Annotated[
        Path,
        typer.Argument(metavar="ENCODINGS", help="The encodings of `onnxfq calibrate`."),
    ],
    plan: PlanOption,
    output: OutputOption,
    to: Annotated[
        str,
        typer.Option("--to", metavar="NAME", help="Write this format: {formats}."),
    ],
    *,
    printer: Printing,
) -> None:
    """Write encodings in the format of another tool, and list the encodings that do not fit."""
    from onnxfq import interchange
    from onnxfq.documents.plan import Plan
    from onnxfq.interchange import load_encodings

    written = interchange.export_encodings(load_encodings(encodings), Plan.load(plan), to)
    write_text(output, written.text)
    lines = [f"exported   {written.tensors} of {written.tensors + len(written.lost)} tensors as {to}"]
    for why in dict.fromkeys(written.lost.values()):
        names = [name for name, its in written.lost.items() if its == why]
        lines.append(f"left out   {', '.join(names)}: {why}")
    record = {"format": to, "tensors": written.tensors, "left_out": written.lost, "files": [output]}
    printer.report(record, *lines)
    printer.wrote(output)
