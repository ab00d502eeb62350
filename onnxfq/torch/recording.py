"""Export of a float module in which the inputs of nodes know the calls that read them.

While torch's exporter runs the forwards, a node marks each tensor that a call reads. Afterwards the marks are
taken out: what is left is the graph of a plain export, and each of its edges has the places that it ran
through.
"""

from __future__ import annotations

import contextlib
import warnings
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import takewhile
from typing import Any

import onnx
import torch
from onnx.helper import make_node
from onnxscript import ir, optimizer
from torch import Tensor, nn
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._pytree import tree_flatten, tree_leaves, tree_unflatten

from onnxfq.errors import DataError, ModelError
from onnxfq.graph.io.load import load
from onnxfq.graph.model import Model, remove_domain, replace_nodes
from onnxfq.graph.names import Use
from onnxfq.graph.walk import rename_tensors
from onnxfq.support.records import join_lines
from onnxfq.torch.calls import (
    ASSIGNMENTS,
    OUTPUTS,
    WRITTEN_OUT,
    Branch,
    Call,
    CallPlace,
    Calls,
    Function,
    attend,
    change_outputs,
    find_written,
    name_of,
    write_over,
)
from onnxfq.torch.export import evaluation_mode
from onnxfq.torch.exporters import export_with_dynamo, quiet, reason
from onnxfq.torch.layers import layer_kind
from onnxfq.torch.onnx_node import graph_node, is_exporting, lowered_later
from onnxfq.torch.quantizer import FakeQuantize
from onnxfq.torch.request import Request, bind, name_inputs

_DOMAIN = "onnxfq.places"
_MARK = "Mark"


@dataclass
class CallRecord:
    """Calls of a float module on example inputs.

    Attributes:
        places: the places that an edge ran through, the nearest to its node first.
        twins: the same of the nodes that the exporter joins with the node, because they compute the same.
        counts: calls in one run of the forward at a path, by the call around a call and the function.
        seen: all places in the order of the calls.
        held: the name of the parameter that a call reads, by place.
        orders: the same calls in their order, by path: the function, and the ranks of its tensors.
        branches: the calls in an export by path and function, if a run has others.
        norms: paths of each convolution and the BatchNorm that alone reads its result.
        views: the calls whose results are views, by what they look at.
        written: those of them whose tensor is written over later; a copy in front of one would lose that.
        writers: the calls that write over a tensor.
        exported: the float ONNX model.
    """

    places: dict[Use, tuple[CallPlace, ...]] = field(default_factory=dict)
    twins: dict[Use, list[tuple[CallPlace, ...]]] = field(default_factory=dict)
    counts: dict[str, dict[tuple[Call | None, Function], int]] = field(default_factory=dict)
    seen: list[CallPlace] = field(default_factory=list)
    held: dict[CallPlace, str] = field(default_factory=dict)
    orders: dict[str, list[tuple[Function, list[int]]]] = field(default_factory=dict)
    branches: dict[tuple[str, Function], Branch] = field(default_factory=dict)
    norms: list[tuple[str, str]] = field(default_factory=list)
    views: dict[StorageWeakRef, set[CallPlace]] = field(default_factory=dict)
    written: set[CallPlace] = field(default_factory=set)
    writers: set[CallPlace] = field(default_factory=set)
    exported: Model = field(init=False)

    def find_views(self, call: CallPlace, read: Any, written: Any, result: Any) -> None:
        """Note a call whose results are views of what it read, or the views that one writes over."""
        if written is not None:
            self.writers.add(call)
            self.written.update(*(self.views.get(one, ()) for one in _storages(written)))
            return
        for one in _storages(read) & _storages(result):
            self.views.setdefault(one, set()).add(call)

    def mark(self, tensor: Tensor, place: CallPlace) -> Tensor:
        """Return the tensor behind a node that stands for the place, while torch exports."""
        if not is_exporting():
            return tensor
        self.seen.append(place)
        return graph_node(f"{_DOMAIN}::{_MARK}", (tensor,), {"place": len(self.seen) - 1}, tensor.dtype)

    def find_branches(self, ran: CallRecord) -> None:
        """Number the calls of an export like a run's, because a forward may ask whether it is exported.

        If a function has another number of calls, those have a place that stand before all differences of the
        forward or behind them. The others get a number below 0.
        """
        for path, calls in self.orders.items():
            found = ran.orders.get(path, [])
            head, tail = _count_alike(calls, found), _count_alike(calls[::-1], found[::-1])
            twice = max(head + tail - min(len(calls), len(found)), 0)  # these may be of either end
            parts = calls[: head - twice], calls[len(calls) - tail + twice :], calls, found
            for function in {function for function, _ in calls}:
                first, last, count, others = (sum(one == function for one, _ in part) for part in parts)
                if count != others:
                    behind = {count - number: others - number for number in range(1, last + 1)}
                    before = {number: number for number in range(first)}
                    self.branches[path, function] = Branch(count, before | behind)

        def renumber(path: str, call: Call) -> Call:
            if call.outer is not None:
                return call._replace(outer=renumber(path, call.outer))
            branch = self.branches.get((path, call.function))
            return call if branch is None else call._replace(number=branch.number(call.number))

        def move(place: CallPlace) -> CallPlace:
            return place if place.call is None else place._replace(call=renumber(place.path, place.call))

        self.seen = list(map(move, self.seen))
        self.held = {move(place): name for place, name in self.held.items()}
        self.counts = ran.counts


