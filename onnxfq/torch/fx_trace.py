"""torch.fx traces of a module's forward: products, functional layers and sums, found and rewritten.

Only the code of the module itself is traced, not its children. It is traced in training and in evaluation
mode, and each mode keeps its code. Code that cannot be traced without guessing is left alone, with a reason:
a trace would fix one path of a forward with optional arguments.
"""

from __future__ import annotations

import copy
import functools
import inspect
import operator
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import torch
from torch import fx, nn
from torch.nn import functional as F

from onnxfq.errors import ModelError
from onnxfq.placement.residual_adds import RESIDUAL
from onnxfq.torch.attention import decompose_sdpa, restore_calls
from onnxfq.torch.fx_ops import (
    FxSite,
    functional_layer,
    is_product,
    make_site,
    multiplications,
    normalize_arguments,
    weight_of,
)
from onnxfq.torch.layers import LAYERS, SUFFIX, Swapped, layer_kind, swap
from onnxfq.torch.quantizer import FakeQuantize

_SUMS: dict[str, tuple[Any, ...]] = {
    "call_function": (operator.add, operator.iadd, torch.add),
    "call_method": ("add", "add_"),
}


@dataclass(frozen=True)
class Code:
    """Traced forward of one module: its graphs in training and in evaluation mode, or why it has none."""

    module: nn.Module
    graphs: tuple[fx.Graph, ...] = ()
    why_not: str = ""


Trace = Callable[[nn.Module], Code]
"""`trace`, or a cache of it."""


class _Tracer(fx.Tracer):
    """Tracer of one module without its children."""

    def is_leaf_module(self, module: nn.Module, qualified_name: str) -> bool:
        return True


def has_own_code(module: nn.Module) -> bool:
    """Tell whether a user wrote the forward of a module, which may contain functional operations."""
    return not type(module).__module__.startswith("torch.") and not isinstance(module, FakeQuantize)


def traced_nodes(module: nn.Module, trace: Trace) -> list[fx.Node]:
    """Return the nodes in evaluation mode of a forward that a user wrote; [] without a trace."""
    graphs = trace(module).graphs if has_own_code(module) else ()
    return list(graphs[-1].nodes) if graphs else []


def trace(module: nn.Module) -> Code:
    """Return the traced forward of a module, without its children."""
    parameters = inspect.signature(module.forward).parameters.values()
    if any(
        p.default is not p.empty or p.kind not in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)
        for p in parameters
    ):
        why = (
            "its forward has optional arguments, and a trace would fix one path; only products in a "
            "forward without optional arguments are quantized"
        )
        return Code(module, why_not=why)
    mode, graphs = module.training, []
    try:
        for training in (True, False):
            module.training = training
            graph = _Tracer().trace(module)
            normalize_arguments(module, graph)
            decompose_sdpa(graph)
            graphs.append(graph)
    except Exception as error:  # tracing runs the user's code, which may raise anything
        text = (str(error) or type(error).__name__).splitlines()[0]
        return Code(module, why_not=f"torch.fx cannot trace its forward: {text}")
    finally:
        module.training = mode
    names = [[node.name for node in graph.nodes if _multiplies(node) or _is(node, _SUMS)] for graph in graphs]
    if names[0] != names[1]:
        return Code(
            module, why_not="its forward multiplies or adds different tensors in training than in evaluation"
        )
    return Code(module, tuple(graphs))


def successions(module: nn.Module, trace: Trace) -> Iterator[tuple[nn.Module, nn.Module]]:
    """Yield pairs of children that run once each, the second as the only reader of the first one's output."""
    if isinstance(module, nn.Sequential) and type(module).forward is nn.Sequential.forward:
        children = list(module)
        yield from ((a, b) for a, b in pairwise(children) if children.count(a) == children.count(b) == 1)
        return
    layers = [node for node in traced_nodes(module, trace) if node.op == "call_module"]
    targets = [str(node.target) for node in layers]
    for node in layers:
        users = list(node.users)
        if len(users) == 1 and users[0].op == "call_module":
            first, second = str(node.target), str(users[0].target)
            if targets.count(first) == targets.count(second) == 1:
                yield module.get_submodule(first), module.get_submodule(second)


def _is(node: fx.Node, table: Mapping[str, tuple[Any, ...]]) -> bool:
    return node.target in table.get(node.op, ())


