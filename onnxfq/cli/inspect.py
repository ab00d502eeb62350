"""`onnxfq inspect`: summary of a model file."""

from __future__ import annotations

from onnxfq.cli.basic_options import ModelArgument
from onnxfq.cli.console import PrintingAll


def inspect(model: ModelArgument, *, printer: PrintingAll) -> None:
    """Print inputs, outputs, operators, and every quantizer with its format and scales."""
    from onnxfq.tools.inspect import inspect_model

    printer.show(inspect_model(model))
