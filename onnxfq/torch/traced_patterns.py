"""Patterns in traced modules: fused attention, and operators of a known range (`calibrators.fixed`).

Attention is the pattern of `graph.patterns.attention`, two products around a Softmax, applied to the traced
code of a module; TensorRT fuses it all in low precision or not. nn.MultiheadAttention is one site and
therefore always stays whole.
"""

from __future__ import annotations

import operator
from collections.abc import Iterator
from functools import partial
from itertools import pairwise
from typing import Any

import torch
from torch import fx, nn
from torch.nn import functional as F

from onnxfq.graph.patterns.attention import AttentionForm, match_attention
from onnxfq.torch.attention import clear_empty_rows, with_mask
from onnxfq.torch.fx_ops import is_product
from onnxfq.torch.fx_trace import Trace, traced_nodes

_LAYERS = (nn.Softmax, nn.Dropout, nn.Identity)
_SOFTMAX: tuple[Any, ...] = (torch.softmax, F.softmax, "softmax", nn.Softmax)
_BEHIND: tuple[Any, ...] = (
    *(F.dropout, torch.where, torch.nan_to_num, "nan_to_num", "masked_fill"),
    *(nn.Dropout, nn.Identity, clear_empty_rows),
)
# Scale and mask.
_BEFORE: tuple[Any, ...] = (
    *(operator.add, operator.iadd, operator.mul, operator.imul, operator.sub),
    *(operator.truediv, operator.itruediv, torch.add, torch.mul, torch.div),
    *(torch.where, torch.masked_fill, "add", "mul", "div", "masked_fill", "where"),
    *(nn.Dropout, nn.Identity, with_mask),
)


def attentions(model: nn.Module, trace: Trace) -> Iterator[tuple[str, str]]:
    """Yield the names of both products of every attention in a traced forward: (scores, mix)."""
    for path, module in model.named_modules():
        start = f"{path}." if path else ""
        form = AttentionForm(_makers_of, partial(_op, module), _SOFTMAX, _BEFORE, _BEHIND)
        for node in traced_nodes(module, trace):
            attention = match_attention(node, form)
            if attention is not None:
                yield f"{start}{attention.scores.name}", f"{start}{attention.mix.name}"


def _op(module: nn.Module, node: fx.Node) -> Any:
    """Return the target of `node`: a function, a method name, or a layer type; "MatMul" for products."""
    if is_product(node):
        return "MatMul"
    if node.op == "call_module":
        layer = module.get_submodule(str(node.target))
        return next((kind for kind in _LAYERS if isinstance(layer, kind)), None)
    return node.target if node.op in ("call_function", "call_method") else None


def _makers_of(node: fx.Node) -> list[fx.Node | None]:
    given = (*node.args, *node.kwargs.values())
    return [value if isinstance(value, fx.Node) else None for value in given]


_MODULES: dict[type[nn.Module], str] = {
    nn.Hardsigmoid: "HardSigmoid",
    nn.Sigmoid: "Sigmoid",
    nn.Softmax: "Softmax",
    nn.Softsign: "Softsign",
    nn.Tanh: "Tanh",
}
_CALLS: dict[Any, str] = {
    F.hardsigmoid: "HardSigmoid",
    F.softsign: "Softsign",
    **dict.fromkeys((torch.sigmoid, F.sigmoid, "sigmoid"), "Sigmoid"),
    **dict.fromkeys((torch.softmax, F.softmax, "softmax"), "Softmax"),
    **dict.fromkeys((torch.tanh, F.tanh, "tanh"), "Tanh"),
}
# Layers that an export in evaluation mode omits.
_PASSED = (nn.Identity, nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d)


def known_range_ops(model: nn.Module, trace: Trace) -> dict[str, str]:
    """Return the ONNX operator that produces each tensor with a known range, by the plan's tensor names.

    Covered are inputs of layers and operations in a traced forward or an nn.Sequential. A layer that runs
    several times counts only if the same operator produces all its inputs.
    """
    ops_by_tensor: dict[str, set[str]] = {}
    for path, module in model.named_modules():
        start = f"{path}." if path else ""
        if isinstance(module, nn.MultiheadAttention):
            ops_by_tensor[f"{start}context_input"] = {"Softmax"}
        elif isinstance(module, nn.Sequential) and type(module).forward is nn.Sequential.forward:
            kept = [
                (name, child) for name, child in module.named_children() if not isinstance(child, _PASSED)
            ]
            for (_, before), (name, _) in pairwise(kept):
                ops_by_tensor.setdefault(f"{start}{name}.input", set()).add(_MODULES.get(type(before), ""))
        else:
            for node in traced_nodes(module, trace):
                for name, source in _reads(node):
                    ops_by_tensor.setdefault(f"{start}{name}", set()).add(_find_known_op(module, source))
    return {name: next(iter(ops)) for name, ops in ops_by_tensor.items() if len(ops) == 1 and "" not in ops}


def _reads(node: fx.Node) -> list[tuple[str, Any]]:
    """Return (tensor name, producer) of each input of a node that may be quantized."""
    if node.op == "call_module" and node.args:
        return [(f"{node.target}.input", node.args[0])]
    if node.op in ("call_function", "call_method"):
        ends = ("_input", "_other")
        return [(f"{node.name}{end}", value) for end, value in zip(ends, node.args, strict=False)]
    return []


def _find_known_op(module: nn.Module, source: Any) -> str:
    if not isinstance(source, fx.Node):
        return ""
    if source.op == "call_module":
        child = module.get_submodule(str(source.target))
        return (
            _find_known_op(module, source.args[0])
            if isinstance(child, _PASSED)
            else _MODULES.get(type(child), "")
        )
    if source.op == "call_function" and source.target is F.dropout:
        return _find_known_op(module, source.args[0])
    return _CALLS.get(source.target, "") if source.op in ("call_function", "call_method") else ""
