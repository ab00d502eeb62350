"""The two ONNX exporters of torch, silenced, with one error type, and the steps around them.

An export freezes quantizers, and lowers its fake quantization to Q/DQ. torch.ao's FakeQuantize modules branch
on buffers to decide whether to observe, which an export cannot follow; during an export they only round.
"""

from __future__ import annotations

import contextlib
import functools
import io
import logging
import os
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import onnx
import torch
from torch import Tensor, fx, nn
from torch.ao.quantization.fake_quantize import FakeQuantizeBase

from onnxfq.errors import ModelError, StatisticsError
from onnxfq.support.temporary import scratch_folder
from onnxfq.torch.affine import fake_quantize_per_channel_affine, fake_quantize_per_tensor_affine
from onnxfq.torch.layers import BAKED, fold_bias, fold_weight, refresh
from onnxfq.torch.quantizer import FakeQuantize, quantizers
from onnxfq.torch.request import BATCH, Request


def export_with_dynamo(model: nn.Module, request: Request) -> onnx.ModelProto:
    """Export with torch.export, torch's current exporter."""
    axes = dict(zip(request.input_names, request.dynamic_shapes or (), strict=False))
    axes |= {name: {0: BATCH} for name in request.dynamic_names}
    shapes = request.map_inputs(lambda name, _: axes.get(name)).arguments if any(axes.values()) else None
    called = _Called(model) if isinstance(model, fx.GraphModule) else model
    settings = request.settings | {"dynamo": True, "verbose": False, "dynamic_shapes": shapes}
    program = torch.onnx.export(called, request.arguments.args, **settings)
    assert program is not None  # torch returns None only with dynamo=False
    return program.model_proto


class _Called(nn.Module):
    """Module that calls a graph of torch.fx, whose nodes torch.export would take without a call."""

    def __init__(self, graph: fx.GraphModule) -> None:
        super().__init__()
        self.called, self.training = graph, graph.training

        @functools.wraps(graph.forward)
        def forward(*args: Any, **kwargs: Any) -> Any:
            return graph(*args, **kwargs)

        self.__dict__["forward"] = forward


def export_with_torchscript(model: nn.Module, request: Request) -> onnx.ModelProto:
    """Export by tracing, torch's older exporter, which writes files only."""
    with scratch_folder() as folder:
        file, axes = folder / "model.onnx", {name: {0: BATCH} for name in request.dynamic_names}
        settings = request.settings | {"dynamo": False, "dynamic_axes": axes}
        torch.onnx.export(model, request.arguments.args, file, **settings)
        return onnx.load(file)


EXPORTERS = {"dynamo": export_with_dynamo, "torchscript": export_with_torchscript}


def run(
    exporter: str, model: nn.Module, request: Request, redirect: contextlib.AbstractContextManager[Any]
) -> onnx.ModelProto:
    """Return the module exported under `redirect`, unchecked."""
    try:
        with redirect, torch.no_grad():  # which lets a forward write over a part of a chunk
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


def check_scales(model: nn.Module) -> None:
    """Raise StatisticsError, with the name of a quantizer in `model`, if one has no scale yet."""
    with torch.no_grad():
        refresh(model)
    for name, quantizer in quantizers(model).items():
        if quantizer.is_rounding and not quantizer.is_initialized:
            raise StatisticsError(f"quantizer {name!r} has no scale yet; run data in compute_encodings")
    for name, module in model.named_modules():
        if hasattr(module, "check_export"):  # quantizers with the interface of another library
            module.check_export(name)


@contextlib.contextmanager
def freeze_grids(model: nn.Module) -> Iterator[None]:
    """Freeze all grids of `model`, and restore everything afterwards."""
    folded = [module for module in model.modules() if module.__dict__.get("folded_norm") is not None]
    with contextlib.ExitStack() as stack:
        for module in list(model.modules()):
            if hasattr(module, "freeze_grid"):  # also quantizers with the interface of other libraries
                stack.enter_context(module.freeze_grid())
        for layer in folded:
            parts = {"weight": fold_weight(layer), "bias": fold_bias(layer, layer.folded_norm)}
            for name, value in parts.items():
                layer.register_buffer(BAKED + name, value.detach().clone(), persistent=False)
                stack.callback(layer.__delattr__, BAKED + name)
        yield


@contextlib.contextmanager
def disable_observers(model: nn.Module) -> Iterator[None]:
    """Let the FakeQuantize modules of torch.ao in `model` only round, not observe."""
    theirs = (module for module in model.modules() if isinstance(module, FakeQuantizeBase))
    changed: list[nn.Module] = [module for module in theirs if not isinstance(module, FakeQuantize)]
    try:
        for module in changed:
            module.forward = _rounding_of(module)
        yield
    finally:
        for module in changed:
            module.__dict__.pop("forward", None)


def _rounding_of(module: Any) -> Callable[[Tensor], Tensor]:
    if not bool(module.fake_quant_enabled[0]):
        return lambda x: x
    observer = module.activation_post_process
    low, high = observer.quant_min, observer.quant_max
    scale, zero_point = module.scale.detach().clone(), module.zero_point.detach().clone()
    if module.is_per_channel:
        axis = module.ch_axis
        return lambda x: fake_quantize_per_channel_affine(x, scale, zero_point, axis, low, high)
    return lambda x: fake_quantize_per_tensor_affine(x, scale, zero_point, low, high)
