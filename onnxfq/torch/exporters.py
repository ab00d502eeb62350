"""The two ONNX exporters of torch, silenced, with one error type."""

from __future__ import annotations

import contextlib
import io
import logging
import os
import warnings
from collections.abc import Iterator

import onnx
import torch
from torch import nn

from onnxfq.errors import ModelError
from onnxfq.support.temporary import scratch_folder
from onnxfq.torch.affine import Redirect
from onnxfq.torch.request import BATCH, Request


def export_with_dynamo(model: nn.Module, request: Request) -> onnx.ModelProto:
    """Export with torch.export, torch's current exporter."""
    axes = dict(zip(request.input_names, request.dynamic_shapes or (), strict=False))
    axes |= {name: {0: BATCH} for name in request.dynamic_names}
    shapes = request.map_inputs(lambda name, _: axes.get(name)).arguments
    program = torch.onnx.export(
        model,
        request.arguments.args,
        kwargs=request.arguments.kwargs,
        dynamo=True,
        verbose=False,
        input_names=request.input_names,
        output_names=request.output_names,
        dynamic_shapes=shapes if any(axes.values()) else None,
        opset_version=request.opset,
    )
    assert program is not None  # torch returns None only with dynamo=False
    return program.model_proto


def export_with_torchscript(model: nn.Module, request: Request) -> onnx.ModelProto:
    """Export by tracing, torch's older exporter, which writes files only."""
    with scratch_folder() as folder:
        file = folder / "model.onnx"
        torch.onnx.export(
            model,
            request.arguments.args,
            file,
            kwargs=request.arguments.kwargs or None,
            dynamo=False,
            input_names=request.input_names,
            output_names=request.output_names,
            dynamic_axes={name: {0: BATCH} for name in request.dynamic_names},
            opset_version=request.opset,
        )
        return onnx.load(file)


EXPORTERS = {"dynamo": export_with_dynamo, "torchscript": export_with_torchscript}


def run(exporter: str, model: nn.Module, request: Request) -> onnx.ModelProto:
    """Return the exported module, unchecked."""
    try:
        with Redirect():
            return EXPORTERS[exporter](model, request)
    except Exception as error:  # an exporter traces the user's code, which may raise anything
        other = next(name for name in EXPORTERS if name != exporter)
        remedy = f"try exporter={other!r}" if request.dynamic_shapes is None else "change dynamic_shapes"
        raise ModelError(
            f"the {exporter} exporter cannot export {type(model).__name__}: {reason(error)}; {remedy}"
        ) from error


def reason(error: BaseException) -> str:
    """Return the first lines of the root cause; the errors raised from it only explain torch's internals."""
    while error.__cause__ is not None:
        error = error.__cause__
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    text = " ".join(lines[:2] if lines and lines[0].endswith(":") else lines[:1])
    return text.rstrip(".;") or type(error).__name__


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Hide torch's messages about its internals, which the user cannot change.

    Ignored are deprecations inside torch and its exporter, and the notice that the older exporter is
    deprecated: the user requested it by name. All logging is disabled meanwhile, because dozens of torch
    loggers have their own handlers; errors arrive as exceptions.
    """
    disabled = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        with warnings.catch_warnings(), silence_output():
            for category in (DeprecationWarning, FutureWarning):
                warnings.filterwarnings("ignore", category=category, module=r"(torch|onnxscript|onnx_ir)\.")
            warnings.filterwarnings("ignore", ".*legacy TorchScript-based ONNX export", DeprecationWarning)
            # Raised inside copyreg, while torch copies its description of the arguments.
            warnings.filterwarnings("ignore", r".*LeafSpec.* is deprecated", FutureWarning)
            # An axis of an earlier input already has this name, and torch does not set it a second time.
            again = r"# The axis name: (.*) will not be used, .* another axis: \1\.$"
            warnings.filterwarnings("ignore", again, UserWarning)
            yield
    finally:
        logging.disable(disabled)


@contextlib.contextmanager
def silence_output() -> Iterator[None]:
    """Discard printed output: torch prints the whole graph when an export fails.

    The older exporter prints from C++, past sys.stdout, and its switch for this is always on. Therefore file
    descriptor 1 is replaced too, unless the process lacks one.
    """
    with contextlib.redirect_stdout(io.StringIO()), contextlib.ExitStack() as stack:
        with contextlib.suppress(OSError):
            saved = os.dup(1)
            stack.callback(os.close, saved)
            stack.callback(os.dup2, saved, 1)
            with open(os.devnull, "wb") as nowhere:
                os.dup2(nowhere.fileno(), 1)
        yield
