"""`onnxfq inspect`: summary of a model file."""

from __future__ import annotations

from onnxfq.cli.basic_options import JsonOption, ModelArgument
from onnxfq.cli.console import say
from onnxfq.stages.inspect import inspect_model


def inspect(model: ModelArgument, as_json: JsonOption = False) -> None:
    """Print inputs, outputs, operators, and every quantizer with its format and scales."""
    found = inspect_model(model)
    say(found.model_dump_json(indent=2) if as_json else found.table())
