"""Segments of a graph: nodes between known and wanted tensors, and the peak memory of activations."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping
from itertools import accumulate
from typing import Any, NamedTuple

import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper

from onnxfq.graph.external.sizes import element_bytes
from onnxfq.graph.index import GraphIndex
from onnxfq.graph.model import bodies, list_graphs

_CUT_TYPES = frozenset(
    {
        TensorProto.FLOAT,
        TensorProto.FLOAT16,
        TensorProto.DOUBLE,
        TensorProto.INT64,
        TensorProto.INT32,
        TensorProto.BOOL,
    }
)
"""Types of tensors between segments: NumPy has them, and sessions compute them as they are."""


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

    def __init__(
        self, graph: onnx.GraphProto, known: Collection[str] = (), given: Collection[str] = ()
    ) -> None:
        """Start with the inputs of `graph` known, and the tensors `known`.

        The tensors `given` are inputs although they have a constant as default.
        """
        self._nodes = list(graph.node)
        self._reads = [list_reads(node) for node in self._nodes]
        made = ((name, at) for at, node in enumerate(self._nodes) for name in node.output)
        self._makers = {name: at for name, at in made if name and name not in known}
        self._readers: dict[str, set[int]] = {}
        for at, names in enumerate(self._reads):
            for name in names:
                self._readers.setdefault(name, set()).add(at)
        self._constants = GraphIndex(graph).constants.keys() - set(given)
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

    def divide(
        self, wanted: Collection[str], marked: Collection[str], types: Mapping[str, int], count: int
    ) -> list[Segment]:
        """Return up to `count` segments that compute `wanted`, which divide the reads of `marked` evenly.

        A cut is moved by up to half of a part to where the fewest tensors are read beyond it.

        Args:
            wanted: tensors to return; those made before a cut are on it, whether or not they are read later.
            marked: known tensors; each node counts as often as it reads one.
            types: element type by tensor; only those of types that NumPy has may be read beyond a cut.
            count: number of parts.
        """
        last = {name: max(at) for name, at in self._readers.items()}
        born = {name: at for name, at in self._makers.items() if last.get(name, -1) > at}
        alive, barred = [0] * len(self._nodes), [0] * len(self._nodes)
        for name, at in born.items():
            for counts in (alive,) if types.get(name) in _CUT_TYPES else (alive, barred):
                counts[at] += 1
                counts[last[name]] -= 1
        alive, barred = list(accumulate(alive)), list(accumulate(barred))
        marks = set(marked)
        done = list(accumulate(len(reads & marks) for reads in self._reads))
        part = done[-1] / count if done else 0.0
        found: list[int] = []
        for number in range(1, count):
            aside = {at: abs(reads - number * part) for at, reads in enumerate(done[:-1])}
            near = [at for at, far in aside.items() if far <= part / 2 and alive[at] and not barred[at]]
            if near:
                found.append(min(near, key=lambda at: (alive[at], aside[at])))
        ends = [(name, self._makers[name], len(self._nodes)) for name in wanted if name in self._makers]
        ends += [(name, at, last[name]) for name, at in born.items()]
        cuts = [{name for name, at, end in ends if at <= cut < end} for cut in sorted(set(found))]
        return [self.cut(tensors) for tensors in (*cuts, wanted)]


def segment_model(
    segment: Segment,
    like: onnx.ModelProto,
    types: Mapping[str, int | onnx.TypeProto],
    constants: Iterable[onnx.TensorProto],
) -> onnx.ModelProto:
    """Return a model of `segment`.

    Args:
        segment: its inputs and outputs are those of the model.
        like: opsets and functions are taken from it.
        types: element type by input, of values that are not tensors their type.
        constants: those that the nodes read are initializers.
    """
    read = {name for node in segment.nodes for name in list_reads(node)}
    inputs = [_declare(name, types[name]) for name in segment.inputs]
    outputs = [helper.make_empty_tensor_value_info(name) for name in segment.outputs]
    model = onnx.ModelProto()
    model.ir_version = like.ir_version
    model.opset_import.extend(like.opset_import)
    model.functions.extend(like.functions)
    model.graph.CopyFrom(helper.make_graph(segment.nodes, "segment", inputs, outputs))
    model.graph.initializer.extend(tensor for tensor in constants if tensor.name in read)
    return model


def _declare(name: str, kind: int | onnx.TypeProto) -> onnx.ValueInfoProto:
    if isinstance(kind, int):
        return helper.make_tensor_value_info(name, kind, None)
    return helper.make_value_info(name, kind)


def list_reads(node: onnx.NodeProto) -> set[str]:
    """Return the tensors that `node` reads from its graph, in its bodies too."""
    names = {name for name in node.input if name}
    for body in bodies(node):
        graphs = list_graphs(body)
        index = GraphIndex(*graphs)
        names |= index.used - index.makers.keys() - {v.name for one in graphs for v in one.input}
    return names


def count_alive(graph: onnx.GraphProto, feed: Mapping[str, NDArray[Any]]) -> int | None:
    """Return the most bytes of tensors that a run on `feed` holds at a time, see `most_alive`."""
    return most_alive(graph, {name: array.shape for name, array in feed.items()})


def most_alive(graph: onnx.GraphProto, inputs: Mapping[str, tuple[int, ...]]) -> int | None:
    """Return the peak number of bytes of live tensors when nodes run in their order.

    Constants do not count. A tensor is alive from the node that makes it, or the start, to its last reader;
    no tensor is written over its input.

    Args:
        graph: the main graph.
        inputs: shapes of a feed, by name; they determine the sizes of named dimensions.

    Returns:
        The number of bytes; None when a shape is unknown, or when the graph has bodies.
    """
    named: dict[str, int] = {}
    for value in graph.input:
        dims = value.type.tensor_type.shape.dim
        for dim, given in zip(dims, inputs.get(value.name, ()), strict=False):
            if dim.dim_param:
                named[dim.dim_param] = given
    values = GraphIndex(graph).values
    last = {name: number for number, node in enumerate(graph.node) for name in node.input}
    last |= {value.name: len(graph.node) for value in graph.output}
    alive: dict[str, int] = {}
    now = most = 0
    for number, made in enumerate([list(inputs), *(list(node.output) for node in graph.node)], -1):
        if number >= 0 and bodies(graph.node[number]):
            return None
        for name in filter(None, made):
            size = _bytes(values[name], named) if name in values else None
            if size is None:
                return None
            alive[name] = size
            now += size
        most = max(most, now)
        ended = (*graph.node[number].input, *made) if number >= 0 else ()
        now -= sum(alive.pop(name, 0) for name in ended if last.get(name, number) <= number)
    return most


def _bytes(value: onnx.ValueInfoProto, named: Mapping[str, int]) -> int | None:
    """Return the size of `value` in bytes; None when its type or a size is unknown.

    Args:
        value: a tensor with its type and shape.
        named: sizes of named dimensions.
    """
    kind = value.type.tensor_type
    element = element_bytes(kind.elem_type)
    if element is None or not kind.HasField("shape"):
        return None
    sizes = [d.dim_value if d.HasField("dim_value") else named.get(d.dim_param) for d in kind.shape.dim]
    known = [size for size in sizes if size is not None]
    return element * math.prod(known) if len(known) == len(sizes) else None
