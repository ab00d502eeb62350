"""`Model`: a normalised ONNX model and its lossless graphsurgeon conversion."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from copy import deepcopy
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Literal

import onnx
import onnx_graphsurgeon as gs
from onnx import TensorProto
from onnx_graphsurgeon.logger import G_LOGGER

from onnxfq.graph.external.messages import take_fields
from onnxfq.graph.index import GraphIndex
from onnxfq.graph.saturation import ValueLimit
from onnxfq.graph.stored_grid import StoredWeight
from onnxfq.graph.walk import bodies as bodies
from onnxfq.graph.walk import list_graphs as list_graphs
from onnxfq.graph.walk import list_nodes as list_nodes

# graphsurgeon logs to the console on its own; onnxfq reports everything that a user must know.
G_LOGGER.severity = G_LOGGER.CRITICAL

_SHOWN = 6
"""Operators in the text of a model."""

Existing = Literal["refuse", "keep", "requantize"]
"""Treatment of a model that is quantized already."""


@dataclass(frozen=True)
class Model:
    """A model that went through `load`.

    It is checked. Names of nodes and tensors are unique in the whole model, bodies included. Constants are
    initializers of the main graph.

    Attributes:
        proto: never changed in place.
        sha256: of the input file, external data included.
        source: name of the model in messages.
        notes: changes made by loading.
        stored: constants that the file stores as integers, by name.
        limits: Clip and Relu in place of quantizers that were taken out, by their outputs.
        target: the target whose rewrites the model has; empty for none.
    """

    proto: onnx.ModelProto
    sha256: str
    source: str
    notes: tuple[str, ...] = ()
    stored: Mapping[str, StoredWeight] = dataclasses.field(default_factory=dict, repr=False, compare=False)
    limits: Mapping[str, ValueLimit] = dataclasses.field(default_factory=dict, repr=False, compare=False)
    target: str = dataclasses.field(default="", repr=False, compare=False)

    def __repr__(self) -> str:
        """Return its name, operators and ends in one line; protos have no readable form."""
        graph = self.proto.graph
        kinds = Counter(node.op_type for node in graph.node).most_common(_SHOWN)
        ends = (", ".join(value.name for value in values) for values in (graph.input, graph.output))
        operators = ", ".join(f"{kind} {count}" for kind, count in kinds)
        more = ", ..." if len({node.op_type for node in graph.node}) > _SHOWN else ""
        return f"Model({self.source}, opset {self.opset}: {' -> '.join(ends)}; {operators}{more})"

    @property
    def opset(self) -> int:
        """Version of the ai.onnx operator set."""
        return default_opset(self.proto)

    @cached_property
    def index(self) -> GraphIndex:
        """Makers, readers, constants and shapes of its tensors by name, bodies included; claim no names."""
        return GraphIndex.of_model(self.proto)

    @property
    def constants(self) -> dict[str, onnx.TensorProto]:
        """Name -> initializer."""
        return self.index.constants

    @cached_property
    def _prepared(self) -> dict[str, Model]:
        return {}

    def prepared_for(self, target: str, rewrite: Callable[[Model], Model]) -> Model:
        """Return this model with the rewrites of `target`, computed once; itself if it has them.

        Edits of the result have them too.
        """
        if self.target == target:
            return self
        if target not in self._prepared:
            self._prepared[target] = replace(rewrite(self), target=target)
        return self._prepared[target]

    def graph(self) -> gs.Graph:
        """Return a new graphsurgeon graph to read or edit; weights stay in the proto."""
        graph = gs.import_onnx(self.proto)
        for one in list_graphs(graph):
            # graphsurgeon 0.6.1 gives sequences the type of their elements and optionals a protobuf message,
            # and cannot export an attribute that is an empty list; exporting restores all of these.
            for tensor in one.tensors().values():
                if isinstance(tensor, gs.Variable) and tensor.type != "tensor_type":
                    tensor.dtype = tensor.shape = None
            for attributes in (node.attrs for node in one.nodes if node.attrs):
                for name in [n for n, value in attributes.items() if isinstance(value, list) and not value]:
                    del attributes[name]
        return graph

    def with_graph(self, graph: gs.Graph) -> Model:
        """Return this model with the edited `graph`."""
        return replace(self, proto=export_graph(graph, self.proto))


def default_opset(proto: onnx.ModelProto) -> int:
    """Return the ai.onnx version that `proto` imports; 1 when it imports none, as ONNX defines."""
    return next((o.version for o in proto.opset_import if o.domain in ("", "ai.onnx")), 1)


def remove_domain(proto: onnx.ModelProto, domain: str) -> None:
    """Remove an operator set from the imports of `proto`, in place."""
    for entry in [one for one in proto.opset_import if one.domain == domain]:
        proto.opset_import.remove(entry)


def export_graph(graph: gs.Graph, like: onnx.ModelProto) -> onnx.ModelProto:
    """Export `graph`, an edit of `like`, and restore the fields that graphsurgeon 0.6.1 loses.

    Lost fields: metadata, doc strings, quantization annotations, device configurations and versions of the
    model; doc strings and metadata of graphs, inputs, outputs and nodes; attributes and types unknown to
    graphsurgeon. In bodies it also repeats the constants that they read from outside. Nodes keep everything
    except their inputs, outputs and bodies, so edits may rewire and add nodes but not rewrite them. Constants
    that bodies read are stored once, in the main graph.
    """
    # Constants share their TensorProto with the source; exporting names them, so names must be equal.
    opsets = {o.domain: o.version for o in like.opset_import}
    opsets |= {o.domain: o.version for o in graph.import_domains or [] if o.domain not in opsets}
    imports = [onnx.helper.make_opsetid(domain, version) for domain, version in opsets.items()]
    proto = gs.export_onnx(graph, do_type_check=False, opset_imports=imports)
    # Below IR version 4 every initializer has to be an input.
    proto.ir_version = max(like.ir_version, 4)
    kept = ("producer_name", "producer_version", "domain", "model_version", "doc_string")
    take_fields(proto, like, *kept, "metadata_props", "configuration")
    read = {tensor.name: tensor for tensor in _restore_graph(proto.graph, like.graph)}
    have = GraphIndex(proto.graph).constants
    proto.graph.initializer.extend(tensor for name, tensor in read.items() if name not in have)
    return proto


def replace_nodes(graph: onnx.GraphProto, nodes: Iterable[onnx.NodeProto]) -> None:
    """Replace the nodes of `graph` by copies of `nodes`, which may belong to `graph` itself."""
    copies = onnx.GraphProto(node=nodes)
    graph.ClearField("node")
    graph.node.extend(copies.node)


def restore_annotations(proto: onnx.ModelProto, like: onnx.ModelProto) -> None:
    """Restore in `proto`, `like` at another opset, the annotations that onnx's converter drops.

    They are metadata, doc strings, quantization annotations and device configurations.
    """
    take_fields(proto, like, "metadata_props", "configuration")
    take_fields(proto.graph, like.graph, "metadata_props", "quantization_annotation")
    before = {node.name: node for node in like.graph.node}
    for node in proto.graph.node:
        if node.name in before:
            node.doc_string = before[node.name].doc_string
            take_fields(node, before[node.name], "metadata_props", "device_configurations")
    _restore_values(proto.graph, like.graph)


def _restore_graph(graph: onnx.GraphProto, like: onnx.GraphProto) -> list[onnx.TensorProto]:
    """Restore the lost fields of `graph`, an edit of `like`; return the constants that its bodies read."""
    read: list[onnx.TensorProto] = []
    before = {node.name: node for node in like.node}
    for node in graph.node:
        source = before.get(node.name)
        if source is None or source.op_type != node.op_type:
            continue
        edited = deepcopy(node)
        node.CopyFrom(source)
        node.input[:], node.output[:] = edited.input, edited.output
        if len(node.input) == len(source.input):  # a state led through a Loop moves what is scanned
            names = dict(zip(source.input, node.input, strict=True))
            for shard in (one for told in node.device_configurations for one in told.sharding_spec):
                shard.tensor_name = names.get(shard.tensor_name, shard.tensor_name)
        made = {attribute.name: attribute.g for attribute in edited.attribute}
        for attribute in node.attribute:
            if attribute.type == onnx.AttributeProto.GRAPH:
                body = made[attribute.name]
                read += _restore_graph(body, attribute.g)
                read += body.initializer
                del body.initializer[:]
                attribute.g.CopyFrom(body)
    take_fields(graph, like, "doc_string", "metadata_props")
    _restore_values(graph, like)
    return read + _restore_notes_on_ranges(graph, like)


def _restore_notes_on_ranges(graph: onnx.GraphProto, like: onnx.GraphProto) -> list[onnx.TensorProto]:
    """Keep the quantization annotations of tensors still in `graph`; return the constants they name."""
    index = GraphIndex(graph)
    have = {value.name for value in graph.input} | index.makers.keys() | set(index.constants)
    kept = [note for note in like.quantization_annotation if note.tensor_name in have]
    graph.quantization_annotation.extend(kept)
    named = {entry.value for note in kept for entry in note.quant_parameter_tensor_names}
    return [tensor for tensor in like.initializer if tensor.name in named]


_NUMBERS = {
    code for name, code in TensorProto.DataType.items() if name.startswith(("INT8", "UINT8", "FLOAT8"))
}


def _is_stored(value: onnx.ValueInfoProto, before: onnx.ValueInfoProto) -> bool:
    """Tell whether an edit turned the floats of a value into quantized numbers."""
    kinds = (value.type.tensor_type.elem_type, before.type.tensor_type.elem_type)
    return kinds[0] != kinds[1] and kinds[0] in _NUMBERS


def _restore_values(graph: onnx.GraphProto, like: onnx.GraphProto) -> None:
    for field in ("input", "output", "value_info"):
        before = {value.name: value for value in getattr(like, field)}
        for value in getattr(graph, field):
            if value.name in before and not _is_stored(value, before[value.name]):
                value.CopyFrom(before[value.name])
    made = GraphIndex(graph).makers
    own = [value for value in graph.value_info if value.name in made]
    del graph.value_info[:]
    graph.value_info.extend(own)
    have = {value.name for value in graph.value_info}
    graph.value_info.extend(v for v in like.value_info if v.name in made and v.name not in have)
