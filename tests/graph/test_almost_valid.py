"""Models that ONNX Runtime runs and ONNX's checker refuses are taken, with the same results."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
from builders import build, feed_for, weights
from onnx import helper

from onnxfq.choices import DEFAULT_RECIPE
from onnxfq.errors import ModelError, OnnxfqError
from onnxfq.graph.checker import RUNTIME_OPS
from onnxfq.graph.io.load import load
from onnxfq.graph.io.save import save
from onnxfq.graph.model import list_nodes
from onnxfq.quantizing.pipeline import quantize
from onnxfq.runtime.session import Session
from onnxfq.targets.recipes import load_recipe


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


def test_a_domain_that_no_import_names() -> None:
    """NNCF's files have MatMulNBits without an import of its domain, and ONNX Runtime runs them."""
    made = build(
        """g (float[N,16] x) => (float[N,4] y) {
            y = com.microsoft.MatMulNBits <K = 16, N = 4, bits = 4, block_size = 16> (x, w, s) }""",
        {"w": np.arange(32, dtype=np.uint8).reshape(4, 1, 8), "s": np.ones(4, np.float32)},
        **{"com.microsoft": 1},
    )
    want = Session(made, 1, exact=True).run(feed_for(made))
    del made.opset_import[1]
    np.testing.assert_array_equal(Session(load(made).proto, 1, exact=True).run(feed_for(made))[0], want[0])


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
    """A type that nothing can infer is named."""
    made = build(
        "g (float[N,4] x) => (float[N,4] y) { h = MatMul (x, w) y = own.Odd (h) }",
        {"w": weights(4, 4)},
        own=1,
    )
    without_rank(made)
    with pytest.raises(ModelError, match="output 'y' has no rank"):
        load(made)


def test_two_opsets() -> None:
    """Two versions of one domain are ambiguous."""
    spoiled = proto()
    spoiled.opset_import.append(helper.make_opsetid("ai.onnx", 13))
    with pytest.raises(ModelError, match="imports ai.onnx at opsets 13 and 17"):
        load(spoiled)


def test_a_cycle_is_none() -> None:
    """Nodes that wait for each other are left to the checker, which refuses them."""
    made = build("g (float[N,4] x) => (float[N,4] y) { a = Add (x, b) b = Relu (a) y = Relu (b) }")
    with pytest.raises(ModelError, match="not a valid ONNX model"):
        load(made)


def registered() -> set[str]:
    """Operators that ONNX Runtime registers in ONNX's domain at an opset at which ONNX has none."""
    from onnxruntime.capi.onnxruntime_pybind11_state import get_all_operator_schema

    first: dict[str, int] = {}
    for schema in onnx.defs.get_all_schemas_with_history():
        if schema.domain == "":
            first[schema.name] = min(schema.since_version, first.get(schema.name, 1000))
    schemas = [schema for schema in get_all_operator_schema() if schema.domain == ""]
    old = {schema.name for schema in schemas if schema.deprecated or schema.name.startswith("Memcpy")}
    return {s.name for s in schemas if s.since_version < first.get(s.name, 1000)} - old


def test_the_operators_that_only_onnxruntime_has_are_those_it_registers() -> None:
    """Operators that it dropped at opset 10 do not count, nor its own copies between devices."""
    gone = {"GivenTensorFill"}  # registered without a kernel
    assert registered() - gone <= RUNTIME_OPS
    assert registered() >= RUNTIME_OPS


NORMALIZATIONS = [
    ("SimplifiedLayerNormalization", 11),
    ("SimplifiedLayerNormalization", 17),
    ("SimplifiedLayerNormalization", 21),
    ("LayerNormalization", 11),
    ("LayerNormalization", 16),
    ("ThresholdedRelu", 9),
]


