"""Ends of the ranges of quantizers that were taken out: the Clip or Relu that each left, and its removal."""

from __future__ import annotations

from collections.abc import Mapping
from copy import deepcopy
from dataclasses import replace

import onnx
from onnx import helper

from onnxfq.graph.model import Model, list_nodes
from onnxfq.graph.prune import keep_constants
from onnxfq.graph.saturation import Ends, ValueLimit


def remove_ends(model: Model, unreached: Mapping[str, Ends]) -> Model:
    """Return `model` without these ends of the limits, by the tensor behind; itself if there are none."""
    if not unreached:
        return model
    proto = deepcopy(model.proto)
    for node in list_nodes(proto.graph):
        name = node.output[0] if node.output else ""
        if name in unreached and name in model.limits:
            node.CopyFrom(_make_rest(node, unreached[name], model.limits[name]))
    used = {name for node in list_nodes(proto.graph) for name in node.input}
    ends_of = {f"{name}/{end}" for name in unreached for end in ("min", "max")}
    keep_constants(proto.graph, used | (model.constants.keys() - ends_of))
    return replace(model, proto=proto)


def _make_rest(node: onnx.NodeProto, ends: Ends, limit: ValueLimit) -> onnx.NodeProto:
    """Return the node that has the other end."""
    tensor, output, name = node.input[0], list(node.output), node.name
    low = None if ends in ("low", "both") else limit.low
    high = None if ends in ("high", "both") else limit.high
    if low is None and high is None:
        return helper.make_node("Identity", [tensor], output, name)
    if high is None and low == 0:
        return helper.make_node("Relu", [tensor], output, name)
    limits = [node.input[1]] if high is None else ["", node.input[2]]
    return helper.make_node("Clip", [tensor, *limits], output, name)