def _multiplies(node: fx.Node) -> bool:
    return is_product(node) or functional_layer(node) is not None


def find_weighted_type(module: nn.Module) -> type[nn.Module] | None:
    """Return the type of a layer that multiplies its input by weights; None for other modules."""
    kind = layer_kind(module)
    if kind is None or not kind.has_input:
        return None
    return next(base for base in LAYERS if isinstance(module, base))


def calls(code: Code) -> Iterator[FxSite]:
    """Yield the products, the functional layers and the residual sums of a forward.

    The skip branch of a sum is chosen as in `placement.residual_adds`: if one branch ends in a layer with
    weights, the other branch; if both do, the shorter one.
    """
    if not code.graphs:
        return
    graph = code.graphs[-1]  # the graph of evaluation
    yield from multiplications(code.module, graph)
    for node in graph.nodes:
        skip = _skip_branch(code.module, node) if _is(node, _SUMS) else None
        if skip is not None:
            position, why_float = skip
            operand = (f"{node.name}_skip", position, None)
            yield replace(make_site(node, RESIDUAL, ("Add",), [operand], why_float), residual=True)


def _skip_branch(module: nn.Module, add: fx.Node) -> tuple[int, str] | None:
    sides = add.args[:2]
    if len(sides) != 2 or sides[0] is sides[1] or not all(isinstance(side, fx.Node) for side in sides):
        return None
    if any(side.op == "get_attr" for side in sides):
        return None
    ends = [_find_weighted_end(module, side) for side in sides]
    if ends == [None, None]:
        return None
    main = _longer(module, *sides) if None not in ends else int(ends[0] is None)
    convolves = any(end not in (None, nn.Linear) for end in ends)
    if convolves or _read_by_layer(module, add):
        return 1 - main, ""
    return 1 - main, "skip branch of a sum that no quantized operator reads: a pair would only add noise"


_PASSES = (nn.Identity, nn.Dropout, nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)
_ACTIVATIONS = (
    *(nn.ReLU, nn.ReLU6, nn.LeakyReLU, nn.PReLU),
    *(nn.Sigmoid, nn.Hardswish, nn.Hardsigmoid, nn.Hardtanh),
)
_ACTIVATION_CALLS: dict[str, tuple[Any, ...]] = {
    "call_function": (F.relu, torch.relu, F.relu6, F.leaky_relu, torch.sigmoid, F.hardswish, torch.clamp),
    "call_method": ("relu", "sigmoid", "clamp"),
}


def _find_weighted_end(module: nn.Module, node: fx.Node) -> type[nn.Module] | None:
    """Return the type of the weighted layer that ends at `node`, at most followed by BatchNorm; else None."""
    while len(node.users) == 1:
        layer = functional_layer(node)
        if layer is not None or node.op != "call_module":
            return layer
        child = module.get_submodule(str(node.target))
        last = _last(child)
        if last is not None:
            return find_weighted_type(last)
        if not isinstance(child, _PASSES):
            return None
        node = node.args[0]
    return None


def _last(module: nn.Module) -> nn.Module | None:
    """Return the last layer of a module, looking through BatchNorm and the like; None if not found."""
    if layer_kind(module) is not None:
        return module
    if isinstance(module, nn.Sequential):
        for child in reversed(module):
            if not isinstance(child, _PASSES):
                return _last(child)
        return None
    if has_own_code(module):
        end = next((node.args[0] for node in traced_nodes(module, trace) if node.op == "output"), None)
        while isinstance(end, fx.Node) and end.op == "call_module":
            child = module.get_submodule(str(end.target))
            if not isinstance(child, _PASSES):
                return _last(child)
            end = end.args[0]
    return None


def _longer(module: nn.Module, left: fx.Node, right: fx.Node) -> int:
    """Return 0 or 1: the branch with more layers since the fork of both."""
    ways = [_ways(module, side) for side in (left, right)]
    shared = [node for node in ways[0] if node in ways[1]]
    if not shared:
        return 0
    fork = min(shared, key=lambda node: ways[0][node] + ways[1][node])
    return 0 if ways[0][fork] >= ways[1][fork] else 1


