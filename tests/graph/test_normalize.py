"""Loading makes one kind of model like all others: each step, and that it changes no result."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from builders import Arrays, assert_same_outputs, build, choice, constants, feed_for, square, stage, weights
from onnx import helper, numpy_helper

from onnxfq.errors import ModelError, OnnxfqError
from onnxfq.graph.io.load import load
from onnxfq.graph.model import Model
from onnxfq.graph.normalize.einsum_labels import rename_labels
from onnxfq.quantizing.pipeline import quantize
from onnxfq.runtime.session import Session
from onnxfq.stages.insert import insert_qdq


def loaded(proto: onnx.ModelProto) -> Model:
    """Load a copy, see that it is valid and computes what `proto` does."""
    before = proto.SerializeToString(deterministic=True)
    model = load(proto)
    assert proto.SerializeToString(deterministic=True) == before
    onnx.checker.check_model(model.proto, full_check=True)
    assert_same_outputs(proto, model.proto)
    return model


CONSTANTS = {
    "value": ("value = float[3] {1, 2, 3}", np.float32([1, 2, 3])),
    "value_float": ("value_float = 2.5", np.float32(2.5)),
    "value_floats": ("value_floats = [1.5, 2.5]", np.float32([1.5, 2.5])),
    "value_int": ("value_int = 7", np.int64(7)),
    "value_ints": ("value_ints = [4, 5]", np.int64([4, 5])),
    "value_string": ('value_string = "a"', np.asarray("a", object)),
    "value_strings": ('value_strings = ["a", "b"]', np.asarray(["a", "b"], object)),
}


@pytest.mark.parametrize("kind", CONSTANTS)
def test_constant_nodes_become_initializers(kind: str) -> None:
    """A Constant node of any attribute is an initializer of the same value and type."""
    attribute, value = CONSTANTS[kind]
    types = {"f": "float", "i": "int64", "O": "string"}
    shape = "".join(f"[{n}]" for n in value.shape)
    proto = build(
        f"""g (float[N,4] x) => (float[N,4] y, {types[value.dtype.kind]}{shape} k) {{
            y = Relu (x) k0 = Constant <{attribute}> () k = Identity (k0) }}"""
    )
    model = loaded(proto)
    assert all(node.op_type != "Constant" for node in model.proto.graph.node)
    assert constants(model.proto)["k0"].tolist() == value.tolist()
    assert constants(model.proto)["k0"].dtype == value.dtype
    assert "1 Constant node(s) made initializers" in model.notes


def sparse(name: str, coordinates: bool) -> onnx.SparseTensorProto:
    """A 4x4 matrix with 2 and 3 at (0, 1) and (3, 2)."""
    indices = np.int64([[0, 1], [3, 2]] if coordinates else [1, 14])
    values = numpy_helper.from_array(np.float32([2, 3]), name)
    return helper.make_sparse_tensor(values, numpy_helper.from_array(indices, "at"), [4, 4])


DENSE = np.float32([[0, 2, 0, 0], [0] * 4, [0] * 4, [0, 0, 3, 0]])


@pytest.mark.parametrize("coordinates", [False, True], ids=["flat", "coordinates"])
@pytest.mark.parametrize("where", ["initializer", "Constant"])
def test_sparse_weights_become_dense(where: str, coordinates: bool) -> None:
    """A sparse weight, in either form and either index layout, is a dense constant of equal values."""
    proto = build("g (float[N,4] x) => (float[N,4] y) { h = Relu (x) }")
    if where == "initializer":
        proto.graph.sparse_initializer.append(sparse("w", coordinates))
    else:
        node = proto.graph.node.add(op_type="Constant", output=["w"])
        node.attribute.append(helper.make_attribute("sparse_value", sparse("", coordinates)))
    proto.graph.node.append(helper.make_node("MatMul", ["h", "w"], ["y"]))
    model = load(proto)
    if where == "initializer":
        assert "1 sparse initializer(s) made dense" in model.notes
    onnx.checker.check_model(model.proto, full_check=True)
    np.testing.assert_array_equal(constants(model.proto)["w"], DENSE)
    (got,) = Session(model.proto, 1, exact=True).run({"x": np.eye(4, dtype=np.float32)})
    np.testing.assert_array_equal(got, DENSE)


def test_initializers_are_no_inputs() -> None:
    """A weight that old exporters list among the inputs is not an input, and the IR version allows that."""
    text = "g (float[N,4] x, float[4,4] w) => (float[N,4] y) { y = MatMul (x, w) }"
    model = loaded(build(text, {"w": weights(4, 4)}, opset=13, ir=3))
    assert [value.name for value in model.proto.graph.input] == ["x"]
    assert model.proto.ir_version >= 4


def test_dimensions_of_minus_one_are_open() -> None:
    """-1, which ONNX does not allow, is an open dimension with a unique name."""
    proto = build("g (float[N,4] x) => (float[M,4] y) { y = Relu (x) }")
    for value in (*proto.graph.input, *proto.graph.output):
        value.type.tensor_type.shape.dim[0].dim_value = -1
    graph = loaded(proto).proto.graph
    assert [dims(value)[0] for value in (*graph.input, *graph.output)] == ["x_0", "y_0"]


MOVES = {
    "Reshape": ("w = Reshape (v, shape)", weights(16), {"shape": np.int64([4, -1])}),
    "Cast": ("w = Cast <to = 1> (v)", weights(4, 4).astype(np.float16), {}),
    "Identity": ("w = Identity (v)", weights(4, 4), {}),
    "Squeeze": ("w = Squeeze (v, axes)", weights(1, 4, 4), {"axes": np.int64([0])}),
    "Unsqueeze": ("u = Unsqueeze (v, axes) w = Squeeze (u, axes)", weights(4, 4), {"axes": np.int64([1])}),
    "Flatten": ("w = Flatten <axis = 1> (v)", weights(4, 2, 2), {}),
}


@pytest.mark.parametrize("op", MOVES)
def test_moves_of_constants_are_folded(op: str) -> None:
    """A weight behind a Reshape, Cast or the like is the constant that its reader sees."""
    text, value, more = MOVES[op]
    text = f"g (float[N,4] x) => (float[N,4] y) {{ {text} y = MatMul (x, w) }}"
    model = loaded(build(text, {"v": value, **more}))
    assert [node.op_type for node in model.proto.graph.node] == ["MatMul"]
    assert list(constants(model.proto)) == ["w"]
    np.testing.assert_array_equal(constants(model.proto)["w"], value.astype(np.float32).reshape(4, 4))


def test_folded_outputs_and_transposes_stay() -> None:
    """An output of the graph is not folded, nor is a Transpose, which other readers may share."""
    proto = build(
        """g (float[N,4] x) => (float[N,4] y, float[4,4] copy) {
            copy = Identity (w) t = Transpose (w) h = MatMul (x, t) y = MatMul (h, copy) }""",
        {"w": weights(4, 4)},
    )
    operators = " ".join(node.op_type for node in loaded(proto).proto.graph.node)
    assert operators == "Identity Transpose MatMul MatMul"


def test_folded_constants_reach_bodies() -> None:
    """A folded constant that only a body of an If reads is still there for it."""
    flat = {"flat": weights(16), "shape": np.int64([4, 4])}
    proto = choice("u = MatMul (x, t)", "v = Relu (x)", "t = Reshape (flat, shape)", **flat)
    assert "t" in constants(loaded(proto).proto)


def test_every_node_has_a_name_of_its_own() -> None:
    """Unnamed nodes have the name of their output, doubled names become different, given names stay."""
    proto = square("[a] h = Relu (x) [a] i = Relu (h) j = Relu (i) [Relu_2] k = Relu (j) [a_2] y = Relu (k)")
    # Not run against the original: ONNX allows doubled names, ONNX Runtime refuses them.
    assert [n.name for n in load(proto).proto.graph.node] == ["a", "a_3", "j", "Relu_2", "a_2"]


@pytest.mark.parametrize("opset", [9, 11, 12])
def test_old_opsets_are_raised(opset: int) -> None:
    """A model below opset 13 is raised to 13, attributes that became inputs are initializers."""
    proto = build(
        """g (float[N,4] x) => (float[N] y) {
            h = MatMul (x, w) u = Unsqueeze <axes = [1]> (h)
            y = ReduceSum <axes = [1,2], keepdims = 0> (u) }""",
        {"w": weights(4, 4)},
        opset=opset,
        ir=6,
    )
    model = loaded(proto)
    assert model.opset == 13
    assert f"opset raised from {opset} to 13" in model.notes
    assert all(node.op_type != "Constant" and node.name for node in model.proto.graph.node)


@pytest.mark.parametrize("axis", [1, 2], ids=["axis-1", "axis-2"])
def test_softmax_of_opset_11_keeps_its_meaning(axis: int) -> None:
    """Softmax flattened its input before opset 13: the raised model does so too."""
    text = f"g (float[N,2,4] x) => (float[N,2,4] y) {{ h = MatMul (x, w) y = Softmax <axis = {axis}> (h) }}"
    assert loaded(build(text, {"w": weights(4, 4)}, opset=11, ir=6)).opset == 13


def test_raising_keeps_annotations() -> None:
    """Doc strings and metadata of model, graph, node and input survive onnx's converter."""
    proto = square("[a] y = Relu (x)", opset=11, ir=6)
    proto.doc_string = proto.graph.doc_string = proto.graph.node[0].doc_string = "read me"
    for holder in (proto, proto.graph, proto.graph.node[0], proto.graph.input[0]):
        holder.metadata_props.add(key="k", value="v")
    after = load(proto).proto
    assert after.doc_string == after.graph.doc_string == after.graph.node[0].doc_string == "read me"
    for holder in (after, after.graph, after.graph.node[0], after.graph.input[0]):
        assert [(p.key, p.value) for p in holder.metadata_props] == [("k", "v")]