def _storages(value: Any) -> set[StorageWeakRef]:
    tensors = (one for one in tree_leaves(value) if isinstance(one, Tensor) and torch._C._has_storage(one))
    return {StorageWeakRef(one.untyped_storage()) for one in tensors}


def _count_alike(first: Sequence[Any], second: Sequence[Any]) -> int:
    """Return how many elements at the beginning of both are equal."""
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(first, second, strict=False)))


class _MarkedCalls(Calls):
    """Block that marks what the calls of a module read."""

    plans = True

    def __init__(self, record: CallRecord, path: str, owner: nn.Module, outer: Call | None = None) -> None:
        super().__init__(outer)
        self.record, self.path, self.owner = record, path, owner

    def counts_calls(self, function: Any) -> bool:
        return name_of(function) not in ("__get__", "__set__", "__delete__")

    def inside(self, call: Call, args: Any) -> Calls | None:
        if name_of(call.function) == "linear" and (args[0].ndim <= 2 or len(args) < 3 or args[2] is None):
            return None  # one node
        return _MarkedCalls(self.record, self.path, self.owner, call)

    def run(self, call: Call, args: Any, kwargs: Any, steps: Function | None = None) -> Any:
        if self.outer is None:
            tensors = (one for one in tree_leaves((args, kwargs)) if isinstance(one, Tensor))
            self.record.orders[self.path].append((call.function, [one.ndim for one in tensors]))
        result = write_over(call.function, args, kwargs, super().run(call, args, kwargs, steps))
        if not is_exporting():
            written = find_written(call.function, args, kwargs)
            self.record.find_views(CallPlace(self.path, call, 0), (args, kwargs), written, result)
        return result

    def change(self, call: Call, leaf: int, tensor: Tensor) -> Tensor:
        if not tensor.is_floating_point() or self._is_own(tensor):
            return tensor
        name, place = name_of(call.function), CallPlace(self.path, call, 0)
        if (leaf == 0 and name in ASSIGNMENTS) or (leaf > 0 and name == "batch_norm"):
            return tensor
        if place in self.record.written:
            return tensor
        place = place._replace(leaf=leaf)
        if isinstance(tensor, nn.Parameter):
            names = [name for name, held in self.owner.named_parameters() if held is tensor]
            self.record.held[place] = names[0].replace(".", "_") if names else ""
        return self.record.mark(tensor, place)

    def _is_own(self, tensor: Tensor) -> bool:
        """Tell whether the module reads a tensor that it holds: layers quantize their weights themselves."""
        return isinstance(tensor, nn.Parameter) and layer_kind(self.owner) is not None

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)
        counts = self.record.counts.setdefault(self.path, {})
        counts |= {(self.outer, function): count for function, count in self.counts.items()}


