"""The two ONNX exporters of torch, kept quiet and given one way to fail."""

from __future__ import annotations

import contextlib
import io
import logging
import tempfile
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import onnx
import torch
from torch import nn

from onnxfq.errors import ModelError
from onnxfq.torch.request import BATCH, Request


def export_with_dynamo(model: nn.Module, request: Request) -> onnx.ModelProto:
    """Export by torch.export, torch's present way."""

    def dynamic(value: Any) -> Any:
        if isinstance(value, tuple):
            return tuple(dynamic(x) for x in value)
        return {0: BATCH} if value.ndim else None

    shapes = {name: dynamic(value) for name, value in request.arguments.items()}
    program = torch.onnx.export(
        model,
        request.inputs,
        dynamo=True,
        verbose=False,
        input_names=request.input_names,
        output_names=request.output_names,
        dynamic_shapes=shapes if request.dynamic_batch else None,
        opset_version=request.opset,
    )
    assert program is not None  # torch returns None only with dynamo=False
    return program.model_proto


def export_with_torchscript(model: nn.Module, request: Request) -> onnx.ModelProto:
    """Export by tracing, torch's older way, which writes files only."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "model.onnx")
        torch.onnx.export(
            model,
            request.inputs,
            file,
            dynamo=False,
            input_names=request.input_names,
            output_names=request.output_names,
            dynamic_axes={name: {0: BATCH} for name in request.dynamic_names},
            opset_version=request.opset,
        )
        return onnx.load(file)


EXPORTERS = {"dynamo": export_with_dynamo, "torchscript": export_with_torchscript}


def run(exporter: str, model: nn.Module, request: Request) -> onnx.ModelProto:
    """Return what the exporter makes of the module, unchecked."""
    try:
        return EXPORTERS[exporter](model, request)
    except Exception as error:  # an exporter traces the user's code, which may raise anything
        other = next(name for name in EXPORTERS if name != exporter)
        raise ModelError(
            f"the {exporter} exporter cannot export {type(model).__name__}: {reason(error)}; "
            f"try exporter={other!r}"
        ) from error


def reason(error: BaseException) -> str:
    """Return the first line of the error that started it all; those above it tell how to debug torch."""
    while error.__cause__ is not None:
        error = error.__cause__
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[0].rstrip(".;") if lines else type(error).__name__


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Keep torch's talk about its own insides from the user, who can change none of it.

    Ignored are deprecations inside torch and its exporter, and the notice that the older exporter is old:
    it was asked for by name. All logging is off meanwhile, since dozens of torch's loggers have handlers of
    their own; what matters comes as an exception. Standard output is dropped, as torch prints whole graphs
    when it fails.
    """
    disabled = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
            for category in (DeprecationWarning, FutureWarning):
                warnings.filterwarnings("ignore", category=category, module=r"(torch|onnxscript|onnx_ir)\.")
            warnings.filterwarnings("ignore", ".*legacy TorchScript-based ONNX export", DeprecationWarning)
            # Raised inside copyreg, while torch copies its own description of the arguments.
            warnings.filterwarnings("ignore", r".*LeafSpec.* is deprecated", FutureWarning)
            yield
    finally:
        logging.disable(disabled)
