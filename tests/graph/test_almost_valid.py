"""What ONNX Runtime runs and ONNX's checker refuses is taken, and computes what it computed."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import onnx
import pytest
from builders import build, feed_for, weights
from onnx import helper

from onnxfq.errors import ModelError
from onnxfq.graph.io.load import load
from onnxfq.runtime.session import Session


def spelled(proto: onnx.ModelProto) -> None:
    """Spell ONNX's domain out; not in bodies, where ONNX Runtime does not know it."""
    proto.opset_import[0].domain = "ai.onnx"
    for node in proto.graph.node:
        node.domain = "ai.onnx"


def imported_twice(proto: onnx.ModelProto) -> None:
    """Import the same operators under both names."""
    proto.opset_import.append(helper.make_opsetid("ai.onnx", 17))


def backwards(proto: onnx.ModelProto) -> None:
    """Turn the order of the nodes round, in a body too."""
    for graph in (proto.graph, *(a.g for a in proto.graph.node[-1].attribute)):
        nodes = [onnx.NodeProto.FromString(node.SerializeToString()) for node in reversed(graph.node)]
        del graph.node[:]
        graph.node.extend(nodes)


def without_rank(proto: onnx.ModelProto) -> None:
    """Take the shape off the output."""
    proto.graph.output[0].type.tensor_type.ClearField("shape")


def without_type(proto: onnx.ModelProto) -> None:
    """Take all that is known off the output."""
    proto.graph.output[0].ClearField("type")


def nameless(proto: onnx.ModelProto) -> None:
    """Take the name off the graph."""
    proto.graph.name = ""


def proto() -> onnx.ModelProto:
    """Two MatMuls and a Relu in front of an If, which has two more nodes in a branch."""
    return build(
        """g (float[N,4] x, bool cond) => (float[N,4] y) {
            h = MatMul (x, w) r = Relu (h) k = MatMul (r, w)
            y = If (cond) <then_branch = a () => (float[N,4] t) { s = Add (k, h) t = Tanh (s) },
                           else_branch = b () => (float[N,4] e) { e = Neg (k) }> }""",
        {"w": weights(4, 4)},
    )


@pytest.mark.parametrize(
    "spoil",
    [spelled, imported_twice, backwards, without_rank, without_type, nameless],
    ids=lambda f: f.__name__,
)
def test_taken(spoil: Callable[[onnx.ModelProto], None]) -> None:
    """It loads as the sound model does, valid, and with the bits of the spoiled one in ONNX Runtime."""
    spoiled = proto()
    spoil(spoiled)
    want = Session(spoiled, 1, exact=True).run(feed_for(proto()))
    made = load(spoiled).proto
    onnx.checker.check_model(made, full_check=True)
    np.testing.assert_array_equal(Session(made, 1, exact=True).run(feed_for(proto()))[0], want[0])
    assert [n.op_type for n in made.graph.node] == ["MatMul", "Relu", "MatMul", "If"]


def test_an_input_of_unknown_rank() -> None:
    """ONNX wants the rank of an input, and nothing can tell it: the input is named, with the remedy."""
    spoiled = proto()
    spoiled.graph.input[0].type.tensor_type.ClearField("shape")
    with pytest.raises(ModelError, match="input 'x' has no rank, .*export the model with its shape"):
        load(spoiled)


def test_an_output_of_a_custom_operator() -> None:
    """What nothing can infer is named."""
    made = build(
        "g (float[N,4] x) => (float[N,4] y) { h = MatMul (x, w) y = own.Odd (h) }",
        {"w": weights(4, 4)},
        own=1,
    )
    without_rank(made)
    with pytest.raises(ModelError, match="output 'y' has no rank"):
        load(made)


def test_two_opsets() -> None:
    """Of two versions of one domain it is not known which is meant."""
    spoiled = proto()
    spoiled.opset_import.append(helper.make_opsetid("ai.onnx", 13))
    with pytest.raises(ModelError, match="imports ai.onnx at opsets 13 and 17"):
        load(spoiled)


def test_a_cycle_is_none() -> None:
    """Nodes that wait for each other are left to the checker, which refuses them."""
    made = build("g (float[N,4] x) => (float[N,4] y) { a = Add (x, b) b = Relu (a) y = Relu (b) }")
    with pytest.raises(ModelError, match="not a valid ONNX model"):
        load(made)
