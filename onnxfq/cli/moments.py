"""`onnxfq moments`: second moments of the inputs of layers, for rounding their weights."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from onnxfq.choices import MOMENTS_MEMORY
from onnxfq.cli.console import Printing
from onnxfq.cli.data_options import DataOption
from onnxfq.cli.interrupted import INTERRUPTED, load_interrupted
from onnxfq.cli.options import CustomOpsOption, ModelArgument, OutputOption, RayOption, RoundedRecipe
from onnxfq.cli.run_options import RunningFast


def moments(
    model: ModelArgument,
    data: DataOption,
    output: OutputOption,
    ranges: Annotated[
        bool, typer.Option("--ranges", help="Write the ranges of the channels alone, to merge them first.")
    ] = False,
    ranges_from: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Use the merged ranges of all parts of the data as grids."),
    ] = None,
    memory: Annotated[
        int,
        typer.Option(
            min=1, metavar="MB", help="Limit the memory of runs, and the temporary file of sampled inputs."
        ),
    ] = MOMENTS_MEMORY >> 20,
    resume: Annotated[
        bool, typer.Option("--resume", help="Continue from OUT of an interrupted run.")
    ] = False,
    ray: RayOption = None,
    custom_ops: CustomOpsOption = None,
    *,
    recipe: RoundedRecipe,
    running: RunningFast,
    printer: Printing,
) -> None:
    """Write the moments (.moments.npz) by which `quantize --moments` rounds weights, without running MODEL.

    Parts of the data on several machines: write --ranges of each, merge these with merge-statistics, write
    the moments of each part with --ranges-from, and merge them. The result has the bits of one run.
    """
    from onnxfq.calibration.weights import Moments
    from onnxfq.graph.io.load import load
    from onnxfq.stages.plan import make_plan
    from onnxfq.targets.target import prepare_model
    from onnxfq.tools.record_moments import MomentsInterrupted, gather_moments

    if ranges and ranges_from is not None:
        raise typer.BadParameter("--ranges writes the ranges that --ranges-from reads; give one of them")
    if ranges and resume:
        raise typer.BadParameter("--resume continues moments; --ranges has nothing to continue")
    chosen = recipe.load()
    chosen = chosen if recipe.rounding is None else chosen.override(weights={"rounding": recipe.rounding})
    loaded = load(model, chosen.existing)
    plan = make_plan(prepare_model(loaded, chosen.target), chosen)
    with running.progress(printer) as options:
        try:
            found = gather_moments(
                loaded,
                plan,
                data,
                output,
                ranges_only=ranges,
                ranges=ranges_from,
                memory=memory << 20,
                start=load_interrupted(Moments.load, output) if resume else None,
                ray=ray,
                options=options,
            )
        except MomentsInterrupted as stop:
            found = stop.moments
    record = {"inputs": len(found.ranges), "samples": found.data.samples, "files": [output]}
    record["complete"] = found.complete
    if not found.complete:
        text = f"interrupted after {len(found.ranges)} inputs; wrote {output}; continue with --resume"
        printer.report(record, text)
        raise typer.Exit(INTERRUPTED)
    what = "ranges" if ranges else "moments"
    printer.report(record, f"{what:10} of {len(found.ranges)} inputs over {found.data.samples} samples")
    printer.wrote(output)
