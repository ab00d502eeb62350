"""Names of a torch module for the nodes and edges of its ONNX model.

A layer has the name of its path, and a call in a forward path.function, path.function_1 in the order of the
calls. A tensor has the name of the module, and of what it is there: input, weight, matmul_other.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import onnx
from torch import nn
from torch.nn import functional as F

from onnxfq.graph.model import Model
from onnxfq.graph.names import Use
from onnxfq.graph.ops import MOVES
from onnxfq.graph.signature import output_names
from onnxfq.torch.calls import Call, CallPlace, name_of
from onnxfq.torch.layers import layer_kind
from onnxfq.torch.recording import CallRecord

_PASSED = MOVES | {"Cast", "Expand", "Slice"}
"""Operators inside of a call that a quantizer may stand in front of as well as behind."""
_LEAVES = {0: "input", 1: "other"}
_INPUTS = ("query", "key", "value")
_PRODUCTS = {
    (function, f"{product}{n}"): name
    for function, product in (
        (F.scaled_dot_product_attention, "matmul"),
        (F.multi_head_attention_forward, "bmm"),
    )
    for n, name in (("", "scores"), ("_1", "context"))
}
"""Names of the products in an attention."""


class QuantizerHolder(NamedTuple):
    """Module that holds a quantizer, and the name of the tensor there."""

    path: str
    name: str

    def __str__(self) -> str:
        """Return the name of the tensor in the module."""
        return f"{self.path}.{self.name}" if self.path else self.name


def is_leaf(module: nn.Module) -> bool:
    """Tell whether a module is one operation for its user: a layer, or another module of torch.nn."""
    own = type(module).__module__.startswith("torch.nn.modules.")
    one = isinstance(module, nn.MultiheadAttention) or not any(module.children())
    return layer_kind(module) is not None or (own and one)


def _choose(places: Sequence[CallPlace]) -> CallPlace:
    """Return the place of an edge that has a name, or the call that is written out, before its steps."""
    named = (place for place in places if isinstance(place.leaf, str))
    chosen = places[0]
    for place in places:
        if place.call is not None and chosen.call is not None and place.call == chosen.call.outer:
            chosen = place
    return next(named, chosen)


def _in_steps(call: Call, name: str) -> str:
    """Return the name of a call, which says of which function it is a step."""
    if call.outer is None:
        return name
    function, number, around = call.outer
    name = _PRODUCTS.get((function, name), name)
    if F.multi_head_attention_forward in (function, getattr(around, "function", None)):
        return name  # nearly the only call of its module
    return f"{name_of(function)}{f'_{number}' if number else ''}_{name}"


@dataclass(frozen=True)
class CallNames:
    """Names of `module` for `prepared`, a rewrite of the model that was exported.

    Attributes:
        record: the calls of the module, and the model before the rewrite.
    """

    module: nn.Module
    record: CallRecord
    prepared: Model

    @cached_property
    def _modules(self) -> dict[str, nn.Module]:
        return dict(self.module.named_modules())

    @cached_property
    def _calls(self) -> Mapping[tuple[str, Call], str]:
        names: dict[tuple[str, Call], str] = {}
        taken: dict[str, set[str]] = {}
        for path, call, _ in self.record.seen:
            if call is None or (path, call) in names:
                continue
            base = name_of(call.function).strip("_")
            tried = (f"{base}_{i}" if i else base for i in itertools.count())
            used = taken.setdefault(path, set())
            names[path, call] = next(one for name in tried if (one := _in_steps(call, name)) not in used)
            used.add(names[path, call])
        return names

    def site(self, place: CallPlace) -> str:
        """Return the name of the layer or the call that reads at `place`."""
        module = self._modules[place.path]
        if is_leaf(module) or place.call is None:
            return place.path or type(module).__name__
        return str(QuantizerHolder(place.path, self._calls[place.path, place.call]))

    def type_name(self, place: CallPlace, op_type: str) -> str:
        """Return the type of that layer, or the operator that the call becomes."""
        module = self._modules[place.path]
        return type(module).__name__ if is_leaf(module) else op_type

    def holder(self, place: CallPlace) -> QuantizerHolder:
        """Return the module and the name of the tensor that is read at `place`."""
        module, held, call = self._modules[place.path], self.record.held.get(place), place.call
        if call is None or isinstance(place.leaf, str):
            return QuantizerHolder(place.path, str(place.leaf))
        first = place.leaf == 0 and call.number == 0 and call.outer is None
        if is_leaf(module) and held:
            return QuantizerHolder(place.path, held)
        if call.function is F.multi_head_attention_forward and place.leaf < len(_INPUTS):
            return QuantizerHolder(place.path, _INPUTS[place.leaf])
        if is_leaf(module) and first and not isinstance(module, nn.MultiheadAttention):
            return QuantizerHolder(place.path, "input")
        leaf = "weight" if held is not None else _LEAVES.get(place.leaf, f"input_{place.leaf}")
        return QuantizerHolder(place.path, f"{self._calls[place.path, call]}_{leaf}")

    def is_table(self, place: CallPlace) -> bool:
        """Tell whether the call itself quantizes the tensor, not the forward of a layer."""
        return place.call is not None and self.holder(place).name != "input"

    @cached_property
    def _nodes(self) -> dict[str, onnx.NodeProto]:
        return {node.name: node for node in self.prepared.proto.graph.node}

    @cached_property
    def calls(self) -> dict[str, CallPlace]:
        """Return a place of the call that each node of `prepared` belongs to, by the node's name."""
        calls: dict[str, CallPlace] = {}
        makers = self.prepared.index.makers
        for node in self.prepared.proto.graph.node:
            slots = range(len(node.input))
            marked = (p for slot in slots for p in self.record.places.get(Use(node.name, slot), ()))
            before = (makers[name].name for name in node.input if name in makers)
            inherited = (calls[name] for name in before if name in calls)
            found = next(marked, None) or next(inherited, None)
            if found is not None:
                calls[node.name] = found
        return calls

    def place(self, use: Use) -> CallPlace | None:
        """Return where the module reads an input of `prepared`; None if no quantizer can stand there."""
        found = self.find(use)
        return None if found is None or self.explain_lost(found) else found

    def places(self, use: Use, in_export: bool) -> list[CallPlace]:
        """Return where the module reads an input of `prepared`, and where it computes the same once more.

        With `in_export`, the first may be a call that an export alone makes.
        """
        twins = [_choose(found) for found in self.record.twins.get(use, ())]
        first = self.find(use) if in_export else self.place(use)
        found = (first, *(twin for twin in twins if not self.explain_lost(twin)))
        return [place for place in found if place is not None]

    def explain_lost(self, place: CallPlace | None) -> str:
        """Return why the tensor at a place cannot be quantized; empty if it can."""
        if place is None:
            return "the export computes it inside of one call of torch; no quantizer can stand there"
        call = place.call
        while call is not None and call.outer is not None:
            call = call.outer
        if call is None or call.number >= 0 or not self.is_table(place):
            return ""
        exported = self.record.branches[place.path, call.function].total
        count = self.record.counts.get(place.path, {}).get((None, call.function), 0)
        times = f"{name_of(call.function)} {exported} times in an export and {count} times otherwise"
        return f"the forward of {place.path or 'the model'} calls {times}"

    def why_lost(self, uses: Iterable[Use]) -> str:
        """Return why the tensor that these inputs read cannot be quantized; empty if it can."""
        lost = [(use, why) for use in uses if (why := self.explain_lost(self.find(use)))]
        nodes = [self._nodes[use.node] for use, _ in lost if use.node and self.record.writers]
        if any(self._is_written(node, behind) for node in nodes for behind in (False, True)):
            return "the forward writes over it, or over a view of it, and a quantizer would take that away"
        return next((why for _, why in lost), "")

    def _is_written(self, node: onnx.NodeProto, behind: bool) -> bool:
        """Tell whether a node, or the next with a place, is of a call that writes over a tensor."""
        index, nodes, seen = self.prepared.index, [node], set[str]()
        for one in nodes:  # it grows
            marked = [self.record.places.get(Use(one.name, slot), ()) for slot in range(len(one.input))]
            calls = {place._replace(leaf=0) for places in marked for place in places}
            if not calls.isdisjoint(self.record.writers):
                return True
            makers = [index.makers[name] for name in one.input if name in index.makers]
            readers = [reader for name in one.output for reader in index.readers.get(name, ())]
            following = [] if calls else readers if behind else makers
            nodes += [other for other in following if other.name not in seen]
            seen |= {other.name for other in following}
        return False

    def find(self, use: Use) -> CallPlace | None:
        """Return where the module reads an input of `prepared`, be it in an export alone."""
        found = self.record.places.get(use)
        if found is not None:
            return _choose(found)
        node = self._nodes.get(use.node)
        if node is None or use.input >= len(node.input):
            return None
        ends = output_names(self.prepared.proto)
        if node.op_type in ("Cast", "Identity") and node.output[0] in ends:  # for its type, or another result
            return self.find(Use("", ends.index(node.output[0])))
        name = node.input[use.input]
        rewritten = (place for reader, place in self._places_of(name) if reader not in self._nodes)
        maker = self.prepared.index.makers.get(name)
        if maker is not None and maker.op_type in _PASSED:
            return next(rewritten, None) or self.find(Use(maker.name, 0))
        return next(rewritten, None)

    def _places_of(self, tensor: str) -> Iterator[tuple[str, CallPlace]]:
        """Yield what reads a tensor of the exported model, and the place."""
        for reader in self.record.exported.index.readers.get(tensor, ()):
            for slot, name in enumerate(reader.input):
                for place in self.record.places.get(Use(reader.name, slot), ())[:1]:
                    if name == tensor:
                        yield reader.name, place

    def weight_holder(self, use: Use) -> QuantizerHolder | None:
        """Return the layer and the name of the weight that an input is; None for other constants."""
        call = self.calls.get(use.node)
        kind = None if call is None else layer_kind(self._modules[call.path])
        has_input = kind is not None and kind.has_input  # such a layer has one weight
        return QuantizerHolder(call.path, "weight") if call is not None and has_input else None

    def parameter(self, use: Use) -> int | None:
        """Return the identity of the parameter that an input is; None for other constants and tensors."""
        held, place = self.weight_holder(use), self.place(use)
        if held is None and place is not None and place in self.record.held:
            held = QuantizerHolder(place.path, self.record.held[place])
        if held is None:
            return None
        named = self._modules[held.path].named_parameters(remove_duplicate=False)
        return next((id(one) for name, one in named if name.replace(".", "_") == held.name), None)
