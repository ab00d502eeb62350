"""Observing sessions on onnxruntime-optimised graphs.

onnxruntime keeps activations between convolutions in an internal layout of channel blocks. By default it
converts each observed activation back first, and runs all observers at the end, so that every observed
activation stays alive until then. Here its optimised graph is written to a file and edited: an observer reads
the blocked tensor without its padding, and runs directly after the node that computes the tensor.
"""

from __future__ import annotations

import logging
from functools import cache
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper

from onnxfq.graph.external.sizes import LIMIT, weight_bytes
from onnxfq.graph.index import GraphIndex
from onnxfq.graph.model import list_nodes, replace_nodes
from onnxfq.graph.node_fields import attributes_of
from onnxfq.graph.ops import ONNXFQ_DOMAIN
from onnxfq.graph.segments import list_reads
from onnxfq.runtime.optimized_graph import write_optimized
from onnxfq.runtime.session import Session
from onnxfq.support.groups import group_pairs
from onnxfq.support.records import join_lines
from onnxfq.support.temporary import scratch_folder

log = logging.getLogger(__name__)

_GROUPS = ("axis", "block_size", "block_shape")


def open_observing_session(model: Path, threads: int) -> Session:
    """Return a session of a model with Observe nodes that costs little more than one without them.

    If onnxruntime rejects its own optimised model, the given one is run unchanged, slower and with more
    memory, with a note.

    Args:
        model: path of the model; the optimised model and its weights are written next to it.
        threads: of the session.
    """
    # Onnxruntime 1.31 breaks Q/DQ models at full optimisation; large models are not written a second time.
    structure = onnx.load(model, load_external_data=False)
    quantized = any(node.op_type == "DequantizeLinear" for node in list_nodes(structure.graph))
    if quantized or weight_bytes(structure) > LIMIT:
        return Session(model, threads)
    try:
        return Session(_optimize_model(model), threads, as_written=True)
    except Exception as error:  # any error of onnxruntime's optimiser or writer: the model still runs
        log.warning("observers run in the model's own layout: %s", join_lines(error)[:200])
        return Session(model, threads)


def _optimize_model(model: Path) -> Path:
    """Write `model` optimised by onnxruntime, with the observers moved, next to it; return the path."""
    made, edited = (model.with_name(f"{model.stem}.{kind}.onnx") for kind in ("optimised", "observed"))
    write_optimized(model, made)
    proto = onnx.load(made, load_external_data=False)
    _observe_blocked_layouts(proto.graph)
    _observe_at_once(proto.graph)
    onnx.save(proto, edited)
    return edited


def _observe_blocked_layouts(graph: onnx.GraphProto) -> None:
    """Let observers of tensors converted from the blocked layout read the blocked tensor itself."""
    turned = {
        node.output[0]: node
        for node in graph.node
        if node.op_type == "ReorderOutput" and node.domain == "com.microsoft.nchwc"
    }
    for node in graph.node:
        source = turned.get(node.input[0]) if _is_observer(node) else None
        if source is None:
            continue
        attributes = attributes_of(source)
        # The blocked layout is read by whole tensors and by channels.
        groups = {name: value for name, value in attributes_of(node).items() if name in _GROUPS}
        if attributes.get("channels_last") or groups not in ({}, {"axis": 1}):
            continue
        node.input[0] = source.input[0]
        node.attribute.append(helper.make_attribute("channels", attributes["channels"]))
        node.attribute.append(helper.make_attribute("channel_block", channel_block()))
    read = {name for node in graph.node for name in list_reads(node)} | {
        output.name for output in graph.output
    }
    unread = [node for name, node in turned.items() if name not in read]
    for node in unread:
        graph.node.remove(node)


def _observe_at_once(graph: onnx.GraphProto) -> None:
    """Move every observer directly after the node that computes its tensor."""
    waiting = group_pairs((node.input[0], node) for node in graph.node if _is_observer(node))
    computed = GraphIndex(graph).makers
    order = [node for name in list(waiting) if name not in computed for node in waiting.pop(name)]
    for node in graph.node:
        if not _is_observer(node):
            order.append(node)
            order += [observer for name in node.output for observer in waiting.pop(name, [])]
    replace_nodes(graph, order)


def _is_observer(node: onnx.NodeProto) -> bool:
    return bool(node.op_type == "Observe" and node.domain == ONNXFQ_DOMAIN)


@cache
def channel_block() -> int:
    """Return the channels per block of onnxruntime's layout on this processor; 1 without such a layout.

    Measured by optimising a convolution with one output channel: its weights are padded to a block.
    """
    weight = helper.make_tensor("w", TensorProto.FLOAT, [1, 64, 1, 1], np.ones(64, np.float32))
    graph = helper.make_graph(
        [helper.make_node("Conv", ["x", "w"], ["y"], kernel_shape=[1, 1])],
        "probe",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 64, 4, 4])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, 1, 4, 4])],
        [weight],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    with scratch_folder() as folder:
        optimised = folder / "optimised.onnx"
        write_optimized(model, optimised)
        made = onnx.load(optimised, load_external_data=False)
    convolution = next(node for node in made.graph.node if node.op_type == "Conv")
    padded = next(w for w in made.graph.initializer if w.name == convolution.input[1])
    return int(padded.dims[0])
