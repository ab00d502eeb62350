"""`onnxfq observe`: statistics of activations, or moments of the inputs of layers, over the data."""

from __future__ import annotations

from functools import reduce
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from onnxfq.choices import DEFAULT_MEMORY, MOMENTS_MEMORY
from onnxfq.cli.console import Printing
from onnxfq.cli.data_options import OptionalDataOption
from onnxfq.cli.option import RUNNING, argument, flag, option, refuse
from onnxfq.cli.options import CustomOpsOption, OptionalPlanOption, OutputOption, RayOption, RoundedRecipe
from onnxfq.cli.run_options import RunningFast
from onnxfq.errors import StatisticsError
from onnxfq.support.interrupts import INTERRUPTED

if TYPE_CHECKING:
    from onnxfq.calibration.statistics import Statistics

_PARTS = "Parts of the data on several machines"

_MERGE = flag("Merge the statistics in FILEs given in place of MODEL.", "--merge", panel=_PARTS)
_RESUME = flag("Continue from OUT of an interrupted run.", "--resume")
_MEMORY = option(
    "MB",
    "Limit the memory of observing, beyond the model's own, and the file of --moments: "
    f"{DEFAULT_MEMORY >> 20} by default, {MOMENTS_MEMORY >> 20} with --moments.",
    panel=RUNNING,
    min=1,
)
_FEED_RANGES = flag("Record the range of every batch, for moving_average.", "--per-batch-ranges")
_MOMENTS = flag("Write the moments by which `quantize --moments` rounds.", "--moments")
_RANGES = flag("With --moments: write the ranges alone, to merge them.", "--ranges", panel=_PARTS)
_RANGES_FROM = option("FILE", "With --moments: use the merged ranges of all parts as grids.", panel=_PARTS)


def observe(
    files: Annotated[list[Path], argument("MODEL", "The model; with --merge the files.")],
    output: OutputOption,
    data: OptionalDataOption = None,
    plan: OptionalPlanOption = None,
    feed_ranges: Annotated[bool, _FEED_RANGES] = False,
    moments: Annotated[bool, _MOMENTS] = False,
    resume: Annotated[bool, _RESUME] = False,
    *,
    recipe: RoundedRecipe,
    merge: Annotated[bool, _MERGE] = False,
    ranges: Annotated[bool, _RANGES] = False,
    ranges_from: Annotated[Path | None, _RANGES_FROM] = None,
    running: RunningFast,
    memory: Annotated[int | None, _MEMORY] = None,
    ray: RayOption = None,
    custom_ops: CustomOpsOption = None,
    printer: Printing,
) -> None:
    """One pass serves all calibrators (.stats.npz).

    Without --plan, observe every tensor that a built-in recipe may need, except for QNN. With
    --moments, gather the moments by which a recipe rounds weights.

    Parts of the data on several machines merge with --merge A B -o C, in any order. Moments need common
    grids: merge --ranges of each part first, and gather moments with --ranges-from.
    """
    from onnxfq.calibration.statistics import Statistics
    from onnxfq.calibration.weights import Moments
    from onnxfq.documents.plan import Plan
    from onnxfq.graph.io.load import load
    from onnxfq.quantized.existing import load_existing
    from onnxfq.stages.limits import with_limits
    from onnxfq.stages.observe import ObservationInterrupted, collect_statistics
    from onnxfq.stages.observers import ObserveOptions
    from onnxfq.stages.options import open_feeds
    from onnxfq.stages.plan import make_plan, observation_plan
    from onnxfq.support.progress import counting
    from onnxfq.tools.record_moments import gather_moments

    refuse(merge and (data or moments or resume), "--merge has no --data, --moments and --resume; omit them")
    refuse(not merge and len(files) > 1, "give one MODEL; several FILEs are for --merge")
    refuse(not merge and not data, "give --data, or --merge and files")
    refuse(
        (ranges or ranges_from) and not moments, "--ranges and --ranges-from are for --moments; give it too"
    )
    refuse(ranges and ranges_from, "--ranges writes the ranges that --ranges-from reads; give one of them")
    refuse(ranges and resume, "--resume continues moments; --ranges has nothing to continue")
    if merge:
        statistics = reduce(Statistics.merge, map(Statistics.load, files))
        statistics.save(output)
        record, text = _describe(statistics)
        printer.report(
            {"parts": files, **record, "files": [output]}, f"merged     {len(files)} files: {text}"
        )
        printer.wrote(output)
        return
    assert data is not None
    model = files[0]
    if moments:
        chosen = recipe.load()
        loaded = load_existing(model, chosen.existing)
        rounded = make_plan(loaded, chosen)
        with running.progress(printer) as options:
            statistics = gather_moments(
                loaded,
                rounded,
                data,
                output,
                ranges_only=ranges,
                ranges=ranges_from,
                memory=memory << 20 if memory else MOMENTS_MEMORY,
                start=Moments(_load_interrupted(output)) if resume else None,
                ray=ray,
                options=options,
            ).statistics
    else:
        start = _load_interrupted(output) if resume else None
        wanted = None if plan is None else Plan.load(plan)
        loaded = load(model) if wanted is None else load_existing(model, wanted.existing)
        wanted = with_limits(wanted or observation_plan(loaded), loaded)
        feeds = open_feeds(loaded.proto, data, running.batch, running.described)
        with running.progress(printer) as options:
            how = ObserveOptions(
                running.threads,
                memory << 20 if memory else DEFAULT_MEMORY,
                running.described.nonfinite,
                feed_ranges,
                counting("observe", feeds.runs),
                running.device,
            )
            try:
                statistics = collect_statistics(loaded, wanted, feeds, how, start, ray)
            except ObservationInterrupted as stop:
                statistics = stop.statistics
        statistics.save(output)
    record, text = _describe(statistics)
    record |= {"complete": statistics.complete, "files": [output]}
    if not statistics.complete:
        reached = f"{record['inputs']} inputs" if moments else f"{statistics.feeds} feeds"
        printer.report(record, f"interrupted after {reached}; wrote {output}; continue with --resume")
        raise typer.Exit(INTERRUPTED)
    printer.report(record, f"observed   {text}")
    printer.wrote(output)


def _load_interrupted(path: Path) -> Statistics:
    """Return what an interrupted run left in `path`. Raises StatisticsError if nothing is missing."""
    from onnxfq.calibration.statistics import Statistics

    statistics = Statistics.load(path)
    if statistics.complete:
        raise StatisticsError(f"{path} is complete, there is nothing to resume; omit --resume")
    return statistics


def _describe(statistics: Statistics) -> tuple[dict[str, Any], str]:
    """Return what was observed, for reports."""
    sources = {source for source, _ in statistics.values}
    inputs = [source for source in sources if not isinstance(source, str)]
    if inputs:
        samples = statistics.data.samples
        return {"inputs": len(inputs), "samples": samples}, f"{len(inputs)} inputs over {samples} samples"
    tensors, feeds = len(statistics.tensors), statistics.feeds
    return {"tensors": tensors, "feeds": feeds}, f"{tensors} tensors over {feeds} feeds"
