"""Links of a graph against graphsurgeon; its numbers and its memory against ONNX's reference."""

from __future__ import annotations

from copy import deepcopy

import numpy as np
import onnx
import onnx_graphsurgeon as gs
import pytest
from builders import BUILDERS, build, build_used, feed_for, scalars, weights
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import shape_inference
from onnx.reference import ReferenceEvaluator
from random_graphs import random_models

from onnxfq.graph.constant_integers import evaluate_integers
from onnxfq.graph.index import GraphIndex
from onnxfq.graph.io.load import load
from onnxfq.graph.model import bodies, list_graphs, list_nodes
from onnxfq.graph.names import Names
from onnxfq.graph.segments import most_alive
from onnxfq.graph.signature import with_outputs


def assert_same_links(proto: onnx.ModelProto) -> None:
    """Compare makers, readers, constants, types and shapes with what graphsurgeon imports."""
    index = GraphIndex.of_model(proto)
    seen = set()
    for graph in list_graphs(gs.import_onnx(proto)):
        for name, tensor in graph.tensors().items():
            if not name:
                continue
            seen.add(name)
            makers = [index.makers[name].name] if name in index.makers else []
            assert makers == [node.name for node in tensor.inputs]
            readers = [node.name for node in index.readers.get(name, ())]
            assert sorted(readers) == sorted(node.name for node in tensor.outputs)
            assert (name in index.constants) == isinstance(tensor, gs.Constant)
            shape = index.shape(name)
            if shape is not None:
                assert list(shape) == [size if isinstance(size, int) else None for size in tensor.shape]
    assert seen <= index.names
    assert {*index.makers, *index.readers} <= seen
    assert {node.name for node in list_nodes(proto.graph)} <= index.names


@pytest.mark.parametrize("name", sorted(BUILDERS))
def test_links_are_graphsurgeons(name: str) -> None:
    """For every network of the tests."""
    assert_same_links(load(BUILDERS[name]()).proto)


@given(random_models())
@settings(max_examples=50, deadline=None)
def test_links_of_random_models(proto: onnx.ModelProto) -> None:
    """For drawn models with If, Loop, shared tensors and names of any kind."""
    assert_same_links(load(proto).proto)


@pytest.mark.parametrize("name", sorted(BUILDERS))
def test_bodies(name: str) -> None:
    """Tensors that bodies read or give are captured; a tensor computed in one names the body."""
    proto = load(BUILDERS[name]()).proto
    inner = [graph for graph in list_graphs(proto.graph) if graph is not proto.graph]
    read = {name for graph in inner for node in graph.node for name in node.input if name}
    given = {value.name for graph in inner for value in graph.output}
    assert GraphIndex(proto.graph).captured == read | given
    computed = {name for graph in inner for node in graph.node for name in node.output}
    assert computed <= set(GraphIndex.of_model(proto).enclosing)


def test_types_of_fetched_tensors() -> None:
    """An inner tensor that is made an output without a type keeps the type that ONNX inferred."""
    proto = load(BUILDERS["two_branch"]()).proto
    inferred = {value.name: value.type.tensor_type.elem_type for value in proto.graph.value_info}
    types = GraphIndex(with_outputs(proto, inferred).graph).types
    assert inferred and inferred.items() <= types.items()


@given(st.lists(st.sampled_from(["a", "a_2", "b"]), max_size=9))
def test_claimed_names_are_new(wanted: list[str]) -> None:
    """No name is given twice, and a free one is given as asked."""
    names = Names()
    for name in wanted:
        before = set(names)
        claimed = names.claim(name)
        assert claimed not in before and (claimed == name) == (name not in before)


CONSTANTS = scalars(np.int64, one=1, last=-1, places=[2, 0], three=[3], zero=[0], two=[2], many=[5, 6, 7])


# The computation, as text of a graph that reads x [N, 6, 9], and whether the open size has a part in it.
TEXTS = {
    "a size": ("s = Shape (x) y = Gather (s, one)", False),
    "the last size": ("s = Shape (x) y = Gather (s, last)", False),
    "the batch": ("s = Shape (x) y = Gather (s, zero)", True),
    "both": ("s = Shape (x) y = Gather (s, places)", True),
    "thirds": (
        "s = Shape (x) g = Gather (s, last) u = Unsqueeze (g, zero) d = Div (u, three) y = Mul (d, two)",
        False,
    ),
    "sums": ("s = Shape (x) p = Add (s, many) y = Sub (p, three)", True),
    "joined": ("s = Shape (x) g = Slice (s, zero, two) y = Concat <axis = 0> (g, three)", True),
    "cast": ("s = Shape (x) c = Cast <to = 6> (s) y = Cast <to = 7> (c)", True),
    "squeezed": ("s = Shape (x) g = Gather (s, two) y = Squeeze (g, zero)", False),
}


@pytest.mark.parametrize("case", TEXTS)
def test_as_the_reference_computes(case: str) -> None:
    """Each number that is known is the one that is computed, and none is but by an open size."""
    text, is_open = TEXTS[case]
    model = build_used(f"g (float[N,6,9] x) => (int64[M] y) {{ {text} }}", CONSTANTS)
    model.graph.output[0].type.tensor_type.ClearField("shape")
    expected = ReferenceEvaluator(model).run(None, {"x": np.zeros((4, 6, 9), np.float32)})[0].reshape(-1)
    graph = load(shape_inference.infer_shapes(model)).graph()
    found = evaluate_integers(graph.outputs[0])
    assert found is not None and len(found) == len(expected)
    assert all(a in (None, b) for a, b in zip(found, expected, strict=True))
    assert (None in found) == is_open


UNKNOWN = [
    "y = NonZero (x)",
    "s = Shape (x) y = Gather (s, i)",
    "s = Shape (x) f = Cast <to = 1> (s) r = Sqrt (f) y = Cast <to = 7> (r)",
]


@pytest.mark.parametrize("text", UNKNOWN)
def test_what_is_not_known(text: str) -> None:
    """Sizes that data decides, or that no rule covers, are unknown."""
    extra = ", int64[1] i" if "i)" in text else ""
    model = build(f"g (float[N,6,9] x{extra}) => (int64[M] y) {{ {text} }}")
    assert evaluate_integers(load(model).graph().outputs[0]) is None


def test_a_chain_and_a_branch() -> None:
    """[8] -> a, b of 16 floats each; both and the input of the last reader are alive at a time."""
    text = "g (float[N,2] x) => (float[N,4] y) { a = MatMul (x, w) b = Relu (a) c = Relu (b) y = Add (a, c) }"
    graph = load(build(text, {"w": weights(2, 4)})).proto.graph
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
