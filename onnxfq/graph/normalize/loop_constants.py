"""Constants that a loop hands on unchanged are read directly: products in its body then have weights.

tf2onnx exports the LSTM and GRU of Keras so: the kernels are values that a Loop carries.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import onnx

from onnxfq.graph.index import GraphIndex
from onnxfq.graph.model import bodies, list_graphs, list_nodes
from onnxfq.graph.node_fields import attributes_of
from onnxfq.graph.ops import STANDARD_DOMAINS
from onnxfq.graph.walk import rename_tensors
from onnxfq.numerics.float_types import FLOAT_CODES


class _Carried(NamedTuple):
    """Places of a value that a loop carries.

    Attributes:
        given: among the inputs of the loop.
        taken: among the inputs of its body.
        returned: among the outputs of its body.
        final: among the outputs of the loop.
    """

    given: int
    taken: int
    returned: int
    final: int


def read_loop_constants(proto: onnx.ModelProto) -> str:
    """Let the bodies of Loop and Scan read float constants that they carry and never change."""
    constants = {n for n, t in GraphIndex(proto.graph).constants.items() if t.data_type in FLOAT_CODES}
    count = 0
    for graph in list_graphs(proto.graph):  # outer loops first: they may hand a constant to inner ones
        for at, node in reversed(list(enumerate(graph.node))):
            places = [one for one in _list_carried(node) if node.input[one.given] in constants]
            for place in reversed(places):
                if not _is_unchanged(node, place):
                    continue
                for made in _read_directly(node, place):
                    graph.node.insert(at + 1, made)
                count += 1
    return f"{count} constant(s) that a loop only hands on are read directly" if count else ""


def _list_carried(node: onnx.NodeProto) -> Iterator[_Carried]:
    """Yield the places of the values that `node` carries from one iteration to the next."""
    if node.domain not in STANDARD_DOMAINS or node.op_type not in ("Loop", "Scan"):
        return
    if node.op_type == "Loop":  # inputs: trip count, condition; of the body: number, condition
        yield from (_Carried(n + 2, n + 2, n + 1, n) for n in range(len(node.input) - 2))
    else:
        scanned = attributes_of(node)["num_scan_inputs"]
        states = len(bodies(node)[0].input) - scanned
        first = len(node.input) - states - scanned  # opset 8 has the lengths of sequences in front
        yield from (_Carried(first + n, n, n, n) for n in range(states))


def _is_unchanged(node: onnx.NodeProto, place: _Carried) -> bool:
    """Tell whether the body returns what it takes there."""
    (body,) = bodies(node)
    outputs = [value.name for value in body.output]
    name, taken = outputs.pop(place.returned), body.input[place.taken].name
    if taken in outputs or len(node.output) < 2:  # it would be undefined, or the loop without outputs
        return False
    return bool(GraphIndex(body).origin(name, ("Identity",)) == taken)


def _read_directly(node: onnx.NodeProto, place: _Carried) -> list[onnx.NodeProto]:
    """Let the body of `node` read what is given at `place`; return the node that makes the final value."""
    (body,) = bodies(node)
    given, taken = node.input[place.given], body.input[place.taken].name
    rename_tensors(list_nodes(body), {taken: given}, made=False)
    final = node.output[place.final] if place.final < len(node.output) else ""
    del body.input[place.taken], body.output[place.returned], node.input[place.given]
    if place.final < len(node.output):
        del node.output[place.final]
    named = f"{node.name or node.output[0]}/{final}"
    return [onnx.helper.make_node("Identity", [given], [final], named)] if final else []
