"""`onnxfq check`: nodes that the target would reject, run in float or compute wrongly."""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated, Literal

import typer

from onnxfq.choices import DEFAULT_TARGET
from onnxfq.cli.console import PrintingAll
from onnxfq.cli.options import BuildChoice, ModelArgument


def check(
    model: ModelArgument,
    target: Annotated[
        str, typer.Option(metavar="NAME", help="Use the rules of this target: {checked_targets}.")
    ] = DEFAULT_TARGET,
    *,
    building: BuildChoice,
    against: Annotated[
        Literal["half"] | None,
        typer.Option(
            metavar="half",
            help="With --build, also build the same graph without pairs, and compare kernels and bytes "
            "(target tensorrt).",
        ),
    ] = None,
    printer: PrintingAll,
) -> None:
    """Check a Q/DQ MODEL by the rules of its target; exit with 1 if it breaks one."""
    from onnxfq.tools.check import check as check_model

    if building.shape and not building.build:
        raise typer.BadParameter("--shape needs --build; add it")
    if against and not building.build:
        raise typer.BadParameter("--against needs --build; add it")
    options = building.options
    if options is not None and against:
        options = replace(options, against=against)
    result = check_model(model, target, build=options)
    printer.show(result)
    if not result.passed:
        raise typer.Exit(1)
