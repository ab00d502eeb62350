"""Check of a Q/DQ model by an engine that was built elsewhere, from the files of TensorRT's tools."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import onnx

from onnxfq.documents.engine_listing import EngineListing, RanLayer
from onnxfq.errors import DataError
from onnxfq.graph.model import list_nodes
from onnxfq.graph.node_notes import module_paths
from onnxfq.targets.findings import CheckResult, EngineNode
from onnxfq.targets.reading.context import CheckContext, read
from onnxfq.targets.reading.proof import Built, describe_node, prove
from onnxfq.targets.reading.residual_sums import with_sums
from onnxfq.targets.tensorrt.builder.exported import describe_types, read_layers, read_times
from onnxfq.targets.tensorrt.builder.layers import EngineLayer, verdict
from onnxfq.targets.tensorrt.rules.structure import EXTRA
from onnxfq.targets.tensorrt.tools.check import RULES

MOVING = frozenset({"Reformat", "NoOp", "Constant", "ShapeHostToDevice", "DeviceToShapeHost"})
"""Kinds of layers that copy or convert, and multiply for no node that they name."""

OPAQUE = frozenset({"Myelin"})
"""Kinds of layers that hold a whole part of the model, and tell nothing of what is inside."""

DEVICE = "the engine"


def check_engine(
    proto: onnx.ModelProto, source: str, layers: Path, profile: Path | None = None
) -> CheckResult:
    """Return what an engine of the model does, with the findings of the rules.

    Args:
        proto: the Q/DQ model that the engine was built from.
        source: its name for messages.
        layers: exported layers, see `builder.exported`.
        profile: exported times of the same engine.

    Raises DataError in one line for files that are none of this, or of another model.
    """
    exported = read_layers(layers)
    times = None if profile is None else read_times(profile, [one.name for one in exported])
    context = with_sums(read(proto, EXTRA))
    known = {node.name: node.op_type for node in list_nodes(proto.graph)}
    if not any(set(one.nodes) & known.keys() for one in exported):
        raise DataError(f"{layers} names no node of {source}; give the model that the engine was built from")
    built = Built(f"the engine of {layers.name}", nodes=_judge(context, exported))
    found = prove(context, source, "tensorrt", RULES, lambda reading: built)
    listing = EngineListing(
        layers=_list_layers(exported, times, known, context, module_paths(proto.graph)),
        attentions=sum(one.is_attention for one in exported),
        times="" if profile is None else str(profile),
    )
    return found.model_copy(update={"listing": listing})


def _judge(reading: CheckContext, exported: tuple[EngineLayer, ...]) -> tuple[EngineNode, ...]:
    layers = [one for one in exported if one.kind not in MOVING | OPAQUE]
    hidden = any(one.kind in OPAQUE and one.nodes for one in exported)
    why = "a block of the engine hides what is inside it" if hidden else "no layer names it"
    seen = [(one, verdict(layers, one.site.name, one.is_sum)) for one in reading.counted]
    return tuple(describe_node(one, DEVICE, it, why if it == "missing" else "") for one, it in seen)


def _list_layers(
    exported: tuple[EngineLayer, ...],
    times: list[float | None] | None,
    op_types: Mapping[str, str],
    reading: CheckContext,
    modules: Mapping[str, str],
) -> tuple[RanLayer, ...]:
    promised = {one.site.name for one in reading.promises}
    layers = []
    for number, one in enumerate(exported):
        nodes = tuple(node for node in one.nodes if node in op_types)
        own = tuple(node for node in nodes if node in promised) if one.kind not in MOVING else ()
        told = own or nodes
        layers.append(
            RanLayer(
                layer=one.name,
                kind=one.kind,
                types=describe_types(one),
                nodes=nodes,
                op_types=tuple(op_types[node] for node in nodes),
                promised=own,
                modules=tuple(dict.fromkeys(modules[node] for node in told if node in modules)),
                ms=None if times is None else times[number],
            )
        )
    return tuple(layers)