def test_loading_twice_changes_nothing() -> None:
    """A `Model` is returned as it is, and a normalised proto has nothing left to normalise."""
    model = load(square("y = MatMul (x, w)"))
    assert load(model) is model
    assert load(model.proto).notes == ()
    assert load(model.proto).proto == model.proto


@pytest.mark.parametrize(
    ("operator", "opset", "says"),
    [
        ("ATen", 7, r"opset 7 must be raised to 13 .* export the model at opset 13 or above"),
        ("Scale", 11, r"opset 11 must be raised .*Scale 'act' is no operator of ONNX"),
    ],
)
def test_an_opset_that_cannot_be_raised_is_named(operator: str, opset: int, says: str) -> None:
    """The error names both opsets and the remedy, and the operator where onnx 1.23.2 writes `Op '%s'`."""
    with pytest.raises(ModelError, match=says):
        load(square(f"[act] y = {operator} (x)", opset=opset, ir=3))


EQUATIONS = {
    "BHid,BHjd->BHij": "bhid,bhjd->bhij",
    "aA,Ab->ab": "ac,cb->ab",  # a and A are two labels
    "...A,AB->...B": "...a,ab->...b",
    "iJ,Jk": "iJ,Jk",  # runtimes sort the output of both cases differently
    "ij,jk->ik": "ij,jk->ik",
}


