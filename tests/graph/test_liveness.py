"""Memory of activations: by hand, and against what ONNX's own evaluator holds."""

from __future__ import annotations

from copy import deepcopy

import onnx
import pytest
from builders import BUILDERS, build, feed_for, weights
from onnx.reference import ReferenceEvaluator

from onnxfq.graph.io.load import load
from onnxfq.graph.model import bodies
from onnxfq.graph.segments import most_alive


def test_a_chain_and_a_branch() -> None:
    """[8] -> a, b of 16 floats each; both and the input of the last reader are alive at a time."""
    proto = build(
        "g (float[N,2] x) => (float[N,4] y) "
        "{ [a] a = MatMul (x, w) [b] b = Relu (a) [c] c = Relu (b) [d] y = Add (a, c) }",
        {"w": weights(2, 4)},
    )
    graph = load(proto).proto.graph
    # At c: a, b and c; x went after a.
    assert most_alive(graph, {"x": (4, 2)}) == 3 * 4 * 4 * 4
    assert most_alive(graph, {"x": (1, 2)}) == 3 * 4 * 4
    assert most_alive(graph, {}) is None  # the size of N is unknown


@pytest.mark.parametrize("name", sorted(BUILDERS))
def test_all_tensors_by_their_true_sizes(name: str) -> None:
    """The same walk over the arrays that the reference evaluator makes."""
    proto = load(BUILDERS[name]()).proto
    feed = feed_for(proto)
    graph = proto.graph
    got = most_alive(graph, {key: array.shape for key, array in feed.items()})
    if any(map(bodies, graph.node)):
        assert got is None
        return
    made = [output for node in graph.node for output in node.output if output]
    every = deepcopy(proto)
    del every.graph.output[:]
    every.graph.output.extend(onnx.ValueInfoProto(name=name) for name in made)
    arrays = feed | dict(zip(made, ReferenceEvaluator(every).run(None, feed), strict=True))
    outputs = {value.name for value in graph.output}
    most = 0
    for number, node in enumerate(graph.node):
        before = {*feed, *(name for earlier in graph.node[:number] for name in earlier.output)}
        later = {name for after in graph.node[number:] for name in after.input} | outputs
        alive = (before & later) | set(node.output)
        most = max(most, sum(arrays[name].nbytes for name in alive))
    assert got == most
