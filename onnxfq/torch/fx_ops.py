"""Functional multiplications in a traced forward: their operands and weights.

A weight is a parameter or buffer, read directly or through a data movement such as a transposition. It is a
constant of the exported model, quantized as the weight of the operator that the function becomes.
"""

from __future__ import annotations

import operator
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import reduce
from types import MappingProxyType
from typing import Any, NamedTuple

import torch
from torch import Tensor, fx, nn
from torch.nn import functional as F

from onnxfq.graph.ops import channel_axis, einsum_product, find_summed_axis
from onnxfq.torch.layers import LAYERS, LayerKind

# Function or method -> ONNX operator and the positions of both operands.
_PRODUCTS: dict[Any, tuple[str, tuple[int, int]]] = {
    **dict.fromkeys((operator.matmul, torch.matmul, torch.linalg.matmul), ("MatMul", (0, 1))),
    **dict.fromkeys((torch.mm, torch.bmm, torch.mv, torch.dot), ("MatMul", (0, 1))),
    **dict.fromkeys(("matmul", "__matmul__", "mm", "bmm", "mv", "dot"), ("MatMul", (0, 1))),
    **dict.fromkeys((torch.addmm, "addmm"), ("Gemm", (1, 2))),
    **dict.fromkeys((torch.baddbmm, "baddbmm"), ("MatMul", (1, 2))),
    torch.einsum: ("Einsum", (1, 2)),
}
_LAYERS: dict[Any, type[nn.Module]] = {
    F.linear: nn.Linear,
    F.conv1d: nn.Conv1d,
    F.conv2d: nn.Conv2d,
    F.conv3d: nn.Conv3d,
    F.conv_transpose1d: nn.ConvTranspose1d,
    F.conv_transpose2d: nn.ConvTranspose2d,
    F.conv_transpose3d: nn.ConvTranspose3d,
}
_LEFT_IN_FLOAT: tuple[Any, ...] = (
    *(F.scaled_dot_product_attention, F.multi_head_attention_forward, F.bilinear, torch.bilinear),
    *(F.embedding, F.embedding_bag, torch.embedding),
    *(torch.addbmm, torch.addmv, torch.inner, torch.tensordot, torch.chain_matmul, torch.linalg.multi_dot),
    *("addbmm", "addmv", "inner"),
)
_MOVES = ("t", "transpose", "permute", "contiguous", "view", "reshape", "unsqueeze", "squeeze", "flatten")
_MOVING_ATTRIBUTES = ("T", "mT")
_NAMED: tuple[Any, ...] = (
    *(*_PRODUCTS, *_LAYERS, F.scaled_dot_product_attention, F.dropout, F.softmax, torch.softmax),
    *(torch.add, "add", "add_"),
)
# Keyword names of the leading arguments, by position; the first name that is present counts.
_NAMES = (
    ("input", "self", "query"),
    ("other", "mat1", "batch1", "weight", "key", "vec", "tensor", "mat2"),
    ("mat2", "batch2", "value"),
)


class OnnxNode(NamedTuple):
    """ONNX node that a layer or a function becomes, in the form that `graph.ops` and target policies read."""

    op: str
    attrs: Mapping[str, Any] = MappingProxyType({})
    name: str = ""
    inputs: tuple[Any, ...] = ()
    outputs: tuple[Any, ...] = ()


@dataclass(frozen=True)
class FxSite:
    """Layer or operation that multiplies, before the recipe is applied.

    Attributes:
        name: its node name in the plan.
        owner: path of the module that holds its quantizers.
        type_name: its type in the plan.
        op_types: the ONNX operators it becomes.
        activations: tensor names within the owner.
        weights: tensor names within the owner.
        parameters: the weights by these names.
        kind: kind of the layer; None without weights.
        why_float: why it cannot be quantized; empty if it can.
        at: for operations, (operation, argument) that reads each tensor.
        residual: whether it is a residual sum.
        depthwise: whether it is a layer whose groups read one channel each.
    """

    name: str
    owner: str
    type_name: str
    op_types: tuple[str, ...]
    activations: tuple[str, ...]
    weights: tuple[str, ...] = ()
    parameters: Mapping[str, Tensor] = field(default_factory=dict)
    kind: LayerKind | None = None
    why_float: str = ""
    at: Mapping[str, tuple[str, int]] = field(default_factory=dict)
    residual: bool = False
    depthwise: bool = False

    def tensor(self, name: str) -> str:
        """Return the full name of a tensor of the owner."""
        return f"{self.owner}.{name}" if self.owner else name


Operand = tuple[str, int, Tensor | None]
"""Tensor read by an operation: its name, position among the arguments, and values if it is a weight."""


def make_site(
    node: fx.Node,
    type_name: str,
    op_types: tuple[str, ...],
    operands: Sequence[Operand] = (),
    why_float: str = "",
    kind: LayerKind | None = None,
    groups: int = 1,
) -> FxSite:
    """Return the site of an operation in the outermost module; arguments are as in `FxSite`."""
    weights = {name: weight for name, _, weight in operands if weight is not None}
    return FxSite(
        name=node.name,
        owner="",
        type_name=type_name,
        op_types=op_types,
        activations=tuple(name for name, _, weight in operands if weight is None),
        weights=tuple(weights),
        parameters=weights,
        kind=kind,
        why_float=why_float or explain_unquantized(weights),
        at={name: (node.name, position) for name, position, _ in operands},
        depthwise=bool(weights) and is_depthwise(op_types, weights, groups),
    )