@pytest.mark.parametrize("equation", EQUATIONS)
def test_labels_are_lower_case(equation: str) -> None:
    """Upper-case labels of an Einsum become free lower-case ones, which TensorRT's parser needs."""
    shapes = [
        ",".join(str(2 + ord(label.lower()) % 3 + label.isupper()) for label in operand)
        for operand in equation.partition("->")[0].replace("...", "").split(",")
    ]
    proto = build(
        f"g (float[{shapes[0]}] x, float[{shapes[1]}] w) => (float y) "
        f'{{ r = Einsum <equation = "{equation}"> (x, w) y = ReduceSumSquare <keepdims = 0> (r) }}'
    )
    model = loaded(proto)
    assert model.proto.graph.node[0].attribute[0].s.decode() == EQUATIONS[equation]
    told = [note for note in model.notes if "lower-case labels" in note]
    assert len(told) == (EQUATIONS[equation] != equation)


def test_labels_at_the_edges() -> None:
    """27 labels have no 27 lower-case letters; labels of one case keep their order without an output."""
    equation = "abcdefghijklmnopqrstuvwxyzA->a"
    assert rename_labels(equation) == equation
    assert rename_labels("IJ,JK") == "ij,jk"


@pytest.mark.parametrize(
    ("sizes", "asked", "is_same"),
    [
        ("N,4,5", [-1, 4, 5], True),
        ("N,4,5", [0, -1, 5], True),
        ("2,4,5", [2, 4, 5], True),
        ("N,4,5", [-1, 5, 4], False),
        ("N,M,5", [-1, 4, 5], False),
        ("N,4,5", [-1, 20], False),
    ],
)
def test_reshapes_to_the_same_shape_are_left_out(sizes: str, asked: list[int], is_same: bool) -> None:
    """A Reshape whose input has the shape already goes, in a row too; one that may move numbers stays."""
    steps = "a = Relu (x) b = Reshape (a, s) c = Reshape (b, s) y = Neg (c)"
    text = f"g (float[{sizes}] x) => (y) {{ s = Constant <value_ints = {asked}> () {steps} }}"
    operators = [node.op_type for node in loaded(build(text)).proto.graph.node]
    assert operators.count("Reshape") == (0 if is_same else 1)


