"""`onnxfq observe`: run the model once over the data and keep statistics of its activations."""

from __future__ import annotations

from onnxfq.cli.console import running, say
from onnxfq.cli.options import (
    BATCH,
    BatchOption,
    DataOption,
    ModelArgument,
    OutputOption,
    PlanOption,
    QuietOption,
    ThreadsOption,
)
from onnxfq.files import check_writable
from onnxfq.graph.load import load
from onnxfq.graph.save import refuse_overwriting_input
from onnxfq.observation import ObserveOptions, collect_statistics
from onnxfq.pipeline import open_feeds
from onnxfq.plan import Plan


def observe(
    model: ModelArgument,
    plan: PlanOption,
    data: DataOption,
    output: OutputOption,
    batch: BatchOption = BATCH,
    threads: ThreadsOption = 0,
    quiet: QuietOption = False,
) -> None:
    """Write the statistics that every calibrator works from (.stats.npz): one pass serves all."""
    refuse_overwriting_input(output, model, data, plan)
    check_writable(output)
    loaded = load(model)
    with running(batch, threads, quiet) as options:
        statistics = collect_statistics(
            loaded,
            Plan.load(plan),
            open_feeds(loaded.proto, data, batch),
            ObserveOptions(threads=threads, progress=options.stage("observe")),
        )
    statistics.save(output)
    say(f"observed   {len(statistics.tensors)} tensors over {statistics.feeds} feeds", quiet)
    say(f"wrote      {output}", quiet)
