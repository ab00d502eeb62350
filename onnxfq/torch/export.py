"""ONNX export of a torch module: weights inside, no output, no trace of the exporting machine in the file."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import onnx
import torch
from torch import Tensor, nn

from onnxfq.errors import DataError, ModelError, nearest
from onnxfq.graph.model import default_opset
from onnxfq.graph.node_notes import SCOPES_KEY
from onnxfq.support.files import check_writable, replace_file
from onnxfq.targets.lower_fake_quantize import lift, lower
from onnxfq.targets.target import DEFAULT_TARGET
from onnxfq.torch.affine import Redirect
from onnxfq.torch.calls import TABLE
from onnxfq.torch.exporters import (
    EXPORTERS,
    check_scales,
    disable_observers,
    freeze_grids,
    quiet,
    reason,
    run,
)
from onnxfq.torch.onnx_node import lowered_later
from onnxfq.torch.quantizer import quantizers
from onnxfq.torch.request import Request, bind, name_inputs, read_dynamic_shapes
from onnxfq.torch.target_form import with_target_form

HALF_TYPES = {torch.float16, torch.bfloat16}
BFLOAT16_OPSET = 22
"""The first opset whose convolutions and poolings take bfloat16."""


def export_torch(
    model: nn.Module | torch.export.ExportedProgram,
    inputs: Tensor | Sequence[Tensor],
    path: str | os.PathLike[str] | None = None,
    *,
    kwargs: Mapping[str, Tensor] | None = None,
    input_names: Sequence[str] | None = None,
    output_names: Sequence[str] | None = None,
    dynamic_batch: bool = True,
    dynamic_shapes: Mapping[str, Any] | Sequence[Any] | None = None,
    opset: int | None = None,
    exporter: str = "dynamo",
) -> onnx.ModelProto:
    """Return `model` in evaluation mode as a checked ONNX model, written to `path` if one is given.

    Args:
        model: the module; every submodule keeps its training mode. Or a program of torch.export, or its
            module, quantized by torchao or not: that has the mode in which it was exported.
        inputs: example tensors in the order of forward's parameters; only their shapes and types matter.
        path: the file to write; None writes no file.
        kwargs: example tensors by name, for parameters that `inputs` leaves out; forward's order holds.
        input_names: default are the names of forward's parameters.
        output_names: default are the names that the exporter chooses.
        dynamic_batch: axis 0 of every input becomes the dynamic axis "batch"; without `dynamic_shapes` only.
            A size that torch.export fixed stays.
        dynamic_shapes: dynamic axes as torch.onnx.export takes them, by "dynamo" only: for each parameter
            {axis: torch.export.Dim, or the name of the axis}. Parameters left out keep the example's shape.
        opset: default is torch's choice.
        exporter: "dynamo", or "torchscript" for modules that "dynamo" refuses.

    Fake quantization by `onnxfq.torch`, by torch, or written out as division, rounding and clipping, becomes
    QuantizeLinear and DequantizeLinear with the same scales and zero points. The opset is the lowest one, not
    below the exporter's, that has the number formats.

    During the export torch's log and standard output are silent; torch's warning that a traced value became
    a constant is still shown.

    Raises:
        DataError: if forward does not take the inputs, or does not take another batch size.
        ModelError: if the module cannot be exported as requested.
        StatisticsError: for a fake quantizer without a scale.
        PlanError: for a fake quantizer that QuantizeLinear cannot express.
        OutputError: if `path` cannot be written.
    """
    if isinstance(model, torch.export.ExportedProgram):
        model = model.module()
    if not isinstance(model, nn.Module) or isinstance(model, torch.jit.ScriptModule):
        raise ModelError(f"export_torch takes a torch.nn.Module, not {type(model).__name__}; pass the module")
    if exporter not in EXPORTERS:
        raise ModelError(f"unknown exporter {exporter!r}{nearest(exporter, EXPORTERS)}")
    if path is not None:
        check_writable(Path(path))  # before the work, which may take minutes
    if dynamic_shapes is not None and exporter != "dynamo":
        raise ModelError(f"dynamic_shapes needs exporter='dynamo', found {exporter!r}; use dynamic_batch")
    arguments = bind(model, (inputs,) if isinstance(inputs, Tensor) else inputs, kwargs)
    names = name_inputs(arguments, input_names, output_names)
    shapes = read_dynamic_shapes(arguments, dynamic_shapes)
    is_dynamic = dynamic_batch and not has_fixed_batch(model)
    request = Request(arguments, names, output_names, is_dynamic, opset, shapes)
    exported = export_nodes(model, request, exporter)
    targets = {one.target for one in quantizers(model).values()} - {""}
    target = targets.pop() if len(targets) == 1 else DEFAULT_TARGET
    lifted = lift(exported, target)
    if lifted is not None:
        exported = lower(with_target_form(lifted, target))
        check_lowered(exported, request)
    if path is not None:
        with replace_file(Path(path)) as temporary:
            temporary.write_bytes(exported.SerializeToString())
    return exported


def export_nodes(model: nn.Module, request: Request, exporter: str = "dynamo") -> onnx.ModelProto:
    """Return the checked export, with FakeQuantize nodes for fake quantization."""
    types = {tensor.dtype for tensor in (*model.parameters(), *request.inputs)}
    if request.opset is None and torch.bfloat16 in types:
        request = replace(request, opset=BFLOAT16_OPSET)
    with evaluation_mode(model), disable_observers(model), lowered_later(), quiet():
        check_scales(model)
        # Scales are numbers of the type of the inputs, and follow the weights that functions read: both are
        # seen in a run.
        if types & HALF_TYPES or any(TABLE in vars(module) for module in model.modules()):
            try_forward(model, request)
        with freeze_grids(model):
            redirect = try_forward(model, request)
            exported = run(exporter, model, request, redirect)
    forget_origin(exported)
    check(exported, request, exporter)
    return exported


def is_exported(model: nn.Module) -> bool:
    """Tell whether torch.export made a module: its `eval` refuses."""
    return isinstance(model, torch.fx.GraphModule) and "eval" in vars(model)


def has_fixed_batch(model: nn.Module) -> bool:
    """Tell whether a module of torch.export was exported with a size of axis 0 for each of its inputs."""
    nodes = model.graph.nodes if is_exported(model) else ()
    shapes = [node.meta["val"].shape for node in nodes if node.op == "placeholder"]
    return bool(shapes) and all(isinstance(size, int) for shape in shapes for size in shape[:1])


@contextlib.contextmanager
def evaluation_mode(model: nn.Module) -> Iterator[None]:
    """Put every submodule in evaluation mode, and restore its mode afterwards.

    A module of torch.export has the mode that was exported, whatever it says, and refuses another.
    """
    modes = [(module, module.training) for module in model.modules()]
    if is_exported(model):
        model.training = False
    else:
        model.eval()
    try:
        yield
    finally:
        for module, mode in modes:
            module.training = mode


def try_forward(model: nn.Module, request: Request) -> contextlib.AbstractContextManager[Any]:
    """Run the module once before the export, because forward's error is clearer than an exporter's.

    Returns the context for the export. It redirects functions of torch only if there was one: it would look
    at some ten thousand calls.

    A dynamic batch is also run at twice its size: the older exporter would not notice that forward takes one
    size only, and would write a wrong model.
    """
    doubled = request.map_inputs(lambda name, x: torch.cat([x, x]) if name in request.dynamic_names else x)
    tried = request.arguments
    try:
        with torch.no_grad(), Redirect() as redirect:
            model(*tried.args, **tried.kwargs)
            if request.dynamic_names:
                tried = doubled
                model(*tried.args, **tried.kwargs)
    except Exception as error:  # forward is the user's code and may raise anything
        inputs = dict(zip(request.input_names, replace(request, arguments=tried).inputs, strict=True))
        shapes = ", ".join(f"{name} {list(x.shape)}" for name, x in inputs.items())
        remedy = "fix axis 0 by dynamic_batch=False" if tried is doubled else "pass inputs that it takes"
        name = type(model).__name__
        raise DataError(f"{name}.forward fails on {shapes}: {reason(error)}; {remedy}") from error
    return Redirect() if redirect.was_needed else contextlib.nullcontext()


def forget_origin(message: Any) -> None:
    """Clear comments and metadata: torch writes source paths and stack traces of this machine there.

    Module paths remain.

    Args:
        message: the model, or any protobuf message in it; nested messages are cleared too.
    """
    for field, value in message.ListFields():
        if field.name == "metadata_props":
            kept = [(entry.key, entry.value) for entry in value if entry.key == SCOPES_KEY]
            message.ClearField(field.name)
            for key, text in kept:
                message.metadata_props.add(key=key, value=text)
        elif field.name == "doc_string":
            message.ClearField(field.name)
        elif field.message_type is not None:
            for child in [value] if hasattr(value, "ListFields") else value:  # one message, or many
                forget_origin(child)


def check_lowered(model: onnx.ModelProto, request: Request) -> None:
    """Raise ModelError if the Q/DQ model is not valid, or its number formats need another opset."""
    opset = default_opset(model)
    if request.opset not in (None, opset):
        raise ModelError(f"its formats need opset {opset}, and {request.opset} was asked; leave it out")
    _check_valid(
        model, "the Q/DQ form is an invalid model", "export FakeQuantize nodes and insert pairs from a plan"
    )


def check(model: onnx.ModelProto, request: Request, exporter: str) -> None:
    """Raise ModelError if the exported model is invalid or not as requested.

    Neither exporter guarantees this: the older one drops inputs that forward does not use, and the newer one
    keeps its opset if the conversion to another fails.
    """
    shapes = {value.name: value.type.tensor_type.shape.dim for value in model.graph.input}
    if missing := [name for name in request.input_names if name not in shapes]:
        raise ModelError(f"the {exporter} exporter dropped {missing[0]!r}, which is not used; take it out")
    for name, axes in zip(request.input_names, request.dynamic_shapes or (), strict=False):
        for axis, dim in axes.items():  # torch fixes some without an error
            if isinstance(dim, (str, torch.export.Dim)) and shapes[name][axis].HasField("dim_value"):
                raise ModelError(
                    f"axis {axis} of input {name!r} is fixed to {shapes[name][axis].dim_value} by forward; "
                    "take it out of dynamic_shapes"
                )
    outputs = [value.name for value in model.graph.output]
    if request.output_names is not None and outputs != list(request.output_names):
        raise ModelError(f"output_names {list(request.output_names)} do not fit the {len(outputs)} outputs")
    opset = default_opset(model)
    if request.opset not in (None, opset):
        raise ModelError(f"the {exporter} exporter gave opset {opset} for {request.opset}; leave opset out")
    _check_valid(model, f"the {exporter} exporter made an invalid model", "try the other exporter")


def _check_valid(model: onnx.ModelProto, what: str, remedy: str) -> None:
    """Raise ModelError that begins with `what` and ends with `remedy` if ONNX's checker rejects `model`."""
    try:
        onnx.checker.check_model(model, full_check=True)
    except (onnx.checker.ValidationError, onnx.shape_inference.InferenceError) as error:
        raise ModelError(f"{what}: {reason(error)}; {remedy}") from error