def test_a_reshape_that_gives_an_output_stays() -> None:
    """The name of an output is the user's, and a size of 0 is none to copy where the operator says so."""
    text = "g (float[2,4] x) => (float[2,4] y) { s = Constant <value_ints = [2, 4]> () y = Reshape (x, s) }"
    loaded(build(text))
    text = """g (float[0,4] x) => (float[0,4] y) {
        s = Constant <value_ints = [0, 4]> () a = Reshape <allowzero = 1> (x, s) y = Neg (a) }"""
    assert [node.op_type for node in load(build(text)).proto.graph.node] == ["Neg"]


def dims(value: onnx.ValueInfoProto) -> list[int | str]:
    """Return the shape of `value`."""
    return [d.dim_param or d.dim_value for d in value.type.tensor_type.shape.dim]


INNER = "g (float[N,4] x) => (float[N,4] y) <{} h> {{ h = Relu (x) y = MatMul (h, w) }}"
WRONG = {
    **{said: (INNER.format(said), 1) for said in ("float[N,7]", "float[N]", "float")},
    "outputs and bodies": (
        """g (float[N,4] x, bool c) => (float[N,5] y, float[N,4] z) { y = MatMul (x, w)
            z = If (c) <then_branch = a () => (float[N,4] t) <float[9] h> { h = Relu (x) t = MatMul (h, w) },
                        else_branch = b () => (float[N,4] e) { e = Relu (x) }> }""",
        2,
    ),
}


@pytest.mark.parametrize("name", WRONG)
def test_the_computed_shape_counts(name: str) -> None:
    """Shapes that a model declares wrongly are reported and corrected, and what is written loads."""
    text, count = WRONG[name]
    one = stage(build(text, {"w": weights(4, 4)}))
    assert any(f"{count} tensor(s) have another shape than the model says" in n for n in one.model.notes)
    graph = one.model.proto.graph
    right = graph.value_info if count == 1 else graph.output
    assert [dims(value) for value in right] == [["N", 4]] * count
    made = insert_qdq(one.model, one.plan, one.encodings)
    onnx.checker.check_model(made, full_check=True)
    Session(made)


def test_shapes_that_agree_stay() -> None:
    """Types behind an operator that ONNX does not know are the model's own, and nothing is said of them."""
    text = "g (float[N,4] x) => (float[N,4] y) <float[N,4] h> { h = own.Odd (x) y = MatMul (h, w) }"
    model = load(build(text, {"w": weights(4, 4)}, own=1))
    assert not any("shape" in note for note in model.notes)
    assert {v.name: dims(v) for v in model.proto.graph.value_info} == {"h": ["N", 4]}


NORMALISED = """r = ReduceL2 <axes = [1,2,3]> (v) q = Div (gain, r) w = Mul (v, q)
    [conv] y = Conv (x, w)"""

