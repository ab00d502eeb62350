"""`onnxfq check`: nodes that the target would reject, run in float or compute wrongly."""

from __future__ import annotations

from typing import Annotated

import typer

from onnxfq.cli.console import say
from onnxfq.cli.options import BuildOption, JsonOption, ModelArgument, ShapeOption, read_shapes
from onnxfq.stages.check import check as check_model
from onnxfq.targets.build_options import BuildOptions
from onnxfq.targets.registry import DEFAULT_TARGET, collect_parts


def check(
    model: ModelArgument,
    target: Annotated[
        str,
        typer.Option(
            "--target",
            metavar="NAME",
            help=f"Use the rules of this target: {', '.join(collect_parts(lambda one: one.check))}.",
        ),
    ] = DEFAULT_TARGET,
    build: BuildOption = False,
    shape: ShapeOption = None,
    as_json: JsonOption = False,
) -> None:
    """Check a Q/DQ MODEL by the rules of its target; exit with 1 if it breaks one."""
    if shape and not build:
        raise typer.BadParameter("--shape needs --build; add it")
    shapes = read_shapes(shape)
    result = check_model(model, target, build=BuildOptions(shapes) if build else None)
    say(result.model_dump_json(indent=2) if as_json else result.table())
    if not result.passed:
        raise typer.Exit(1)
