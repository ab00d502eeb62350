"""`onnxfq evaluate`: error of a candidate model against its reference on the same data."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from onnxfq.cli.console import Printing
from onnxfq.cli.data_options import DataOption
from onnxfq.cli.options import CustomOpsOption
from onnxfq.cli.run_options import Running
from onnxfq.stages.evaluate import Kernels
from onnxfq.stages.evaluate import evaluate as evaluate_models


def evaluate(
    reference: Annotated[Path, typer.Argument(metavar="REFERENCE", help="The float model.")],
    candidate: Annotated[
        Path,
        typer.Argument(metavar="CANDIDATE", help="The Q/DQ or fake-quant model."),
    ],
    data: DataOption,
    labels: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="Compute accuracy with class numbers, one per row: .npy, .npz or text."
        ),
    ] = None,
    per_tensor: Annotated[
        bool, typer.Option("--per-tensor", help="Also score every quantized inner tensor.")
    ] = False,
    kernels: Annotated[
        Kernels,
        typer.Option(
            metavar="float|integer", help="Sum int8 products in float, or in integers as TensorRT does."
        ),
    ] = "float",
    custom_ops: CustomOpsOption = None,
    *,
    running: Running,
    printer: Printing,
) -> None:
    """Print SQNR, cosine, largest error and top-1 agreement of each output; with --labels the accuracy.

    With --limit the first labels count.
    """
    with running.progress(printer) as options:
        result = evaluate_models(
            reference,
            candidate,
            data,
            labels=labels,
            per_tensor=per_tensor,
            kernels=kernels,
            options=options,
        )
    printer.show(result)
