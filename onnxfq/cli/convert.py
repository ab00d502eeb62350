"""`onnxfq convert`: conversion of a model quantized for ONNX Runtime to one for TensorRT."""

from __future__ import annotations

from typing import Annotated

import typer

from onnxfq.cli.console import say, show_progress
from onnxfq.cli.data_options import with_data_options
from onnxfq.cli.options import (
    BATCH,
    BatchOption,
    DeviceOption,
    JsonOption,
    ModelArgument,
    OptionalDataOption,
    OutputOption,
    QuietOption,
    ThreadsOption,
)
from onnxfq.data import DataOptions
from onnxfq.report.conversion import conversion_summary
from onnxfq.stages.convert import convert as convert_model
from onnxfq.support.records import to_json
from onnxfq.targets.registry import DEFAULT_TARGET, collect_parts


@with_data_options
def convert(
    model: ModelArgument,
    output: OutputOption,
    described: DataOptions,
    target: Annotated[
        str,
        typer.Option(
            "--target",
            metavar="NAME",
            help=f"Convert for this target: {', '.join(collect_parts(lambda one: one.conversion))}.",
        ),
    ] = DEFAULT_TARGET,
    data: OptionalDataOption = None,
    batch: BatchOption = BATCH,
    threads: ThreadsOption = 0,
    device: DeviceOption = "auto",
    as_json: JsonOption = False,
    quiet: QuietOption = False,
) -> None:
    """Convert a quantized MODEL to one that TensorRT takes, and measure the loss.

    --data is for the comparison with the source, and turns dynamic scales into constants.
    """
    with show_progress(batch, threads, quiet or as_json, described, device) as options:
        result = convert_model(model, output, target=target, data=data, options=options)
    if as_json:
        say(to_json({name: value for name, value in vars(result).items() if name != "qdq"}))
        return
    say(conversion_summary(result), quiet)
    say(f"wrote      {output}", quiet)
