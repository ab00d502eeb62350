"""`onnxfq observe`: statistics of activations from one pass over the data."""

from __future__ import annotations

from typing import Annotated

import typer

from onnxfq.choices import DEFAULT_MEMORY
from onnxfq.cli.console import Printing
from onnxfq.cli.data_options import DataOption
from onnxfq.cli.interrupted import INTERRUPTED, load_interrupted
from onnxfq.cli.options import CustomOpsOption, ModelArgument, OptionalPlanOption, OutputOption, RayOption
from onnxfq.cli.run_options import RunningFast


def observe(
    model: ModelArgument,
    data: DataOption,
    output: OutputOption,
    plan: OptionalPlanOption = None,
    memory: Annotated[
        int, typer.Option(min=1, metavar="MB", help="Limit the memory of observing, beyond the model's own.")
    ] = DEFAULT_MEMORY >> 20,
    feed_ranges: Annotated[
        bool, typer.Option("--feed-ranges", help="Record the range of every feed, for moving_average.")
    ] = False,
    resume: Annotated[
        bool, typer.Option("--resume", help="Continue from OUT of an interrupted run.")
    ] = False,
    ray: RayOption = None,
    custom_ops: CustomOpsOption = None,
    *,
    running: RunningFast,
    printer: Printing,
) -> None:
    """Write the statistics for all calibrators (.stats.npz) in one pass.

    Without --plan, observe every tensor that a built-in recipe may need.
    """
    from onnxfq.calibration.statistics import Statistics
    from onnxfq.documents.plan import Plan
    from onnxfq.graph.io.load import load
    from onnxfq.stages.limits import with_limits
    from onnxfq.stages.observe import ObservationInterrupted, collect_statistics
    from onnxfq.stages.observe_ray import collect_on_ray
    from onnxfq.stages.observers import ObserveOptions
    from onnxfq.stages.options import open_feeds
    from onnxfq.stages.plan import observation_plan

    start = load_interrupted(Statistics.load, output) if resume else None
    if plan is None:
        loaded = load(model)
        wanted = observation_plan(loaded)
    else:
        wanted = Plan.load(plan)
        loaded = load(model, wanted.existing)
    wanted = with_limits(wanted, loaded)
    feeds = open_feeds(loaded.proto, data, running.batch, running.described)
    with running.progress(printer) as options:
        how = ObserveOptions(
            running.threads,
            memory << 20,
            running.described.nonfinite,
            feed_ranges,
            options.stage("observe", feeds.runs),
            running.device,
        )
        try:
            if ray is not None:
                statistics = collect_on_ray(loaded, wanted, feeds, ray, how, start)
            else:
                statistics = collect_statistics(loaded, wanted, feeds, how, start)
        except ObservationInterrupted as stop:
            statistics = stop.statistics
    statistics.save(output)
    tensors, runs = len(statistics.tensors), statistics.feeds
    record = {"tensors": tensors, "feeds": runs, "complete": statistics.complete, "files": [output]}
    if not statistics.complete:
        printer.report(record, f"interrupted after {runs} feeds; wrote {output}; continue with --resume")
        raise typer.Exit(INTERRUPTED)
    printer.report(record, f"observed   {tensors} tensors over {runs} feeds")
    printer.wrote(output)