def _ways(module: nn.Module, node: fx.Node) -> dict[fx.Node, int]:
    order = list(node.graph.nodes)
    position = {place_of: i for i, place_of in enumerate(order)}
    length = {node: 0}
    for current in reversed(order[: position[node] + 1]):
        if current not in length:
            continue
        steps = 1
        if current.op == "call_module":
            child = module.get_submodule(str(current.target))
            steps = max(sum(1 for leaf in child.modules() if not list(leaf.children())), 1)
        for parent in current.all_input_nodes:
            length[parent] = max(length.get(parent, 0), length[current] + steps)
    return length


def _read_by_layer(module: nn.Module, node: fx.Node) -> bool:
    for user in node.users:
        child = module.get_submodule(str(user.target)) if user.op == "call_module" else None
        while isinstance(child, nn.Sequential) and len(child):
            child = child[0]
        if (child is not None and find_weighted_type(child) is not None) or _multiplies(user):
            return True
        passes = isinstance(child, _ACTIVATIONS) or _is(user, _ACTIVATION_CALLS)
        if passes and _read_by_layer(module, user):
            return True
    return False


_SITES = "quantized_at"
"""Attribute with the sites of the quantizers in the code, by name."""


class SwappedCode(Swapped):
    """Module whose forward is its traced code with quantizers inserted, one for each mode."""

    forwards: tuple[Callable[..., Any], ...]
    weights_read: Mapping[str, fx.Node]

    def __deepcopy__(self: Any, memo: dict[int, Any]) -> Any:
        """Return a copy that shares the code."""
        made = memo[id(self)] = object.__new__(type(self))
        made.__dict__.update(copy.deepcopy(self.__dict__, memo))
        return made

    def __setstate__(self: Any, state: dict[str, Any]) -> None:
        """Take the content that was pickled, and trace the code again as torch.fx does."""
        self.__class__ = self.float_class
        self.__setstate__(state)
        code = trace(self)
        if code.why_not:
            raise ModelError(f"{type(self).__name__} cannot be read back: {code.why_not}; load a state dict")
        sites = self.__dict__[_SITES]
        rewrite(code, {name: self._modules[name + SUFFIX] for name in sites}, sites)

    def refresh(self: Any) -> None:
        """Let the quantizers of weights see the weights as they are now."""
        for name, node in type(self).weights_read.items():
            self.get_submodule(name + SUFFIX)(weight_of(self, node))


def rewrite(code: Code, given: Mapping[str, FakeQuantize], sites: Mapping[str, tuple[str, int]]) -> None:
    """Insert quantizers into the forward of a module, by tensor name at the site (operation, argument)."""
    forwards, weights = [], {}
    for graph in code.graphs:
        graph = _copy(graph)
        nodes = {node.name: node for node in graph.nodes}
        for name in given:
            operation, position = sites[name]
            node = nodes[operation]
            if weight_of(code.module, node.args[position]) is not None:
                weights[name] = node.args[position]
            with graph.inserting_before(node):
                quantized = graph.call_module(name + SUFFIX, (node.args[position],))
            node.update_arg(position, quantized)
        restore_calls(graph, {sites[name][0] for name in given})
        forwards.append(graph)
    swap(code.module, given, SwappedCode)
    functions = [type(fx.GraphModule(code.module, graph)).forward for graph in forwards]
    swapped: Any = type(code.module)
    swapped.forwards, swapped.weights_read = tuple(functions), weights
    swapped.forward = _dispatcher(functions[-1])
    code.module.__dict__[_SITES] = {name: sites[name] for name in given}


def _dispatcher(like: Callable[..., Any]) -> Callable[..., Any]:
    """Return the forward for the current mode of a module, with the parameters of `like`."""

    @functools.wraps(like)  # torch.fx reads them from the code that is wrapped
    def forward(self: Any, *args: Any, **keywords: Any) -> Any:
        return type(self).forwards[0 if self.training else 1](self, *args, **keywords)

    return forward


def _copy(graph: fx.Graph) -> fx.Graph:
    made = fx.Graph()
    copied: dict[fx.Node, fx.Node] = {}
    made.output(made.graph_copy(graph, copied))
    for node in made.nodes:
        if "attention" in node.meta:
            scores, function, args, kwargs = node.meta["attention"]
            args, kwargs = fx.map_arg((args, kwargs), copied.__getitem__)
            node.meta["attention"] = copied[scores], function, args, kwargs
    return made