@pytest.mark.parametrize("op, opset", NORMALIZATIONS)
def test_operators_that_only_onnxruntime_has_are_kept(op: str, opset: int, tmp_path: Path) -> None:
    """They are read, raised to another opset, written and read back, and stay in ONNX's domain."""
    gain = ", gain" if "Norm" in op else ""
    given = build(
        f"""g (float[N,8] x, bool cond) => (float[N,4] y) {{
            h = MatMul (x, w) n = {op} (h{gain})
            y = If (cond) <then_branch = a () => (float[N,4] t) {{ s = {op} (n{gain}) t = MatMul (s, v) }},
                           else_branch = b () => (float[N,4] e) {{ e = MatMul (n, v) }}> }}""",
        {"w": weights(8, 16), "v": weights(16, 4), "gain": np.ones(16, np.float32)},
        opset=opset,
    )
    feed = feed_for(given) | {"cond": np.array(True)}
    model = load(given)
    save(model.proto, tmp_path / "m.onnx")
    read = load(tmp_path / "m.onnx")
    quantize(given, [feed], tmp_path / "q.onnx", recipe="onnxruntime-int8")
    written = onnx.load(tmp_path / "q.onnx")
    for proto in (read.proto, written):
        found = [node for node in list_nodes(proto.graph) if node.op_type == op]
        assert [node.domain for node in found] == ["", ""]
        assert {entry.domain for entry in proto.opset_import} == {""}
    wanted = Session(model.proto, 1).run(feed)[0]
    np.testing.assert_array_equal(Session(read.proto, 1).run(feed)[0], wanted)
    # 8 bits: an error of a few hundredths of the largest value.
    assert np.abs(Session(written, 1).run(feed)[0] - wanted).max() < 0.1 * np.abs(wanted).max()


MISFITS = [
    ("y = Conv <group = 3> (x, w)", (4, 1, 3, 3), "3 groups do not divide 4 channels"),
    ("y = Conv <group = 0> (x, w)", (4, 1, 3, 3), "0 groups do not divide"),
    ("y = Conv (x, w)", (4, 2, 3, 3), r"1 group\(s\) want 2 channels"),
    ("y = Conv <group = 2> (x, w)", (4, 3, 3, 3), r"2 group\(s\) want 6 channels"),
    ("y = Conv (x, w)", (4, 3, 3), "their ranks are 4 and 3"),
    ("y = ConvTranspose (x, w)", (4, 2, 3, 3), r"1 group\(s\) want 4 channels"),
    ("y = MatMul (x, w)", (4, 3), "8 and 4 are summed over together"),
    ("f = Flatten (x) y = Gemm (f, w)", (4, 3), "192 and 4 are summed"),
    ("f = Flatten (x) y = Gemm <transB = 1> (f, w)", (192, 4), "192 and 4 are summed"),
]


@pytest.mark.parametrize("rounding", ["auto", "qronos"])
@pytest.mark.parametrize(("text", "shape", "message"), MISFITS)
def test_operands_that_do_not_fit(text: str, shape: tuple[int, ...], message: str, rounding: str) -> None:
    """Shapes that cannot be multiplied are one line with both, and ONNX Runtime refuses the model too."""
    rank = 2 if "Gemm" in text else 4
    made = build(
        f"g (float[N,3,8,8] x) => (float[{','.join('abcd'[:rank])}] y) {{ {text} }}", {"w": weights(*shape)}
    )
    with pytest.raises(ModelError, match=f"of shape .*: {message}.*export it again"):
        quantize(
            made,
            [feed_for(made)],
            recipe=load_recipe(DEFAULT_RECIPE).override(weights={"rounding": rounding}),
        )
    with pytest.raises(OnnxfqError):
        Session(made, 1).run(feed_for(made))


def test_a_call_with_more_inputs_than_its_function() -> None:
    """A local function called Conv that takes no inputs, as ONNX's checker lets pass."""
    made = build("g (float[N,3,8,8] x) => (float[N,4,6,6] y) { y = Conv (x, w) }", {"w": weights(4, 3, 3, 3)})
    made.functions.add(name="Conv", domain="")
    with pytest.raises(ModelError, match=r"calls local function 'Conv' with 2 input\(s\), and it has 0"):
        load(made)