FOLDED: dict[str, tuple[str, Arrays]] = {
    "weight normalisation": (
        f"g (float[N,3,6,6] x) => (float[N,4,4,4] y) {{ {NORMALISED} }}",
        {"v": weights(4, 3, 3, 3), "gain": weights(4, 1, 1, 1, seed=1)},
    ),
    "keys of a table of positions": (
        """g (float[N,4] x) => (float[N,5] y) {
            k = MatMul (table, w) t = Transpose <perm = [1,0]> (k) [mm] y = MatMul (x, t) }""",
        {"table": weights(5, 4), "w": weights(4, 4, seed=1)},
    ),
    "a product that is added": (
        """g (float[N,3,6,6] x) => (float[N,4,4,4] y) {
            p = Conv (table, w) c = Conv (x, w) y = Add (c, p) }""",
        {"w": weights(4, 3, 3, 3), "table": weights(1, 3, 6, 6, seed=1)},
    ),
    "of a shape": (
        """g (float[3,2] x) => (float[3,3] y) { s = Shape (table) n = ConstantOfShape (s)
            w = Add (n, table) y = MatMul (x, w) }""",
        {"table": weights(2, 3)},
    ),
}


@pytest.mark.parametrize("name", FOLDED)
def test_folded(name: str) -> None:
    """The multiplied constant is evaluated, its makers are gone, and the result stays."""
    proto = build(*FOLDED[name])
    model = load(proto)
    onnx.checker.check_model(model.proto, full_check=True)
    assert any("evaluated" in note for note in model.notes)
    weighted = [n for n in model.proto.graph.node if n.op_type in ("Conv", "MatMul")]
    constants = {tensor.name for tensor in model.proto.graph.initializer}
    assert len(weighted) == 1 and weighted[0].input[1] in constants
    assert constants <= {name for node in model.proto.graph.node for name in node.input}, "none is left over"
    (placement,) = stage(proto).plan.weights
    assert placement.spec.granularity.axis is not None, "it is quantized per channel, as any weight"
    feed = feed_for(proto)
    (got,), (want,) = (Session(p, 1).run(feed) for p in (model.proto, proto))
    # ONNX's reference and ONNX Runtime add in another order.
    np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-6)


W = {"w": weights(4, 5)}
PLAIN = "g (float[N,4] x) => (float[N,5] y)"
KEPT: dict[str, tuple[str, Arrays]] = {
    "a transposed weight": (
        f"{PLAIN} {{ t = Transpose <perm = [1,0]> (w) y = MatMul (x, t) }}", {"w": weights(5, 4)},
    ),
    "an input has a part in it": (
        "g (float[N,4] x, float[4,5] z) => (float[N,5] y) { t = Mul (w, z) y = MatMul (x, t) }", W,
    ),
    "random numbers": (
        f"{PLAIN} {{ r = RandomNormalLike <seed = 1.0> (w) t = Mul (w, r) y = MatMul (x, t) }}", W,
    ),
    "an output": (
        "g (float[N,4] x) => (float[N,5] y, float[4,5] t) { t = Mul (w, w) y = MatMul (x, t) }", W,
    ),
    "it is not multiplied": (
        f"{PLAIN} {{ t = Mul (b, b) m = MatMul (x, w) y = Add (m, t) }}", W | {"b": weights(1, 5)},
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", KEPT)
def test_kept(name: str) -> None:
    """All else stays as it was."""
    proto = build(*KEPT[name])
    loaded = load(proto)
    assert [n.op_type for n in loaded.proto.graph.node] == [n.op_type for n in proto.graph.node]
    assert not any("evaluated" in note for note in loaded.notes)


def test_a_weight_that_has_other_readers() -> None:
    """Other readers of the parts of a weight still find them."""
    proto = build(
        """g (float[N,4] x) => (float[N,4] y, float[4,4] k) {
            d = Mul (w, w) t = Add (d, w) m = MatMul (x, t) y = Add (m, b) k = Relu (d) }""",
        {"w": weights(4, 4), "b": weights(4)},
    )
    loaded = load(proto).proto
    assert [n.op_type for n in loaded.graph.node] == ["Mul", "MatMul", "Add", "Relu"]
    assert_same_outputs(proto, loaded)


def test_constants_that_do_not_go_together() -> None:
    """A tensor that cannot be computed is refused, in one line."""
    proto = square("v = MatMul (a, b) y = MatMul (x, v)", {"a": weights(4, 5), "b": weights(4, 4)})
    with pytest.raises(OnnxfqError, match="5 and 4 are summed over together"):
        quantize(proto, [{"x": np.ones((2, 4), np.float32)}])
