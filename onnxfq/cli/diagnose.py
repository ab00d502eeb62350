"""`onnxfq diagnose`: what is wrong with a quantized file that somebody else made."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from onnxfq.cli.console import Printing
from onnxfq.cli.data_options import OptionalDataOption
from onnxfq.cli.options import CustomOpsOption, ModelArgument
from onnxfq.cli.run_options import RunningOnCpu
from onnxfq.support.files import write_text


def diagnose(
    model: ModelArgument,
    reference: Annotated[
        Path | None,
        typer.Option("--float", metavar="FLOAT", help="Compare with the float model that it was made of."),
    ] = None,
    data: OptionalDataOption = None,
    labels: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Measure top-1 with these classes, one per row of --data."),
    ] = None,
    metric: Annotated[
        str | None,
        typer.Option(metavar="MODULE:FUNCTION", help="Measure this metric of the task; higher is better."),
    ] = None,
    target: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="Use the rules of this target too: {checked_targets}."),
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", metavar="OUT", help="Write the model with all repairs."),
    ] = None,
    recipe_out: Annotated[
        Path | None,
        typer.Option(metavar="FILE.yaml", help="Write a recipe that makes such a file from FLOAT."),
    ] = None,
    report: Annotated[
        Path | None,
        typer.Option(metavar="FILE.html", help="Write an HTML page of the causes and their tensors."),
    ] = None,
    custom_ops: CustomOpsOption = None,
    *,
    running: RunningOnCpu,
    printer: Printing,
) -> None:
    """Name what is wrong with a quantized MODEL of any tool, ranked by what it costs, and repair it.

    Without FLOAT the float form is derived from MODEL. Without --data only MODEL is read, and nothing is
    measured. Repairs are measured on samples that did not choose them; -o keeps every scale that no repair
    names.
    """
    from onnxfq.diagnosis.diagnose import diagnose as diagnose_model

    with running.progress(printer) as options:
        result = diagnose_model(
            model,
            reference=reference,
            data=data,
            labels=labels,
            metric=metric,
            target=target,
            output=output,
            recipe_output=recipe_out,
            options=options,
        )
    if report is not None:
        from onnxfq.report.html import render_page  # with jinja2, which only pages need

        write_text(report, render_page([(model.stem, result)]))
    printer.show(result, hidden=printer.quiet)
    if output is not None and not result.written:
        printer.note("nothing to repair: no model was written")
    printer.wrote(output if result.written else None, recipe_out, report)
