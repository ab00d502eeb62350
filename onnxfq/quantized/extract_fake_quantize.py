"""Extraction of `FakeQuantize` nodes to a float model, a plan and encodings.

From these `with_qdq` writes the Q/DQ model, with the same scales and zero points. One tensor may be
quantized in several ways for several readers, but a plan holds one way per tensor. The others read an
Identity, which `drop_copies` removes afterwards.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx_graphsurgeon as gs

from onnxfq.documents.encodings import Encoding, Encodings
from onnxfq.documents.plan import Placement, Plan
from onnxfq.errors import ModelError, PlanError
from onnxfq.graph.constants import constant_array
from onnxfq.graph.edit import Editor
from onnxfq.graph.model import Model, remove_domain
from onnxfq.graph.names import Use
from onnxfq.graph.ops import ONNXFQ_DOMAIN
from onnxfq.graph.queries import float_type
from onnxfq.numerics.granularity import Granularity
from onnxfq.numerics.qtypes import qtype_by_name
from onnxfq.numerics.spec import QuantSpec

_COPY = "/onnxfq_copy"


@dataclass(frozen=True)
class Lifted:
    """A model without its FakeQuantize nodes, and their parameters.

    Attributes:
        model: the float model.
        plan: the quantized tensors.
        encodings: their scales and zero points.
        reciprocal: number of nodes that multiplied by 1 / scale, as torch does; QuantizeLinear divides.
    """

    model: Model
    plan: Plan
    encodings: Encodings
    reciprocal: int


def has_fake_quantize(model: Model) -> bool:
    """Tell whether the main graph of `model` has FakeQuantize nodes."""
    return any(
        node.op_type == "FakeQuantize" and node.domain == ONNXFQ_DOMAIN for node in model.proto.graph.node
    )


def lift_fake_quantize(model: Model) -> Lifted:
    """Return the parameters of the FakeQuantize nodes of `model`, and the model without them.

    Raises PlanError for a node that QuantizeLinear cannot express: computed scales, a rounding other than
    half_even, fractional zero points.
    """
    graph = model.graph()
    _store_turned(graph)
    lift = _Lift(graph)
    for node in [node for node in graph.nodes if _is_fake_quantize(node)]:
        lift.take(node)
    graph.nodes = [node for node in graph.nodes if not _is_fake_quantize(node)]
    graph.import_domains = [o for o in graph.import_domains or [] if o.domain != ONNXFQ_DOMAIN]
    graph.cleanup(remove_unused_graph_inputs=False).toposort()
    proto = model.with_graph(graph).proto
    remove_domain(proto, ONNXFQ_DOMAIN)
    digest = hashlib.sha256(proto.SerializeToString(deterministic=True)).hexdigest()
    plan = Plan(
        model_sha256=digest,
        recipe="of the model",
        target="simulation",
        placements=tuple(lift.placements.values()),
        nodes=(),
        skipped=(),
    )
    encodings = Encodings(model_sha256=digest, encodings=tuple(lift.encodings.values()))
    return Lifted(Model(proto, digest, model.source), plan, encodings, lift.reciprocal)


def _store_turned(graph: gs.Graph) -> None:
    """Quantize turned constants, in place of a Transpose behind: it would part a weight from its product."""
    editor = Editor(graph)
    for turn in [node for node in graph.nodes if node.op == "Transpose"]:
        node = turn.inputs[0].inputs[0] if turn.inputs[0].inputs else turn
        if not _is_fake_quantize(node) or not isinstance(node.inputs[0], gs.Constant):
            continue
        rank = len(node.inputs[0].shape)
        order = tuple(turn.attrs.get("perm", range(rank)[::-1]))
        turn.op, turn.domain, turn.attrs = node.op, node.domain, dict(node.attrs)
        if "axis" in node.attrs:
            turn.attrs["axis"] = order.index(node.attrs["axis"] % rank)
        if "block_shape" in node.attrs:
            turn.attrs["block_shape"] = [node.attrs["block_shape"][axis] for axis in order]
        suffix = f"/turned{''.join(map(str, order))}"
        turn.inputs = [
            editor.constant(one.name + suffix, constant_array(one).transpose(order))
            if isinstance(one, gs.Constant) and len(one.shape) == rank
            else one
            for one in node.inputs
        ]


def drop_copies(model: Model) -> Model:
    """Return `model` without the Identity nodes that `lift_fake_quantize` made."""
    graph = model.graph()
    copies = [node for node in graph.nodes if node.op == "Identity" and node.name.endswith(_COPY)]
    outputs = {tensor.name for tensor in graph.outputs}
    dropped = []
    for node in copies:
        source, made = node.inputs[0], node.outputs[0]
        producer = source.inputs[0] if source.inputs else None
        if made.name not in outputs:
            _move_readers(made, source)
        elif producer is not None and source.name not in outputs:
            # The output keeps its name: the producer of the source makes it, and other readers follow.
            node.outputs.clear()
            node.inputs.clear()
            _move_readers(source, made)
            slot = next(i for i, tensor in enumerate(producer.outputs) if tensor is source)
            producer.outputs[slot] = made
            # `graph.model.export_graph` restores the old outputs of a node with its old name.
            producer.name = f"{producer.name}/output"
        else:
            continue
        dropped.append(id(node))
    graph.nodes = [node for node in graph.nodes if id(node) not in dropped]
    return model.with_graph(graph)


def _move_readers(old: gs.Tensor, new: gs.Tensor) -> None:
    for reader in list(old.outputs):
        for slot, tensor in enumerate(reader.inputs):
            if tensor is old:
                reader.inputs[slot] = new


def _is_fake_quantize(node: gs.Node) -> bool:
    return bool(node.op == "FakeQuantize" and node.domain == ONNXFQ_DOMAIN)


class _Lift:
    """Extraction from one graph, in place, with the collected parameters."""

    def __init__(self, graph: gs.Graph) -> None:
        self.graph = graph
        self.editor = Editor(graph)
        self.placements: dict[str, Placement] = {}
        self.encodings: dict[str, Encoding] = {}
        self.reciprocal = 0

    def take(self, node: gs.Node) -> None:
        source, made = node.inputs[0], node.outputs[0]
        spec, scale, zero_point = _read_node(node)
        self.reciprocal += node.attrs.get("arithmetic", "divide") == "reciprocal"
        encoding = Encoding.of(source.name, spec, scale, zero_point)
        known = self.encodings.get(source.name)
        if known is not None and known != encoding:
            source = self._copy(source)
            encoding = encoding.model_copy(update={"tensor": source.name})
        uses = []
        if any(made is output for output in self.graph.outputs):
            uses.append(self._keep_output(source, made))
        for reader in list(made.outputs):
            for slot, tensor in enumerate(reader.inputs):
                if tensor is made:
                    uses.append(self._read(source, reader, slot))
        node.outputs.clear()
        node.inputs.clear()
        if not uses:
            return
        weight = isinstance(source, gs.Constant)
        before = self.placements.get(source.name)
        if before is not None:
            uses = [*before.uses, *uses]
        self.placements[source.name] = Placement(
            tensor=source.name,
            role="weight" if weight else "activation",
            spec=spec,
            uses=tuple(uses),
            why="quantized in the given model",
            float_type=float_type(source) or "float32",
        )
        self.encodings[source.name] = encoding

    def _read(self, source: gs.Tensor, reader: gs.Node, slot: int) -> Use:
        """Let `reader` read the float tensor, through a copy if it would quantize the tensor again."""
        if not _is_fake_quantize(reader):
            reader.inputs[slot] = source
            return Use(reader.name, slot)
        copy = self._identity(source)
        reader.inputs[slot] = copy
        return Use(copy.inputs[0].name, 0)

    def _keep_output(self, source: gs.Tensor, made: gs.Tensor) -> Use:
        made.inputs.clear()
        node = gs.Node("Identity", f"{made.name}{_COPY}", inputs=[source], outputs=[made])
        self.graph.nodes.append(node)
        return Use(node.name, 0)

    def _copy(self, source: gs.Tensor) -> gs.Tensor:
        if isinstance(source, gs.Constant):
            return self.editor.constant(source.name, constant_array(source))
        return self._identity(source)

    def _identity(self, source: gs.Tensor) -> gs.Variable:
        copy = self.editor.variable(source.name, source)
        name = f"{copy.name}{_COPY}"
        self.graph.nodes.append(gs.Node("Identity", name, inputs=[source], outputs=[copy]))
        return copy


def _read_node(node: gs.Node) -> tuple[QuantSpec, np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """Return (spec, scale, zero point) of a FakeQuantize node."""
    name = node.inputs[0].name
    for tensor in node.inputs[1:]:
        if not isinstance(tensor, gs.Constant):
            raise PlanError(
                f"tensor {name!r}: scale and zero point must be constants, and {tensor.name!r} is computed; "
                "make the model's quantizers static before the export"
            )
    rounding = node.attrs.get("rounding", "half_even")
    if rounding != "half_even":
        raise PlanError(
            f"tensor {name!r}: QuantizeLinear rounds half_even, found {rounding!r}; train with half_even"
        )
    qtype = qtype_by_name(node.attrs.get("qtype", ""))
    scale = np.asarray(constant_array(node.inputs[1]), np.float32)
    zeros = np.asarray(constant_array(node.inputs[2]) if len(node.inputs) > 2 else 0.0, np.float32)
    if (zeros != np.rint(zeros)).any():
        raise PlanError(f"tensor {name!r}: QuantizeLinear has integer zero points only; round them first")
    axis, blocks = node.attrs.get("axis"), node.attrs.get("block_shape")
    size = node.attrs.get("block_size") or None
    if scale.size == 1 and blocks is None and not size:
        scale, axis = scale.reshape(()), None
    zeros = np.broadcast_to(zeros.reshape(()) if zeros.size == 1 else zeros.reshape(scale.shape), scale.shape)
    symmetric = not zeros.any() and qtype.qmin < 0 < qtype.qmax
    if scale.ndim > 1 and blocks is None and size is None:
        raise ModelError(
            f"tensor {name!r}: a scale of shape {list(scale.shape)} needs block_size or block_shape; add it"
        )
    granularity = Granularity.of(axis, size, blocks)
    return QuantSpec(qtype=qtype, symmetric=symmetric, granularity=granularity), scale, zeros.astype(np.int32)
