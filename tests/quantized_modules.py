"""Torch modules quantized by small recipes, and what became of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
import torch
from builders import run_as_written
from torch import nn
from torch.utils._pytree import tree_leaves, tree_structure

import onnxfq
from onnxfq.documents.recipe import Recipe
from onnxfq.targets.lower_fake_quantize import lift
from onnxfq.torch import compute_encodings, plan_of, quantize_module
from onnxfq.torch.export import export_nodes
from onnxfq.torch.recording import record_calls
from onnxfq.torch.request import Request, bind, name_inputs


def normal(*shape: int, seed: int = 0) -> torch.Tensor:
    """Return normal numbers, the same at every call."""
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


class Function(nn.Module):
    """Module whose forward is a function, with its names of parameters."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.forward = function


def made_of(forward: Callable[..., Any], **parts: Any) -> nn.Module:
    """Return a module of these parts in evaluation mode; `forward` takes it and its inputs."""
    made = type("Made", (nn.Module,), {"forward": forward})()
    for name, part in parts.items():
        setattr(made, name, part)
    return made.eval()


def recipe(activations="int8", weights="int8", target="simulation", overrides=(), **fields) -> Recipe:
    """Return a recipe of these number formats."""
    given = {"qtype": activations, "symmetric": str(activations)[0] != "u", "calibrator": "minmax"}
    content = {"name": "test", "target": target, "activations": None if activations is None else given}
    content["weights"] = {"qtype": weights, **fields}
    return Recipe.model_validate({**content, "overrides": list(overrides)})


def prepared(model: nn.Module, x, asked=None) -> onnxfq.Plan:
    """Quantize a module and compute its encodings on x."""
    quantize_module(model, recipe() if asked is None else asked)
    with torch.no_grad(), compute_encodings(model):
        model(*x) if isinstance(x, tuple) else model(x)
    return plan_of(model)


_recorded: dict[str, tuple[Any, Any]] = {}


def record_once(model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Return the calls and the export of a module, made once for all that have its parts, sizes and modes.

    Hooks and graphs of torch.export are recorded each time.
    """
    parts, tensors = list(model.named_modules()), [*model.named_parameters(), *model.named_buffers()]
    hooks = any(one._forward_pre_hooks or one._forward_hooks for _, one in parts)
    if hooks or isinstance(model, torch.fx.GraphModule):
        return record_calls(model, args, kwargs)
    own = [
        (path, type(one), type(one).forward, {k: v for k, v in vars(one).items() if k[0] != "_"})
        for path, one in parts
    ]
    sizes = [(name, one.shape, one.dtype) for name, one in tensors]
    given = [
        (one.shape, one.dtype) if isinstance(one, torch.Tensor) and one.is_floating_point() else one
        for one in tree_leaves((args, kwargs))
    ]
    key = f"{own} {sizes} {given} {tree_structure((args, kwargs))}"
    if key not in _recorded:  # with the parts, so that nothing else gets the address of one
        _recorded[key] = own, record_calls(model, args, kwargs)
    return _recorded[key][1]


def exported_roles(model: nn.Module, x: torch.Tensor) -> dict[tuple[str, int], str]:
    """Return the roles in the export of a quantized module."""
    arguments = bind(model, (x,))
    request = Request(arguments, name_inputs(arguments, None, None), None, True, None)
    lifted = lift(export_nodes(model, request))
    return roles(lifted.plan, lifted.model)


def roles(plan: onnxfq.Plan, model) -> dict[tuple[str, int], str]:
    """Return the spec at each place where the operators of a model read a quantized value.

    Operators are counted by type in the order of the graph, for their names are the exporter's.
    """
    order: dict[str, int] = {}
    names = {}
    for node in model.proto.graph.node:
        order[node.op_type] = order.get(node.op_type, -1) + 1
        names[node.name] = f"{node.op_type} {order[node.op_type]}"
    found = {}
    for placement in plan.placements:
        for use in placement.uses:
            found[names[use.node], use.input] = str(placement.spec)
    return found


def run(model: onnx.ModelProto, x: torch.Tensor) -> np.ndarray:
    """Return the output of ONNX Runtime, all of its rewriting off."""
    return run_as_written(model, {model.graph.input[0].name: x.numpy()})[0]
