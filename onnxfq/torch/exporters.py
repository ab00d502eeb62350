"""The two ONNX exporters of torch, kept quiet and given one way to fail."""

from __future__ import annotations

import contextlib
import io
import logging
import os
import warnings
from collections.abc import Iterator
from typing import Any

import onnx
import torch
from torch import nn

from onnxfq.errors import ModelError
from onnxfq.support.temporary import scratch_folder
from onnxfq.torch.request import BATCH, Request
from onnxfq.torch.torch_ops import TRANSLATIONS, shapes_known


def export_with_dynamo(model: nn.Module, request: Request) -> onnx.ModelProto:
    """Export by torch.export, torch's present way."""

    def dynamic(value: Any) -> Any:
        if isinstance(value, tuple):
            return tuple(dynamic(x) for x in value)
        return {0: BATCH} if value.ndim else None

    shapes = {name: dynamic(value) for name, value in request.arguments.items()}
    with shapes_known():
        program = torch.onnx.export(
            model,
            request.inputs,
            dynamo=True,
            verbose=False,
            input_names=request.input_names,
            output_names=request.output_names,
            dynamic_shapes=shapes if request.dynamic_batch else None,
            opset_version=request.opset,
            custom_translation_table=TRANSLATIONS,
        )
    assert program is not None  # torch returns None only with dynamo=False
    return program.model_proto


def export_with_torchscript(model: nn.Module, request: Request) -> onnx.ModelProto:
    """Export by tracing, torch's older way, which writes files only."""
    with scratch_folder() as folder:
        file = folder / "model.onnx"
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
    """Return the first words of the error that started it all; what is above it explains torch's insides."""
    while error.__cause__ is not None:
        error = error.__cause__
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    text = " ".join(lines[:2] if lines and lines[0].endswith(":") else lines[:1])
    return text.rstrip(".;") or type(error).__name__


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Keep torch's talk about its own insides from the user, who can change none of it.

    Ignored are deprecations inside torch and its exporter, and the notice that the older exporter is old:
    it was asked for by name. All logging is off meanwhile, since dozens of torch's loggers have handlers of
    their own; what matters comes as an exception.
    """
    disabled = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        with warnings.catch_warnings(), silence_output():
            for category in (DeprecationWarning, FutureWarning):
                warnings.filterwarnings("ignore", category=category, module=r"(torch|onnxscript|onnx_ir)\.")
            warnings.filterwarnings("ignore", ".*legacy TorchScript-based ONNX export", DeprecationWarning)
            # Raised inside copyreg, while torch copies its own description of the arguments.
            warnings.filterwarnings("ignore", r".*LeafSpec.* is deprecated", FutureWarning)
            # "batch" is not used for a second input since it is the name of the first one's axis already.
            warnings.filterwarnings("ignore", r"# The axis name: .* will not be used", UserWarning)
            yield
    finally:
        logging.disable(disabled)


@contextlib.contextmanager
def silence_output() -> Iterator[None]:
    """Drop what is printed: torch prints the whole graph when an export fails.

    The older exporter does so from C++, past sys.stdout, and cannot be told not to (its switch for this is
    always on), so the file behind it is exchanged as well. A process without one has nothing to hide.
    """
    with contextlib.redirect_stdout(io.StringIO()), contextlib.ExitStack() as stack:
        with contextlib.suppress(OSError):
            saved = os.dup(1)
            stack.callback(os.close, saved)
            stack.callback(os.dup2, saved, 1)
            with open(os.devnull, "wb") as nowhere:
                os.dup2(nowhere.fileno(), 1)
        yield
