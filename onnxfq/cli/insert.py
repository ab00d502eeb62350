"""`onnxfq insert`: insertion of the planned quantizers into the model."""

from __future__ import annotations

from enum import Enum
from pathlib import Path
from typing import Annotated

import typer

from onnxfq.cli.console import Printing
from onnxfq.cli.options import ModelArgument, OutputOption, PlanOption


class InsertedForm(str, Enum):
    """Form of the inserted quantizers."""

    qdq = "qdq"
    fakequant = "fakequant"


def insert(
    model: ModelArgument,
    plan: PlanOption,
    encodings: Annotated[
        Path,
        typer.Option(
            "--encodings",
            metavar="FILE",
            help="Use these encodings.",
        ),
    ],
    output: OutputOption,
    form: Annotated[
        InsertedForm,
        typer.Option("--format", help="Insert Q/DQ to hand over, or FakeQuantize nodes to evaluate."),
    ] = InsertedForm.qdq,
    switchable: Annotated[
        bool,
        typer.Option(
            "--switchable",
            help="With --format fakequant, add the input onnxfq/enabled that switches to float.",
        ),
    ] = False,
    *,
    printer: Printing,
) -> None:
    """Insert the planned quantizers into MODEL and write it."""
    from onnxfq.documents.plan import Plan
    from onnxfq.graph.external.scratch_file import scratch_for, weights_stored_in
    from onnxfq.graph.io.load import load
    from onnxfq.graph.io.save import save
    from onnxfq.interchange import load_encodings
    from onnxfq.report.text import coverage_line
    from onnxfq.stages.insert import insert_fake_quantize, insert_qdq

    if switchable and form is InsertedForm.qdq:
        raise typer.BadParameter(
            "--switchable needs --format fakequant; standard Q/DQ nodes cannot be switched"
        )
    planned, encoded = Plan.load(plan), load_encodings(encodings)
    loaded = load(model, planned.existing)
    with weights_stored_in(scratch_for(loaded.proto, output.parent)):
        if form is InsertedForm.qdq:
            made = insert_qdq(loaded, planned, encoded)
        else:
            made = insert_fake_quantize(loaded, planned, encoded, switchable=switchable)
        save(made, output)
    coverage = [row._asdict() for row in planned.coverage()]
    record = {"form": form.value, "coverage": coverage, "files": [output]}
    printer.report(record, f"inserted   {form.value}: {coverage_line(planned)}")
    printer.wrote(output)
