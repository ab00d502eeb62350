"""Short runs of quantized convolutions between float ones, whose pairs move more bytes than 8 bits save.

A pair behind float operators is a kernel that reads a tensor in a half type and writes it in 8 bits. Between
two quantized convolutions 8 bits save a byte of two for each number written and read, and for each weight.
Layers of engines of TensorRT for RTX 1.7.1, in float8 with small and depthwise convolutions in float, first
with short runs, then without, then all in half: ten blocks of MobileNetV2 65, 40 and 35; three dense blocks
of ESRGAN with 16 channels a step 50, 36 and 34.

The kernel of an entry also counts as bytes, `Recipe.entry_bytes`. One that quantizes the result of a
convolution for the next counts the same. The last of a run has none in the engine, but is counted like the
others: four in a row have three. Engines of TensorRT for RTX
of the eight networks of the tests whose plans depend on that number have 345 kernels that move 44.2 MB if it
is 0, and 324 that move 43.9 MB with 64 kB, its default; with four times as many 319 move 44.0 MB. No time was
measured.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from math import prod
from typing import NamedTuple

import onnx_graphsurgeon as gs

from onnxfq.graph.ops import is_weighted
from onnxfq.graph.queries import weight_source
from onnxfq.placement.target_policy import NodeDecision, fewer_or_noted
from onnxfq.support.groups import find_connected

OPEN_SIZE = 64
"""Size that an open axis counts as; an open first axis, of samples, counts as one."""

ENTRY = 3
"""Bytes that the kernel of an entry pair moves for each number: two read, one written."""

_REMEDY = "; to quantize it, set small_shapes: quantize in the recipe"
_LONE = f"alone between float operators, where its pair is a kernel that quantizes{_REMEDY}"


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

    A run is a set of quantized nodes that read each other's results. Only a graph that has some of
    `op_types` in float has runs to judge, and a tensor of unknown rank counts for nothing. If nothing would
    be left, the run that saves most stays, with a note.

    Args:
        decisions: decisions on the weighted nodes.
        nodes: all nodes, makers before readers.
        op_types: operators that may be left out.
        kernel: bytes that count for each kernel of an entry.
    """
    low = {d.node for d in decisions if any(p.role == "activation" for p in d.placements)}
    if not low or all(d.node in low for d in decisions if d.op_type in op_types):
        return decisions
    weighted = [node for node in nodes if node.name in low]
    left: dict[str, str] = {}
    origins = _trace(nodes, low)
    for node in weighted:  # those at an entry, one by one
        if node.op in op_types and any(origins.get(id(tensor), _FLOAT).parts for tensor in _read(node)):
            without = _trace(nodes, low - {node.name})
            gain = _save(weighted, without, low - {node.name}, kernel) - _save(weighted, origins, low, kernel)
            if gain > 0:
                left[node.name] = f"between float operators its pairs cost {gain:,.0f} bytes{_REMEDY}"
                low, origins = low - {node.name}, without
    runs = list(_join_runs([node for node in weighted if node.name in low], origins))
    for run in runs:
        saved = _save(run, origins, low, kernel)
        why = f"{len(run)} nodes between float operators, whose pairs cost {-saved:,.0f} bytes{_REMEDY}"
        why = _LONE if len(run) == 1 else why if saved < 0 else ""
        left |= {node.name: why for node in run if why and node.op in op_types}
    best = max(runs, key=lambda run: _save(run, origins, low, kernel), default=[])
    fewer = [d.leave_out("short-run", left[d.node]) if d.node in left else d for d in decisions]
    kept = {node.name for node in best or weighted}
    stays = [d if d.node in kept else f for d, f in zip(decisions, fewer, strict=True)]
    return fewer_or_noted(stays, fewer, "its run is short, and the model has no better one")


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
    share, sizes = min(part.entering for part in parts), [_count(tensor) for tensor in tensors]
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
    saved = float(sum(prod(weight.shape) for weight in weights))
    for tensor in {id(tensor): tensor for node in run for tensor in _read(node)}.values():
        _, entering, parts = origins.get(id(tensor), _FLOAT)
        readers = [reader.name in low for reader in tensor.outputs if is_weighted(reader)]
        written = 1 if all(readers) else -1  # another reader wants it in a half type as well
        saved += _count(tensor) * (sum(readers) + written * (1 - entering) - ENTRY * entering)
        saved -= kernel * parts
    return saved - kernel * len([node for node in run if node.op == "Conv"])


def _read(node: gs.Node) -> list[gs.Tensor]:
    """Return the activations that a weighted node multiplies."""
    return [tensor for slot, tensor in enumerate(node.inputs[:2]) if weight_source(node, slot) is None]


def _count(tensor: gs.Tensor) -> int:
    """Return the number of elements, open sizes counted as OPEN_SIZE; 0 for an unknown rank."""
    if tensor.shape is None:
        return 0
    return prod(
        size if isinstance(size, int) else OPEN_SIZE if axis else 1 for axis, size in enumerate(tensor.shape)
    )
