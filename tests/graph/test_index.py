"""The graph index: its tables against graphsurgeon's links and ONNX's inference, bodies included."""

from __future__ import annotations

import onnx
import onnx_graphsurgeon as gs
import pytest
from builders import BUILDERS
from hypothesis import given, settings
from hypothesis import strategies as st
from random_graphs import random_models

from onnxfq.graph.index import GraphIndex
from onnxfq.graph.io.load import load
from onnxfq.graph.model import list_graphs, list_nodes
from onnxfq.graph.names import Names
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