def is_depthwise(op_types: tuple[str, ...], weights: Mapping[str, Tensor], groups: int) -> bool:
    """Tell whether an operator is a convolution whose groups read one channel each."""
    return op_types == ("Conv",) and groups > 1 and all(weight.shape[1] == 1 for weight in weights.values())


def explain_unquantized(weights: Mapping[str, Tensor]) -> str:
    """Return why weights of such a type stay in float; empty if they are quantized."""
    for weight in weights.values():
        if not weight.dtype.is_floating_point or weight.dtype.itemsize > 4:
            return f"its weight is {weight.dtype}, and floats of 16 or 32 bits are quantized"
    return ""


def is_product(node: fx.Node) -> bool:
    """Tell whether a node is a matrix product that may be quantized."""
    return node.op in ("call_function", "call_method") and node.target in _PRODUCTS


def functional_layer(node: fx.Node) -> type[nn.Module] | None:
    """Return the layer type equivalent to a functional call; None for other nodes."""
    return _LAYERS.get(node.target) if node.op == "call_function" else None


def multiplications(module: nn.Module, graph: fx.Graph) -> Iterator[FxSite]:
    """Yield every multiplying operation of a traced forward, with the reason if it stays in float."""
    for node in graph.nodes:
        layer = functional_layer(node)
        if is_product(node):
            yield from _product(module, node)
        elif layer is not None:
            yield _layer(module, node, layer)
        elif node.op in ("call_function", "call_method") and node.target in _LEFT_IN_FLOAT:
            name = getattr(node.target, "__name__", str(node.target))
            why = f"functional {name}: write it as a module, or with torch.matmul"
            yield make_site(node, name, (name,), why_float=why)


def _product(module: nn.Module, node: fx.Node) -> Iterator[FxSite]:
    op_type, positions = _PRODUCTS[node.target]
    equation = node.args[0] if op_type == "Einsum" and node.args else ""
    if op_type == "Einsum" and (not isinstance(equation, str) or einsum_product(equation) is None):
        why = f"its equation {str(equation)!r} is not a product of two tensors like MatMul"
        yield make_site(node, op_type, (op_type,), why_float=why)
        return
    if len(node.args) <= positions[1]:
        why = "its tensors are passed by unknown keywords; pass them by position"
        yield make_site(node, op_type, (op_type,), why_float=why)
        return
    sides = [(node.args[position], position) for position in positions]
    weights = [weight_of(module, value) for value, _ in sides]
    if None not in weights:
        return  # a constant
    operands = tuple(
        (f"{node.name}_{end}", position, weight)
        for end, (_, position), weight in zip(("input", "other"), sides, weights, strict=True)
    )
    kind = None
    for slot, weight in enumerate(weights):
        if weight is not None:
            onnx_node = OnnxNode(op_type, {"equation": equation})
            kind = LayerKind(
                op_types=(op_type,),
                weights=lambda module: (),
                channel_axis=channel_axis(onnx_node, slot, weight.ndim),
                summed_axis=find_summed_axis(onnx_node, slot, weight.ndim),
                has_input=True,
            )
    yield make_site(node, op_type, (op_type,), operands, kind=kind)


def _layer(module: nn.Module, node: fx.Node, layer: type[nn.Module]) -> FxSite:
    kind = LAYERS[layer]
    name = str(node.target.__name__)
    weight = weight_of(module, node.args[1]) if len(node.args) > 1 else None
    if weight is None:
        why = f"functional {name}: its weight is computed in forward; only parameters are quantized"
        return make_site(node, name, kind.op_types[:1], why_float=why)
    operands = ((f"{node.name}_input", 0, None), (f"{node.name}_weight", 1, weight))
    groups = node.args[6] if len(node.args) > 6 else node.kwargs.get("groups", 1)
    known = groups if isinstance(groups, int) else 1
    return make_site(node, name, kind.op_types, operands, kind=kind, groups=known)


def weight_of(module: nn.Module, value: Any) -> Tensor | None:
    """Return the weight behind an argument in the forward of `module`, data movements applied; else None."""
    if not isinstance(value, fx.Node):
        return None
    if value.op == "get_attr":
        weight = reduce(getattr, str(value.target).split("."), module)
        return weight if isinstance(weight, Tensor) else None
    if any(isinstance(argument, fx.Node) for argument in value.args[1:]) or value.kwargs:
        return None
    source = weight_of(module, value.args[0]) if value.args else None
    if source is None:
        return None
    if value.op == "call_method" and value.target in _MOVES:
        moved: Tensor = getattr(source, str(value.target))(*value.args[1:])
        return moved
    if value.target is getattr and value.args[1] in _MOVING_ATTRIBUTES:
        moved = getattr(source, str(value.args[1]))
        return moved
    return None


def normalize_arguments(module: nn.Module, graph: fx.Graph) -> None:
    """Turn keyword arguments into positional ones for the leading tensors of a call."""
    for node in graph.nodes:
        if node.op == "call_module":
            names: tuple[tuple[str, ...], ...] = (_first_parameter(module, node),)
        elif node.op in ("call_function", "call_method") and node.target in _NAMED:
            names = _NAMES
        else:
            continue
        args, kwargs = list(node.args), dict(node.kwargs)
        for known in names[len(args) :]:
            name = next((name for name in known if name in kwargs), None)
            if name is None:
                break
            args.append(kwargs.pop(name))
        if len(args) > len(node.args):
            node.args, node.kwargs = tuple(args), kwargs


def _first_parameter(module: nn.Module, node: fx.Node) -> tuple[str, ...]:
    child = module.get_submodule(str(node.target))
    code = getattr(child.forward, "__code__", None)
    return () if code is None else code.co_varnames[1:2]