def record_calls(model: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> CallRecord:
    """Return the calls of a float module on example inputs, with its float ONNX model.

    Axis 0 of the inputs is dynamic if forward takes that. Raises DataError if forward does not take them, and
    ModelError as `export_torch` does.
    """
    leaves, form = tree_flatten((args, dict(kwargs)))
    tensors = [leaf for leaf in leaves if isinstance(leaf, Tensor)]
    record = CallRecord()
    device = tensors[0].device.type if tensors else "cpu"
    blocks = [_recorded(model, record), evaluation_mode(model), lowered_later(), quiet(), torch.no_grad()]
    blocks += [torch.autocast(device, enabled=False), warnings.catch_warnings()]
    with contextlib.ExitStack() as stack:
        for block in blocks:
            stack.enter_context(block)
        warnings.simplefilter("ignore")  # the export of the quantized module gives them
        run = _FixedCall(model, leaves, form)
        try:
            run(*tensors)
        except Exception as error:  # the user's forward, which may raise anything
            raise DataError(
                f"the forward of {type(model).__name__} does not take these inputs: {type(error).__name__}: "
                f"{join_lines(error)[:200]}; give what it takes, in its order or by its names"
            ) from error
        ran = replace(record)
        record.counts, record.orders, record.held = {}, {}, {}  # of the export now
        proto = _export(run, tensors)
        record.find_branches(ran)
        edges = _take_out_marks(proto, record)
        # Across marks the exporter has found no constants, and nothing to join.
        joined = ir.serde.deserialize_model(proto)
        optimizer.optimize_ir(joined, should_fold=_may_fold)
        proto = ir.serde.serialize_model(joined)
    held = {node.output[0]: node.input[0] for node in proto.graph.node if node.domain == _DOMAIN}
    replace_nodes(proto.graph, [node for node in proto.graph.node if node.domain != _DOMAIN])
    rename_tensors(proto.graph.node, held)
    remove_domain(proto, _DOMAIN)
    record.norms = list(edges.find_norms())
    left = edges.makers.keys() - {name for node in proto.graph.node for name in node.output}
    edges.folded |= left.intersection(constant.name for constant in proto.graph.initializer)
    twins: dict[str, list[str]] = {}
    for name, first in edges.first.items():
        twins.setdefault(first, []).extend([name] if name in left else ())
    for node in proto.graph.node:
        for slot in range(len(node.input)):
            outputs = node.output[0], *twins.get(node.output[0], ())
            own, *others = (edges.find(node, output, slot, left) for output in outputs)
            if own:
                record.places[Use(node.name, slot)] = own
                record.twins[Use(node.name, slot)] = list(filter(None, others))
    record.exported = load(proto)
    return record


def _turns_keys(place: CallPlace) -> bool:
    """Tell whether an attention turns its keys there: the float export knows no sizes, and joins nothing."""
    call = place.call
    if call is None or call.outer is None or WRITTEN_OUT[call.outer.function] is not attend:
        return False
    return name_of(call.function) == "reshape" and call.number == 0


def _may_fold(node: Any) -> bool | None:
    """Tell the exporter not to fold a parameter that is turned: a call reads it as the module holds it."""
    turned = node.op_type == "Transpose" and node.inputs[0].producer() is None
    return False if turned else None


class _FixedCall(nn.Module):
    """Run of a module in which the tensors are inputs, and everything else is fixed."""

    def __init__(self, model: nn.Module, leaves: list[Any], form: Any) -> None:
        super().__init__()
        self.model, self.form, self.training = model, form, False
        self.fixed = [None if isinstance(leaf, Tensor) else leaf for leaf in leaves]
        self.at = [i for i, leaf in enumerate(leaves) if isinstance(leaf, Tensor)]

    def forward(self, *tensors: Tensor) -> Any:
        leaves = list(self.fixed)
        for position, tensor in zip(self.at, tensors, strict=True):
            leaves[position] = tensor
        args, kwargs = tree_unflatten(leaves, self.form)
        return self.model(*args, **kwargs)


def _export(module: nn.Module, tensors: list[Tensor]) -> onnx.ModelProto:
    # A batch of one is a constant to torch.export.
    several = [torch.cat([x, x]) if x.ndim and len(x) == 1 else x for x in tensors]
    for inputs in (several, tensors):
        bound = bind(module, inputs)
        request = Request(bound, name_inputs(bound, None, None), None, inputs is several, None)
        try:
            return export_with_dynamo(module, request)
        except Exception as error:  # an exporter traces the user's code, which may raise anything
            refused = error
    raise ModelError(f"the dynamo exporter refuses it: {reason(refused)}; change its forward") from refused


@contextlib.contextmanager
def _recorded(model: nn.Module, record: CallRecord) -> Iterator[None]:
    """Let the forwards of all modules mark what they read, and restore them afterwards."""
    changed = []
    try:
        for path, module in model.named_modules():
            left_out = isinstance(module, (FakeQuantize, torch.jit.ScriptModule)) or "forward" in vars(module)
            if not left_out:
                module.__dict__["forward"] = _marking(record, path, module)
                changed.append(module)
        yield
    finally:
        for module in changed:
            del module.__dict__["forward"]


def _marking(record: CallRecord, path: str, module: nn.Module) -> Callable[..., Any]:
    forward = module.forward

    def run(*args: Any, **kwargs: Any) -> Any:
        record.counts[path], record.orders[path] = {}, []
        with _MarkedCalls(record, path, module):
            result = forward(*args, **kwargs)
        if path:
            return result
        return change_outputs(result, lambda at, x: record.mark(x, CallPlace("", None, f"{OUTPUTS}{at}")))

    return run


@dataclass
class _Edges:
    """Inputs of the nodes before the exporter joins some of them.

    Attributes:
        makers: the operator that makes each tensor.
        ends: the tensor that an input reads, and the places in between, by the first output of its node.
        first: by the first output of a node, that of the first node that computes the same.
        folded: tensors that are constants now.
    """

    makers: dict[str, str] = field(default_factory=dict)
    ends: dict[tuple[str, int], tuple[str, tuple[CallPlace, ...]]] = field(default_factory=dict)
    first: dict[str, str] = field(default_factory=dict)
    folded: set[str] = field(default_factory=set)

    def find(
        self, node: onnx.NodeProto, output: str, slot: int, left: Collection[str]
    ) -> tuple[CallPlace, ...]:
        """Return the places between an input of a node and the tensor that it reads now, or what made that.

        Args:
            node: a node after the exporter has joined some.
            output: its first output, or that of a node that is joined with it.
            slot: position of the input.
            left: tensors that are made no more.
        """
        name, nearest = self.ends.get((output, slot), ("", ()))
        places, is_reached = nearest, False
        while name:
            name = self.first.get(name, name) if name in left else name
            is_reached |= name == node.input[slot]
            if is_reached and name not in left:
                return places
            # A row of nodes of one kind keeps the last: tensors between them are inside.
            joined = self.makers.get(name) == node.op_type and name not in self.folded
            name, more = self.ends.get((name, 0), ("", ()))
            places = more if joined and more else places + more
        is_same = self.makers.get(node.output[0]) == node.op_type
        return places if is_reached else nearest if is_same else ()

    def find_norms(self) -> Iterator[tuple[str, str]]:
        """Yield each convolution and the BatchNorm that alone reads it, by their paths; each runs once."""
        paths = {
            name: places[0].path for (name, slot), (_, places) in self.ends.items() if not slot and places
        }
        runs = Counter((path, self.makers[name]) for name, path in paths.items())
        readers = Counter(name for name, _ in self.ends.values())
        for name, norm in paths.items():
            read, _ = self.ends[name, 0]
            if (self.makers[name], self.makers.get(read)) == ("BatchNormalization", "Conv") and read in paths:
                ran = runs[norm, "BatchNormalization"], runs[paths[read], "Conv"]
                if readers[read] == 1 and ran == (1, 1):
                    yield paths[read], norm


def _take_out_marks(proto: Any, record: CallRecord) -> _Edges:
    """Take out the marks, and note the places of the outputs of the model."""
    marks, edges = {n.output[0]: n for n in proto.graph.node if n.domain == _DOMAIN}, _Edges()

    def source(name: str) -> tuple[str, tuple[CallPlace, ...]]:
        passed = []
        while name in marks:
            passed.append(record.seen[marks[name].attribute[0].i])
            name = marks[name].input[0]
        return name, tuple(passed)

    kept = [node for node in proto.graph.node if node.domain != _DOMAIN]
    names = {}
    for position, output in enumerate(proto.graph.output):
        name, passed = source(output.name)
        if passed:
            record.places[Use("", position)] = passed
            if any(name in node.output for node in kept) and name not in names:
                names[name] = output.name
            else:
                kept.append(make_node("Identity", [name], [output.name], f"{_MARK}_{output.name}"))
    for node in kept:
        ends = [source(name) for name in node.input]
        node.input[:] = [name for name, _ in ends]
        rename_tensors([node], names)
        edges.makers |= dict.fromkeys(node.output, node.op_type)
        for slot, (name, passed) in enumerate(ends):
            edges.ends[node.output[0], slot] = names.get(name, name), passed
    same: dict[tuple[Any, ...], str] = {}
    for node in kept:
        read = tuple(edges.first.get(name, name) for name in node.input)
        settings = sorted(one.SerializeToString(deterministic=True) for one in node.attribute)
        edges.first[node.output[0]] = same.setdefault((node.op_type, read, *settings), node.output[0])
    nodes = []
    for node in kept:
        if any(map(_turns_keys, edges.ends.get((node.output[0], 0), ("", ()))[1])):
            held = f"{_MARK}_{node.output[0]}"
            nodes.append(make_node(_MARK, node.input[:1], [held], domain=_DOMAIN))
            node.input[0] = held
        nodes.append(node)
    replace_nodes(proto.graph, nodes)
    for value in [value for value in proto.graph.value_info if value.name in marks]:
        proto.graph.value_info.remove(value)
    return edges
