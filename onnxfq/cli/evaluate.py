"""`onnxfq evaluate`: error of a candidate model against its reference on the same data."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from onnxfq.cli.console import say, show_progress
from onnxfq.cli.data_options import with_data_options
from onnxfq.cli.options import (
    BATCH,
    BatchOption,
    CustomOpsOption,
    DataOption,
    DeviceOption,
    ExactOption,
    JsonOption,
    QuietOption,
    ThreadsOption,
)
from onnxfq.data import DataOptions
from onnxfq.stages.evaluate import Kernels
from onnxfq.stages.evaluate import evaluate as evaluate_models


@with_data_options
def evaluate(
    reference: Annotated[
        Path, typer.Argument(metavar="REFERENCE", help="The float model.", show_default=False)
    ],
    candidate: Annotated[
        Path,
        typer.Argument(metavar="CANDIDATE", help="The Q/DQ or fake-quant model.", show_default=False),
    ],
    data: DataOption,
    described: DataOptions,
    labels: Annotated[
        Path | None,
        typer.Option(
            help="Compute accuracy with class numbers, one per row: .npy, .npz or text.", show_default=False
        ),
    ] = None,
    per_tensor: Annotated[bool, typer.Option(help="Also score every quantized inner tensor.")] = False,
    kernels: Annotated[
        Kernels,
        typer.Option(
            metavar="float|integer", help="Sum int8 products in float, or in integers as TensorRT does."
        ),
    ] = "float",
    as_json: JsonOption = False,
    custom_ops: CustomOpsOption = None,
    batch: BatchOption = BATCH,
    threads: ThreadsOption = 0,
    device: DeviceOption = "auto",
    exact: ExactOption = False,
    quiet: QuietOption = False,
) -> None:
    """Print SQNR, cosine, largest error and top-1 agreement of each output; with --labels the accuracy.

    With --limit the first labels count.
    """
    with show_progress(batch, threads, quiet or as_json, described, device) as options:
        result = evaluate_models(
            reference,
            candidate,
            data,
            labels=labels,
            per_tensor=per_tensor,
            kernels=kernels,
            options=replace(options, exact=exact),
        )
    say(result.model_dump_json(indent=2) if as_json else result.table())
