"""Local functions give way to their bodies, and the model computes what ONNX Runtime computes of them."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from builders import assert_same_outputs, feed_for, planned, weights
from onnx import numpy_helper, parser

from onnxfq.errors import ModelError
from onnxfq.graph.io.load import load
from onnxfq.graph.model import list_nodes
from onnxfq.graph.normalize.inline_functions import inline_model
from onnxfq.graph.normalize.node_sites import infer_types
from onnxfq.graph.normalize.steps import name_nodes
from onnxfq.runtime.session import Session

HEADER = '<ir_version: 9, opset_import: ["" : 18, "own" : 1]> g (float[N,4] x) => (float[N,4] y)'
CASES = {
    "attributes": """{ h = own.D <al = 0.5, pp = [1,0]> (x, w) y = own.D <al = 2.0, pp = [0,1]> (h, w) }
        <domain: "own", opset_import: ["" : 18]>
        D <al, pp> (a, b) => (c) {
            t = Transpose <perm: ints = @pp> (b) m = MatMul (a, t)
            c = LeakyRelu <alpha: float = @al> (m) }""",
    "defaults": """{ h = own.D (x, w) y = own.D <al = 2.0> (h, w) }
        <domain: "own", opset_import: ["" : 18]>
        D <al: float = 0.25> (a, b) => (c) { m = MatMul (a, b) c = LeakyRelu <alpha: float = @al> (m) }""",
    "defaults of a function in a function": """{ h = own.O (x, w) y = own.O <al = 2.0> (h, w) }
        <domain: "own", opset_import: ["" : 18, "own" : 1]>
        O <al> (a, b) => (c) { m = own.D <al: float = @al> (a, b) c = own.D (m, b) }
        <domain: "own", opset_import: ["" : 18]>
        D <al: float = 0.25> (a, b) => (c) { m = MatMul (a, b) c = LeakyRelu <alpha: float = @al> (m) }""",
    "attribute as a constant": """{ h = own.D <k = 0.5> (x, w) y = own.D <k = 2.0> (h, w) }
        <domain: "own", opset_import: ["" : 18]>
        D <k> (a, b) => (c) { s = Constant <value_float: float = @k> () v = Mul (b, s) c = MatMul (a, v) }""",
    "input left out": """{ h = own.D (x, w) y = own.D (h, w, b) }
        <domain: "own", opset_import: ["" : 18]>
        D (a, b, bias) => (c) { c = Gemm (a, b, bias) }""",
    "names of the caller": """{ m = own.D (x, w) w2 = own.D (m, w) y = own.D (w2, w) }
        <domain: "own", opset_import: ["" : 18]>
        D (x, w) => (m) { y = MatMul (x, w) w2 = Relu (y) m = MatMul (w2, w) }""",
    "a call in a body": """{ h = own.D (x, w)
            y = If (c) <then_branch = p () => (float[N,4] t) { t = own.D (h, w) },
                        else_branch = q () => (float[N,4] e) { e = Neg (h) }> }
        <domain: "own", opset_import: ["" : 18]> D (a, b) => (r) { m = MatMul (a, b) r = Add (m, m) }""",
}


def model_of(text: str, header: str = HEADER) -> onnx.ModelProto:
    """Parse functions and the graph that calls them."""
    proto = parser.parse_model(f"{header} {text}")
    proto.graph.initializer.append(numpy_helper.from_array(weights(4, 4), "w"))
    proto.graph.initializer.append(numpy_helper.from_array(weights(4), "b"))
    proto.graph.initializer.append(numpy_helper.from_array(np.asarray(True), "c"))
    return proto


@pytest.mark.parametrize("name", CASES)
def test_onnxruntime_computes_the_same(name: str) -> None:
    """Attributes, their defaults and names have the meaning of ONNX Runtime, to the bit."""
    proto = model_of(CASES[name])
    model = load(proto)
    assert not model.proto.functions and not {n.domain for n in list_nodes(model.proto.graph)} - {""}
    assert any("local function(s) inlined, so that their operators" in note for note in model.notes)
    assert_same_outputs(proto, model.proto)


def test_overloads() -> None:
    """Two functions of one name differ by their overload."""
    proto = model_of(
        """{ h = own.D (x, w) y = own.D (h, w) }
        <domain: "own", opset_import: ["" : 21]> D (a, b) => (c) { c = MatMul (a, b) }
        <domain: "own", opset_import: ["" : 21]> D (a, b) => (c) { m = MatMul (a, b) c = Relu (m) }""",
        HEADER.replace("18", "21").replace("ir_version: 9", "ir_version: 10"),
    )
    for node, function, overload in zip(proto.graph.node, proto.functions, ("one", "two"), strict=True):
        node.overload = function.overload = overload
    assert [n.op_type for n in load(proto).proto.graph.node] == ["MatMul", "MatMul", "Relu"]


def test_what_is_kept_and_what_nothing_calls() -> None:
    """A function that is kept stays with its calls, what it calls is inlined there; unused ones go."""
    made = inline_model(
        model_of(
            """{ h = own.K (x) y = own.D (h) }
            <domain: "own", opset_import: ["" : 18, "own" : 1]> K (a) => (c) { c = own.D (a) }
            <domain: "own", opset_import: ["" : 18]> D (a) => (c) { c = Relu (a) }
            <domain: "own", opset_import: ["" : 18, "own" : 1]> Unused (a) => (c) { c = own.D (a) }"""
        ),
        {"K"},
    )
    assert [n.op_type for n in made.graph.node] == ["K", "Relu"]
    assert [(f.name, [n.op_type for n in f.node]) for f in made.functions] == [("K", ["Relu"])]


def test_the_rules_of_a_target_read_defaults() -> None:
    """The rules of a target see the same as loading, and the model stays as it is."""
    proto = model_of(CASES["defaults"])
    before = proto.SerializeToString()
    made = infer_types(proto, frozenset())
    alphas = [n.attribute[0].f for n in made.graph.node if n.op_type == "LeakyRelu"]
    assert alphas == [0.25, 2.0] and proto.SerializeToString() == before


def test_nodes_of_one_name_in_a_function() -> None:
    """ONNX Runtime refuses a function with two nodes of one name: they get unique names."""
    proto = model_of(
        """{ h = own.D (x, w) y = own.D (h, w) }
        <domain: "own", opset_import: ["" : 18]>
        D (a, b) => (c) { [n] m = MatMul (a, b) [n] c = MatMul (m, b) }"""
    )
    assert [str(row) for row in planned(proto).coverage()] == ["MatMul 4/4"]
    name_nodes(proto)
    assert [n.name for n in proto.functions[0].node] == ["n", "n_2"]
    Session(proto, 1).run(feed_for(proto))


def test_functions_that_unfold_without_end() -> None:
    """Each function calls the one before it twice: a small file with a billion nodes is refused at once."""
    imports = [onnx.helper.make_opsetid("", 17), onnx.helper.make_opsetid("own", 1)]
    nodes = [onnx.helper.make_node("Relu", ["a"], ["b"])]
    functions = []
    for number in range(30):
        functions.append(onnx.helper.make_function("own", f"f{number}", ["a"], ["b"], nodes, imports))
        calls = [("a", "c"), ("c", "b")]
        nodes = [onnx.helper.make_node(f"f{number}", [a], [b], domain="own") for a, b in calls]
    value = [onnx.helper.make_tensor_value_info(name, 1, [4]) for name in "ab"]
    graph = onnx.helper.make_graph(nodes, "g", value[:1], value[1:])
    proto = onnx.helper.make_model(graph, functions=functions, opset_imports=imports, ir_version=8)
    with pytest.raises(ModelError, match="unfold to more than 250,000 nodes"):
        load(proto)
