"""`onnxfq check`: nodes that the target would reject, run in float or compute wrongly."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Annotated, Literal

import typer

from onnxfq.choices import DEFAULT_TARGET
from onnxfq.cli.console import PrintingAll
from onnxfq.cli.options import BuildChoice, GpuOption, ModelArgument, describe_gpus


def check(
    model: ModelArgument,
    target: Annotated[
        str, typer.Option(metavar="NAME", help="Use the rules of this target: {checked_targets}.")
    ] = DEFAULT_TARGET,
    layers: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Read what an engine on the real GPU runs: layers.json of the scripts of `handoff`.",
        ),
    ] = None,
    profile: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Add the times of its layers: profile.json of the same run."),
    ] = None,
    gpu: GpuOption = None,
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
    if profile is not None and layers is None:
        raise typer.BadParameter("--profile needs --layers of the same engine; add it")
    if building.build and layers is not None:
        raise typer.BadParameter("--build and --layers exclude each other; give one")
    if against and not building.build:
        raise typer.BadParameter("--against needs --build; add it")
    options = building.options
    if options is not None and against:
        options = replace(options, against=against)
    for line in describe_gpus(gpu):
        printer.note(line)
    result = check_model(model, target, build=options, layers=layers, profile=profile, gpus=gpu or ())
    printer.show(result)
    if not result.passed:
        raise typer.Exit(1)
