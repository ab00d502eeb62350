"""`onnxfq doctor`: installed versions, devices, and a bit-exact test of each kernel."""

from __future__ import annotations

import typer

from onnxfq.cli.console import PrintingAll

OK = "ok"


def doctor(*, printer: PrintingAll) -> None:
    """Exits with 0 if all tests pass, otherwise with 1."""
    from onnxfq.support.tables import table_lines
    from onnxfq.tools.machine import inspect_machine

    facts, outcomes = inspect_machine()
    tests = [[outcome.device, outcome.kernel, outcome.fault or OK] for outcome in outcomes]
    printer.report({"facts": facts, "tests": outcomes}, *table_lines(facts), "", *table_lines(tests))
    if any(outcome.fault for outcome in outcomes):
        raise typer.Exit(1)
