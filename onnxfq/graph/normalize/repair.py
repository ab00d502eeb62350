"""Repairs of models that ONNX Runtime accepts but the checker rejects.

No repair changes the results of a model; all edit a ModelProto in place.
"""

from __future__ import annotations

import heapq
from graphlib import CycleError, TopologicalSorter

import onnx
from onnx import shape_inference

from onnxfq.errors import ModelError
from onnxfq.graph.external.weightless import strip_weights
from onnxfq.graph.index import GraphIndex
from onnxfq.graph.model import list_graphs, list_nodes, replace_nodes
from onnxfq.graph.walk import nodes_inside


def repair(proto: onnx.ModelProto, source: str) -> None:
    """Repair `proto` in place. Raises ModelError if that is impossible, as for an input of unknown rank."""
    inputs = {value.name for value in proto.graph.input}
    if 0 < proto.ir_version < 4 and any(tensor.name not in inputs for tensor in proto.graph.initializer):
        proto.ir_version = 4  # onnxruntime's quantizer writes constants that are not inputs at version 3
    _spell_domain(proto, source)
    domains = {node.domain for node in list_nodes(proto.graph)} - {one.domain for one in proto.opset_import}
    if "com.microsoft" in domains:  # NNCF's MatMulNBits comes without the import, and runs
        proto.opset_import.append(onnx.helper.make_opsetid("com.microsoft", 1))
    for graph in reversed(list_graphs(proto.graph)):  # sorting copies nodes, so bodies come first
        graph.name = graph.name or "graph"
        _sort_nodes(graph)
    _name_splits(proto)
    _complete_outputs(proto, source)


def _spell_domain(proto: onnx.ModelProto, source: str) -> None:
    """Spell ONNX's own domain as the empty string, which onnx's tools know alone; trim inputs of nodes."""
    versions = {entry.version for entry in proto.opset_import if entry.domain in ("", "ai.onnx")}
    if len(versions) > 1:
        found = " and ".join(map(str, sorted(versions)))
        raise ModelError(f"{source} imports ai.onnx at opsets {found}; only one is allowed, export it again")
    imports = [entry for entry in proto.opset_import if entry.domain not in ("", "ai.onnx")]
    is_spelled = any(entry.domain == "ai.onnx" for entry in proto.opset_import)
    if is_spelled or len(imports) + len(versions) < len(proto.opset_import):
        own = [onnx.helper.make_opsetid("", version) for version in versions]
        del proto.opset_import[:]
        proto.opset_import.extend([*own, *imports])
    for owner in (proto.graph, *proto.functions):
        for node in list_nodes(owner):
            if node.domain == "ai.onnx":
                node.domain = ""
            while node.input and not node.input[-1]:  # empty names at the end mean nothing; code may count
                node.input.pop()


def _name_splits(proto: onnx.ModelProto) -> None:
    """Name the outputs of Split that nobody reads: onnxruntime 1.31.1 crashes on one without a name."""
    names = GraphIndex.of_model(proto).names
    for node in list_nodes(proto.graph):
        if node.op_type == "Split" and "" in node.output:
            node.output[:] = [name or names.claim(f"{node.name}/unused") for name in node.output]


def _sort_nodes(graph: onnx.GraphProto) -> None:
    """Sort nodes topologically, keeping the order of the file where possible; leave a cycle unchanged."""
    maker = {name: number for number, node in enumerate(graph.node) for name in node.output if name}
    read = [{name for one in (node, *nodes_inside(node)) for name in one.input} for node in graph.node]
    reads = [{maker[name] for name in names & maker.keys()} - {at} for at, names in enumerate(read)]
    if all(first < number for number, read in enumerate(reads) for first in read):
        return
    sorter, ready, order = TopologicalSorter(dict(enumerate(reads))), list[int](), list[int]()
    try:
        sorter.prepare()
    except CycleError:
        return
    while sorter.is_active():
        for number in sorter.get_ready():
            heapq.heappush(ready, number)
        order.append(heapq.heappop(ready))
        sorter.done(order[-1])
    replace_nodes(graph, [graph.node[number] for number in order])


def _complete_outputs(proto: onnx.ModelProto, source: str) -> None:
    """Add inferred types and ranks to outputs that lack them. Raises ModelError if ONNX cannot infer one."""
    if all(map(_has_rank, (*proto.graph.input, *proto.graph.output))):
        return
    try:
        inferred = shape_inference.infer_shapes(strip_weights(proto)).graph
    except (RuntimeError, shape_inference.InferenceError):  # the checker will say what is wrong with it
        return
    for given, found in zip(proto.graph.output, inferred.output, strict=True):
        if not _has_rank(given):
            given.type.CopyFrom(found.type)
    for kind, values in (("input", proto.graph.input), ("output", proto.graph.output)):
        for value in values:
            if not _has_rank(value):
                raise ModelError(
                    f"{source}: {kind} {value.name!r} has no rank, and ONNX cannot infer it; "
                    "export the model with its shape, which may have open dimensions"
                )


def _has_rank(value: onnx.ValueInfoProto) -> bool:
    """Tell whether `value` is a tensor of known rank, or not a tensor at all."""
    kind = value.type.WhichOneof("value")
    return kind is not None and (kind != "tensor_type" or value.type.tensor_type.HasField("shape"))
