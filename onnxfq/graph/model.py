"""`Model`: a normalised ONNX model, and the way into graphsurgeon and back without loss."""

from __future__ import annotations

from dataclasses import dataclass, replace

import onnx
import onnx_graphsurgeon as gs
from onnx_graphsurgeon.logger import G_LOGGER

# graphsurgeon logs to the console on its own; what a user must know is said by onnxfq.
G_LOGGER.severity = G_LOGGER.CRITICAL


@dataclass(frozen=True)
class Model:
    """A model that went through `load`: checked, with unique node names and constants as initializers.

    proto: never changed in place. sha256: of the input file, external data included. source: what
    messages call it. notes: what loading changed.
    """

    proto: onnx.ModelProto
    sha256: str
    source: str
    notes: tuple[str, ...] = ()

    @property
    def opset(self) -> int:
        """Version of the ai.onnx operator set."""
        return default_opset(self.proto)

    def graph(self) -> gs.Graph:
        """Return a graphsurgeon graph of its own, to read or to edit; weights stay in the proto."""
        return gs.import_onnx(self.proto)

    def with_graph(self, graph: gs.Graph) -> Model:
        """Return this model with the edited `graph` in place of its own."""
        return replace(self, proto=export_graph(graph, self.proto))


def default_opset(proto: onnx.ModelProto) -> int:
    """Return the ai.onnx version that `proto` imports; 1 when it names none, as ONNX defines."""
    return next((o.version for o in proto.opset_import if o.domain in ("", "ai.onnx")), 1)


def export_graph(graph: gs.Graph, like: onnx.ModelProto) -> onnx.ModelProto:
    """Export `graph` and put back what a round trip through graphsurgeon 0.6.1 loses.

    Lost by it: metadata, doc strings and versions of the model, doc strings and metadata of nodes.
    """
    # Constants share their TensorProto with the source; exporting names them, so names must be equal.
    opsets = {o.domain: o.version for o in like.opset_import}
    opsets |= {o.domain: o.version for o in graph.import_domains or [] if o.domain not in opsets}
    proto = gs.export_onnx(
        graph,
        do_type_check=False,
        opset_imports=[onnx.helper.make_opsetid(domain, version) for domain, version in opsets.items()],
    )
    proto.ir_version = like.ir_version
    for field in ("producer_name", "producer_version", "domain", "model_version", "doc_string"):
        setattr(proto, field, getattr(like, field))
    proto.metadata_props.extend(like.metadata_props)
    before = {node.name: node for node in like.graph.node}
    for node in proto.graph.node:
        source = before.get(node.name)
        if source is not None and source.op_type == node.op_type:
            node.doc_string = source.doc_string
            del node.metadata_props[:]
            node.metadata_props.extend(source.metadata_props)
    return proto
