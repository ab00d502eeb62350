"""Runs of quantized convolutions, or parts of them, whose kernels cost more than 8 bits save.

A pair behind float operators is a kernel that reads a tensor in a half type and writes it in 8 bits. Between
two quantized convolutions 8 bits save a byte of two for each number written and read, and for each weight.
Layers of engines of TensorRT for RTX 1.7.1, in float8 with small and depthwise convolutions in float, first
with short runs, then without, then all in half: ten blocks of MobileNetV2 65, 40 and 35; three dense blocks
of ESRGAN with 16 channels a step 50, 36 and 34.

The kernel of an entry also counts as bytes, `Recipe.entry_bytes`, and so does the kernel behind a
convolution, which has the numbers of `prices`. The last of a run may have none in the engine, but is counted
like the others: four in a row have three. Multiply-adds count on the other side. No time was measured.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from heapq import heappop, heappush
from typing import NamedTuple

import onnx_graphsurgeon as gs

from onnxfq.graph.ops import is_weighted
from onnxfq.graph.queries import find_fixed
from onnxfq.placement.prices import count_numbers, price_sums, save_products, split_operands
from onnxfq.placement.target_policy import NodeDecision, fewer_or_noted
from onnxfq.support.groups import find_connected

ENTRY = 3
"""Bytes that the kernel of an entry pair moves for each number: two read, one written."""

_REMEDY = "; to quantize it, set small_shapes: quantize in the recipe"


class _Origin(NamedTuple):
    """The makers of a tensor, behind operators without weights.

    Attributes:
        entering: share of its numbers that float operators make; 1 if no quantized node makes any.
        parts: number of tensors, joined by Concat, that they make.
    """

    entering: float
    parts: int


_FLOAT, _LOW = _Origin(1.0, 1), _Origin(0.0, 0)


def leave_out_short_runs(
    decisions: list[NodeDecision], nodes: Collection[gs.Node], op_types: Collection[str], kernel: int
) -> list[NodeDecision]:
    """Return `decisions`, in float with a reason for nodes in runs whose pairs cost more than they save.

    A run is a set of nodes quantized to float formats that read each other's results. A tensor of unknown
    rank counts for nothing. If nothing would be left, the part that costs least stays, with a note.

    Args:
        decisions: decisions on the weighted nodes.
        nodes: all nodes, makers before readers.
        op_types: operators that may be left out.
        kernel: bytes that count for each kernel of an entry.
    """
    placed = [(d.node, p) for d in decisions for p in d.placements if p.role == "activation"]
    low = {node for node, placement in placed if placement.spec.qtype.is_float}
    ledger, left = _Ledger(nodes, kernel), dict[str, str]()
    parts: dict[frozenset[str], float] = {}
    for run in ledger.join_runs([node for node in nodes if node.name in low and is_weighted(node)]):
        part, saved, whole = _find_best(run, ledger, op_types)
        parts[part] = saved
        kept = part if saved > 0 else {node.name for node in run if node.op not in op_types}
        dropped = [node.name for node in run if node.name not in kept]
        why = (
            f"{len(dropped)} of {len(run)} connected nodes in float save {max(saved, 0) - whole:,.0f} bytes, "
            f"which their kernels cost more than 8 bits save{_REMEDY}"
        )
        left |= dict.fromkeys(dropped, why)
    best = max(parts, key=lambda part: parts[part], default=frozenset[str]())
    fewer = [d.leave_out("short-run", left[d.node]) if d.node in left else d for d in decisions]
    stays = [d if d.node in best else f for d, f in zip(decisions, fewer, strict=True)]
    return fewer_or_noted(stays, fewer, "its run is short, and the model has no better one")


def _find_best(
    run: Sequence[gs.Node], ledger: _Ledger, op_types: Collection[str]
) -> tuple[frozenset[str], float, float]:
    """Return the names of the part of `run` that saves most, and the bytes of part and whole.

    First it is cut where the rest saves most, then single nodes go. A part has a node.
    """
    ledger.switch(run)
    whole = most = ledger.saved
    droppable, cut = [node for node in run if node.op in op_types], 0
    for count, node in enumerate(droppable, 1):
        ledger.switch([node])
        if ledger.low and ledger.saved > most:
            cut, most = count, ledger.saved
    ledger.switch(droppable[cut:])
    for node in droppable[cut:]:
        most = ledger.saved
        ledger.switch([node])
        if not ledger.low or ledger.saved <= most:
            ledger.switch([node])
    part, most = frozenset(ledger.low), ledger.saved
    ledger.switch([node for node in run if node.name in part])
    return part, most, whole


class _Ledger:
    """Bytes that 8 bits save in the nodes that are quantized, less the cost of pairs.

    A switched node changes the prices near it alone, so that a run is tried in as many steps as it has nodes.

    Attributes:
        saved: the bytes.
        low: names of the quantized nodes; none at first.
    """

    def __init__(self, nodes: Collection[gs.Node], kernel: int) -> None:
        """Begin with all `nodes` in float, makers before readers."""
        self.saved, self.low = 0.0, set[str]()
        self._nodes, self._kernel, fixed = list(nodes), kernel, find_fixed(nodes)
        self._places = {id(node): place for place, node in enumerate(nodes)}
        self._operands = [split_operands(node, fixed) for node in nodes]
        self._origins: dict[int, _Origin] = {}
        self._prices: dict[int, float] = {}

    def switch(self, nodes: Collection[gs.Node]) -> None:
        """Quantize the weighted `nodes` that are in float, and leave the others in float."""
        touched: dict[int, gs.Tensor] = {}
        for node in nodes:
            self.low ^= {node.name}
            weights, read = self._operands[self._places[id(node)]]
            price = sum(map(count_numbers, weights)) + save_products(node, 8)
            price -= price_sums(node, self._kernel) if node.op == "Conv" else 0
            self.saved += price if node.name in self.low else -price
            touched |= {id(tensor): tensor for tensor in read}
        joins = (one for tensor in touched.values() for one in tensor.outputs if one.op == "Concat")
        places = {self._places[id(node)] for node in (*nodes, *joins)}
        for tensor in (*touched.values(), *self._trace(places)):
            price = self._price(tensor)
            self.saved += price - self._prices.get(id(tensor), 0.0)
            self._prices[id(tensor)] = price

    def join_runs(self, nodes: Sequence[gs.Node]) -> Iterator[list[gs.Node]]:
        """Yield the `nodes`, quantized together, in groups that read each other's results."""
        self.switch(nodes)
        links = [
            (node.name, maker.name)
            for node in self._nodes
            if node.name in self.low or not is_weighted(node)
            for tensor, origin in self._list_parts(node)
            if origin != _FLOAT
            for maker in tensor.inputs
        ]
        self.switch(nodes)
        named = {node.name: node for node in nodes}
        for names in find_connected([node.name for node in self._nodes], links):
            if run := [named[name] for name in names if name in named]:
                yield run

    def _trace(self, places: set[int]) -> Iterator[gs.Tensor]:
        """Yield the results whose origin changes because the nodes at these places do."""
        queue, queued = sorted(places), places
        while queue:
            node = self._nodes[heappop(queue)]
            origin = self._find_origin(node)
            for tensor in node.outputs:
                if self._origins.get(id(tensor), _FLOAT) != origin:
                    self._origins[id(tensor)] = origin
                    yield tensor
                    behind = {self._places[id(one)] for one in tensor.outputs if not is_weighted(one)}
                    for place in behind - queued:
                        heappush(queue, place)
                    queued |= behind

    def _find_origin(self, node: gs.Node) -> _Origin:
        """Return the origin of the results of `node`: an operator without weights computes in one kernel."""
        if is_weighted(node):
            return _LOW if node.name in self.low else _FLOAT
        parts = self._list_parts(node)
        sizes = [count_numbers(tensor) for tensor, _ in parts]
        if node.op == "Concat" and all(sizes):
            share = sum(one.entering * size for (_, one), size in zip(parts, sizes, strict=True)) / sum(sizes)
            return _Origin(share, sum(one.parts for _, one in parts))
        share = min((one.entering for _, one in parts), default=1.0)
        return _Origin(share, int(share > 0))

    def _list_parts(self, node: gs.Node) -> list[tuple[gs.Tensor, _Origin]]:
        """Return the tensors that `node` computes with, and their origins.

        A part of a Concat that is also read in float enters.
        """
        tensors = self._operands[self._places[id(node)]][1]
        known = [tensor for tensor in tensors if node.op != "Concat" or not self._is_read_in_float(tensor)]
        origins = {id(tensor): self._origins.get(id(tensor), _FLOAT) for tensor in known}
        return [(tensor, origins.get(id(tensor), _FLOAT)) for tensor in tensors]

    def _is_read_in_float(self, tensor: gs.Tensor) -> bool:
        return any(node.op != "Concat" and node.name not in self.low for node in tensor.outputs)

    def _price(self, tensor: gs.Tensor) -> float:
        """Return the bytes that reading and writing `tensor` saves; 0 if no quantized node reads it."""
        readers = [node.name in self.low for node in tensor.outputs if is_weighted(node)]
        if not any(readers):
            return 0.0
        entering, parts = self._origins.get(id(tensor), _FLOAT)
        written = 1 if all(readers) else -1  # another reader wants it in a half type as well
        each = sum(readers) + written * (1 - entering) - ENTRY * entering
        return count_numbers(tensor) * each - self._kernel * parts
