"""`onnxfq check`: what the target would refuse, run in float or compute wrongly."""

from __future__ import annotations

from typing import Annotated

import typer

from onnxfq.cli.console import say
from onnxfq.cli.options import JsonOption, ModelArgument, ShapeOption, shape_option
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
            help=f"Whose rules: {', '.join(collect_parts(lambda one: one.check))}.",
        ),
    ] = DEFAULT_TARGET,
    build: Annotated[
        bool,
        typer.Option(
            "--build", help="Build it as well, with TensorRT for RTX (extra tensorrt; no GPU needed)."
        ),
    ] = False,
    shape: ShapeOption = None,
    as_json: JsonOption = False,
) -> None:
    """Check a Q/DQ model by the rules of its target; exit code 1 when it breaks one."""
    if shape and not build:
        raise typer.BadParameter("--shape is for building; add --build")
    shapes = dict(shape_option(text) for text in shape or ())
    result = check_model(model, target, build=BuildOptions(shapes) if build else None)
    say(result.model_dump_json(indent=2) if as_json else result.table())
    if not result.passed:
        raise typer.Exit(1)
