"""`onnxfq convert`: conversion of a model quantized for ONNX Runtime to one for TensorRT."""

from __future__ import annotations

from typing import Annotated

import typer

from onnxfq.choices import DEFAULT_TARGET
from onnxfq.cli.console import Printing
from onnxfq.cli.data_options import OptionalDataOption
from onnxfq.cli.options import ModelArgument, OutputOption
from onnxfq.cli.run_options import RunningFast


def convert(
    model: ModelArgument,
    output: OutputOption,
    target: Annotated[
        str, typer.Option(metavar="NAME", help="Convert for this target: {conversion_targets}.")
    ] = DEFAULT_TARGET,
    data: OptionalDataOption = None,
    *,
    running: RunningFast,
    printer: Printing,
) -> None:
    """Convert a quantized MODEL to one that TensorRT takes, measure the loss, and exit as `check` does.

    --data is for the comparison with the source, and turns dynamic scales into constants. The file is written
    whatever the rules of the target find in it.
    """
    from onnxfq.report.conversion import conversion_summary
    from onnxfq.tools.convert import convert as convert_model

    with running.progress(printer) as options:
        result = convert_model(model, output, target=target, data=data, options=options)
    record = {name: value for name, value in vars(result).items() if name != "qdq"}
    printer.report(record, conversion_summary(result))
    printer.wrote(output)
    if result.check is not None and not result.check.passed:
        raise typer.Exit(1)
