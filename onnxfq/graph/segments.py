"""Segments of a graph: the nodes between tensors that are known and tensors that are wanted."""

from __future__ import annotations

from collections.abc import Collection
from typing import NamedTuple

import onnx

from onnxfq.graph.model import bodies, list_nodes


class Segment(NamedTuple):
    """Part of a graph to run.

    Attributes:
        nodes: in the order of the graph.
        inputs: tensors that it reads and does not compute, constants apart.
        outputs: the wanted tensors, and those that later nodes read.
        dead: inputs that no later node reads.
    """

    nodes: list[onnx.NodeProto]
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    dead: tuple[str, ...]


class SegmentedGraph:
    """A graph that is computed once, in segments, each up to a tensor that is wanted next."""

    def __init__(self, graph: onnx.GraphProto) -> None:
        """Start with the inputs of `graph` known."""
        self._nodes = list(graph.node)
        self._reads = [list_reads(node) for node in self._nodes]
        self._makers = {name: at for at, node in enumerate(self._nodes) for name in node.output if name}
        self._readers: dict[str, set[int]] = {}
        for at, names in enumerate(self._reads):
            for name in names:
                self._readers.setdefault(name, set()).add(at)
        self._constants = {tensor.name for tensor in graph.initializer}
        self._done: set[int] = set()

    def cut(self, wanted: Collection[str]) -> Segment:
        """Return the segment that computes `wanted`, and count it as computed."""
        found: set[int] = set()
        stack = list(wanted)
        while stack:
            at = self._makers.get(stack.pop())
            if at is not None and at not in self._done and at not in found:
                found.add(at)
                stack += self._reads[at]
        nodes = sorted(found)
        made = {name for at in nodes for name in self._nodes[at].output if name}
        read = {name for at in nodes for name in self._reads[at]}
        self._done |= found
        inputs = sorted(name for name in read - made if name not in self._constants)
        later = {name for name in made if self._readers.get(name, set()) - self._done}
        dead = [name for name in inputs if not self._readers[name] - self._done and name not in wanted]
        outputs = sorted(later | (set(wanted) & made))
        return Segment([self._nodes[at] for at in nodes], tuple(inputs), tuple(outputs), tuple(dead))


def list_reads(node: onnx.NodeProto) -> set[str]:
    """Return the tensors that `node` reads from its graph, in its bodies too."""
    names = {name for name in node.input if name}
    for body in bodies(node):
        own = {name for inner in list_nodes(body) for name in inner.output}
        own |= {value.name for value in body.input}
        names |= {name for inner in list_nodes(body) for name in inner.input if name} - own
        names |= {value.name for value in body.output} - own
    return names
