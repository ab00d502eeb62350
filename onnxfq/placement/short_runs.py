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
from math import prod
from typing import NamedTuple

import onnx_graphsurgeon as gs

from onnxfq.graph.ops import is_weighted
from onnxfq.graph.queries import weight_source
from onnxfq.placement.prices import count_numbers, price_sums, save_products
from onnxfq.placement.target_policy import NodeDecision, fewer_or_noted
from onnxfq.support.groups import find_connected

ENTRY = 3
"""Bytes that the kernel of an entry pair moves for each number: two read, one written."""

_REMEDY = "; to quantize it, set small_shapes: quantize in the recipe"


class _Origin(NamedTuple):
    """The makers of a tensor, behind operators without weights.

    Attributes:
        nodes: names of the quantized nodes that make it.
        entering: share of its numbers that float operators make.
        parts: number of tensors, joined by Concat, that they make.
    """

    nodes: frozenset[str]
    entering: float
    parts: int


_FLOAT = _Origin(frozenset(), 1.0, 1)
_Origins = dict[int, _Origin]
"""Origin of computed tensors, by id."""


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
    weighted = [node for node in nodes if node.name in low]
    left: dict[str, str] = {}
    parts: dict[frozenset[str], float] = {}
    for run in _join_runs(weighted, _trace(nodes, low)):
        part, saved, whole = _find_best(run, nodes, op_types, kernel)
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
    run: Sequence[gs.Node], nodes: Collection[gs.Node], op_types: Collection[str], kernel: int
) -> tuple[frozenset[str], float, float]:
    """Return the names of the part of `run` that saves most, and the bytes of part and whole.

    First it is cut where the rest saves most, then single nodes go. A part has a node.
    """

    def save(low: frozenset[str]) -> float:
        return _save(run, _trace(nodes, low), low, kernel)

    best = rest = frozenset(node.name for node in run)
    whole = most = save(best)
    droppable = [node.name for node in run if node.op in op_types]
    for name in droppable:
        rest -= {name}
        found = save(rest)
        best, most = (rest, found) if rest and found > most else (best, most)
    for name in droppable:
        fewer = best - {name}
        found = save(fewer)
        best, most = (fewer, found) if fewer and found > most else (best, most)
    return best, most, whole


def _trace(nodes: Collection[gs.Node], low: Collection[str]) -> _Origins:
    """Return the origin of every computed tensor, where the nodes of these names are quantized."""
    origins: _Origins = {}
    for node in nodes:
        if is_weighted(node):
            origin = _Origin(frozenset({node.name}), 0.0, 0) if node.name in low else _FLOAT
        else:
            origin = _combine(node, origins, low)
        origins |= {id(tensor): origin for tensor in node.outputs}
    return origins


def _combine(node: gs.Node, origins: _Origins, low: Collection[str]) -> _Origin:
    """Return the origin of the result of an operator without weights.

    A Concat joins parts, and a part that is also read in float enters. Others compute in one kernel.
    """
    tensors = [tensor for tensor in node.inputs if not isinstance(tensor, gs.Constant)]
    parts = [origins.get(id(tensor), _FLOAT) for tensor in tensors]
    if not parts:
        return _FLOAT
    share, sizes = min(part.entering for part in parts), [count_numbers(tensor) for tensor in tensors]
    count = int(share > 0)
    if node.op == "Concat" and all(sizes):
        for place, tensor in enumerate(tensors):
            if any(reader.op != "Concat" and reader.name not in low for reader in tensor.outputs):
                parts[place] = _FLOAT
        share = sum(part.entering * size for part, size in zip(parts, sizes, strict=True)) / sum(sizes)
        count = sum(part.parts for part in parts)
    return _Origin(frozenset().union(*(part.nodes for part in parts)), share, count)


def _join_runs(nodes: Sequence[gs.Node], origins: _Origins) -> Iterator[list[gs.Node]]:
    """Yield the quantized `nodes` in groups that read each other's results."""
    named = {node.name: node for node in nodes}
    links = (
        (node.name, source)
        for node in nodes
        for tensor in _read(node)
        for source in origins.get(id(tensor), _FLOAT).nodes
    )
    for names in find_connected(named, links):
        yield [named[name] for name in names]


def _save(nodes: Sequence[gs.Node], origins: _Origins, low: Collection[str], kernel: int) -> float:
    """Return the bytes that 8 bits save in the `nodes` whose names are in `low`, less the cost of pairs."""
    run = [node for node in nodes if node.name in low]
    weights = [source.tensor for node in run if (source := weight_source(node, 1)) is not None]
    saved = sum(prod(weight.shape) for weight in weights) + sum(save_products(node, 8) for node in run)
    for tensor in {id(tensor): tensor for node in run for tensor in _read(node)}.values():
        _, entering, parts = origins.get(id(tensor), _FLOAT)
        readers = [reader.name in low for reader in tensor.outputs if is_weighted(reader)]
        written = 1 if all(readers) else -1  # another reader wants it in a half type as well
        saved += count_numbers(tensor) * (sum(readers) + written * (1 - entering) - ENTRY * entering)
        saved -= kernel * parts
    return float(saved - sum(price_sums(node, kernel) for node in run if node.op == "Conv"))


def _read(node: gs.Node) -> list[gs.Tensor]:
    """Return the activations that a weighted node multiplies."""
    return [tensor for slot, tensor in enumerate(node.inputs[:2]) if weight_source(node, slot) is None]
