"""`onnxfq insert`: insertion of the planned quantizers into the model."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from onnxfq.cli.console import Printing
from onnxfq.cli.option import option
from onnxfq.cli.options import ModelArgument, OutputOption, PlanOption

_FORM = option(None, "Insert Q/DQ to hand over, or FakeQuantize nodes to evaluate.", "--format")


def insert(
    model: ModelArgument,
    output: OutputOption,
    plan: PlanOption,
    encodings: Annotated[Path, option("FILE", "Use these encodings.")],
    form: Annotated[Literal["qdq", "fakequant"], _FORM] = "qdq",
    *,
    printer: Printing,
) -> None:
    """Q/DQ and FakeQuantize nodes of one plan compute the same."""
    from onnxfq.documents.plan import Plan
    from onnxfq.documents.plan_text import coverage_line
    from onnxfq.graph.external.scratch_file import scratch_for, weights_stored_in
    from onnxfq.graph.io.save import save
    from onnxfq.interchange import load_encodings
    from onnxfq.quantized.existing import load_existing
    from onnxfq.stages.insert import insert_fake_quantize, insert_qdq

    planned, encoded = Plan.load(plan), load_encodings(encodings)
    loaded = load_existing(model, planned.existing)
    with weights_stored_in(scratch_for(loaded.proto, output.parent)):
        insert_form = insert_qdq if form == "qdq" else insert_fake_quantize
        save(insert_form(loaded, planned, encoded), output)
    coverage = [row._asdict() for row in planned.coverage()]
    record = {"form": form, "coverage": coverage, "files": [output]}
    printer.report(record, f"inserted   {form}: {coverage_line(planned)}")
    printer.wrote(output)
