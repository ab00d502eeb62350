"""`with_given_choices`: a model whose choices are inputs, so that another model makes them."""

from __future__ import annotations

from collections.abc import Mapping
from copy import deepcopy

import numpy as np
import onnx
from onnx import helper, numpy_helper

from onnxfq.graph.model import bodies, default_opset, list_graphs, list_nodes, replace_nodes
from onnxfq.graph.normalize.opset import raise_opset
from onnxfq.graph.patterns.choices import ChoiceType
from onnxfq.graph.walk import rename_tensors
from onnxfq.numerics.float_types import FLOAT_CODES

_GIVEN, _CAST, _OWN = "/given", "/cast", "/own"
_GATHERED = frozenset({"TopK", "Unique"})
_OPSET = 11  # of GatherElements


def given_name(choice: str) -> str:
    """Return the name of the input that takes the place of a choice."""
    return f"{choice}{_GIVEN}"


def with_given_choices(proto: onnx.ModelProto, choices: Mapping[str, ChoiceType]) -> onnx.ModelProto:
    """Return a copy of `proto` in which all readers of choices read inputs; `proto` itself without choices.

    It still computes its own choices, under their names. Values that a TopK or Unique selects are gathered
    from what it reads, by the given indices.

    Args:
        proto: a model that computes the choices.
        choices: by tensor, its type; rounded floats take the type that they have in `proto`.
    """
    if not choices:
        return proto
    copy = deepcopy(raise_opset(proto, _OPSET, "the model")[0])
    graph = copy.graph
    # From opset 15 on a type of floats is found where the model has another one than the choice.
    floats = [name for name, one in choices.items() if one.kind in FLOAT_CODES and default_opset(proto) >= 15]
    reads = {name: given_name(name) + _CAST * (name in floats) for name in choices}
    rename_tensors(list_nodes(graph), reads, made=False)
    for body in (body for node in graph.node for inner in bodies(node) for body in list_graphs(inner)):
        for value in body.output:
            value.name = reads.get(value.name, value.name)
    nodes: list[onnx.NodeProto] = []
    for node in graph.node:
        nodes.append(node)
        for name in (name for name in node.output if name in choices):
            given, (kind, rank, _) = given_name(name), choices[name]
            axes = None if rank is None else [None] * rank  # runtimes need their number
            graph.input.append(helper.make_tensor_value_info(given, kind, axes))
            if name in floats:
                nodes.append(helper.make_node("CastLike", [given, name], [reads[name]], reads[name]))
            elif node.op_type in _GATHERED and name in node.output[1:2] and node.output[0]:
                nodes += _gather(graph, node, given)
    replace_nodes(graph, nodes)
    return copy


def _gather(graph: onnx.GraphProto, node: onnx.NodeProto, indices: str) -> list[onnx.NodeProto]:
    """Return nodes that gather the first output of `node`, which takes another name."""
    values, data = node.output[0], node.input[0]
    node.output[0] = f"{values}{_OWN}"
    axis = next((one.i for one in node.attribute if one.name == "axis"), None)
    if node.op_type == "TopK":
        axis = -1 if axis is None else axis
        return [helper.make_node("GatherElements", [data, indices], [values], values + _GIVEN, axis=axis)]
    if axis is not None:
        return [helper.make_node("Gather", [data, indices], [values], values + _GIVEN, axis=axis)]
    flat, row = f"{values}/flat", f"{values}/row"
    graph.initializer.append(numpy_helper.from_array(np.asarray([-1], np.int64), row))
    return [
        helper.make_node("Reshape", [data, row], [flat], flat),
        helper.make_node("Gather", [flat, indices], [values], values + _GIVEN),
    ]
