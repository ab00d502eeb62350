"""Models that ONNX Runtime runs and ONNX's checker refuses: what they lack is put right before the check.

None of it changes what a model computes, and the steps edit a ModelProto in place.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Iterator

import onnx
from onnx import shape_inference

from onnxfq.errors import ModelError
from onnxfq.graph.external.weightless import without_weights
from onnxfq.graph.model import all_graphs, all_nodes, bodies, replace_nodes


def repair(proto: onnx.ModelProto, source: str) -> None:
    """Put right what can be. Raises ModelError for what only looks like it: an input of unknown rank."""
    _raise_ir_version(proto)
    _spell_domain(proto, source)
    for graph in all_graphs(proto.graph):
        graph.name = graph.name or "graph"
        _sort_nodes(graph)
    _complete_outputs(proto, source)


def _raise_ir_version(proto: onnx.ModelProto) -> None:
    """Call a model of IR version 3 what it is when it has constants that are no inputs, as 4 allows.

    onnxruntime's quantizer writes such files.
    """
    inputs = {value.name for value in proto.graph.input}
    if 0 < proto.ir_version < 4 and any(tensor.name not in inputs for tensor in proto.graph.initializer):
        proto.ir_version = 4


def _spell_domain(proto: onnx.ModelProto, source: str) -> None:
    """Spell ONNX's own domain as the empty string: `ai.onnx` is the same, and onnx's tools know it not."""
    versions = {entry.version for entry in proto.opset_import if entry.domain in ("", "ai.onnx")}
    if len(versions) > 1:
        raise ModelError(
            f"{source} imports ai.onnx at opsets {' and '.join(map(str, sorted(versions)))}; one is to be "
            "meant, so export it again"
        )
    imports = [entry for entry in proto.opset_import if entry.domain not in ("", "ai.onnx")]
    if len(imports) + len(versions) < len(proto.opset_import) or any(
        entry.domain == "ai.onnx" for entry in proto.opset_import
    ):
        own = [onnx.helper.make_opsetid("", version) for version in versions]
        del proto.opset_import[:]
        proto.opset_import.extend([*own, *imports])
    for owner in (proto.graph, *proto.functions):
        for node in all_nodes(owner):
            if node.domain == "ai.onnx":
                node.domain = ""


def _sort_nodes(graph: onnx.GraphProto) -> None:
    """Put every node behind those that it reads from, in the order of the file otherwise; a cycle stays."""
    maker = {name: number for number, node in enumerate(graph.node) for name in node.output if name}
    reads = [
        {maker[name] for name in _reads(node) if name in maker} - {number}
        for number, node in enumerate(graph.node)
    ]
    if all(first < number for number, read in enumerate(reads) for first in read):
        return
    readers: dict[int, list[int]] = {}
    for number, read in enumerate(reads):
        for first in read:
            readers.setdefault(first, []).append(number)
    waits = Counter({number: len(read) for number, read in enumerate(reads)})
    ready = [number for number, read in enumerate(reads) if not read]
    order: list[int] = []
    while ready:
        order.append(heapq.heappop(ready))
        for number in readers.get(order[-1], ()):
            waits[number] -= 1
            if not waits[number]:
                heapq.heappush(ready, number)
    if len(order) == len(graph.node):
        replace_nodes(graph, [graph.node[number] for number in order])


def _reads(node: onnx.NodeProto) -> Iterator[str]:
    """Yield what `node` and the bodies in it read."""
    yield from node.input
    yield from (name for body in bodies(node) for inner in all_nodes(body) for name in inner.input)


def _complete_outputs(proto: onnx.ModelProto, source: str) -> None:
    """Give outputs without a type or rank those that ONNX infers. Raises ModelError where it cannot."""
    if all(map(_has_rank, (*proto.graph.input, *proto.graph.output))):
        return
    try:
        inferred = shape_inference.infer_shapes(without_weights(proto)).graph
    except (RuntimeError, shape_inference.InferenceError):  # the checker will say what is wrong with it
        return
    for given, found in zip(proto.graph.output, inferred.output, strict=True):
        if not _has_rank(given):
            given.type.CopyFrom(found.type)
    for kind, values in (("input", proto.graph.input), ("output", proto.graph.output)):
        for value in values:
            if not _has_rank(value):
                raise ModelError(
                    f"{source}: {kind} {value.name!r} has no rank, which ONNX wants and cannot infer; "
                    "export the model with its shape, open where need be"
                )


def _has_rank(value: onnx.ValueInfoProto) -> bool:
    """Tell whether `value` is a tensor whose rank is told, or no tensor at all."""
    kind = value.type.WhichOneof("value")
    return kind is not None and (kind != "tensor_type" or value.type.tensor_type.HasField("shape"))
