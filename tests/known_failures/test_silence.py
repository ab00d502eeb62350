"""Steps that other quantizers leave out in silence."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from builders import Arrays, build, square, weights
from onnx import numpy_helper
from onnxruntime.quantization import quantize_dynamic
from ort_quantizer import MEASURED, by_ort

from onnxfq.choices import DEFAULT_RECIPE
from onnxfq.errors import DataError, RecipeError
from onnxfq.graph.model import list_nodes
from onnxfq.quantizing.pipeline import quantize
from onnxfq.targets.recipes import load_recipe

pytestmark = pytest.mark.filterwarnings("ignore")  # ONNX Runtime's quantizer is not under test

X = {"x": weights(8, 4)}
TRUE = {"cond": np.asarray(True)}


def quantizers(proto: onnx.ModelProto) -> int:
    """Return how many QuantizeLinear `proto` has, in bodies and functions too."""
    nodes = (node for owner in (proto.graph, *proto.functions) for node in list_nodes(owner))
    return sum(node.op_type == "QuantizeLinear" for node in nodes)


def function() -> onnx.ModelProto:
    """A MatMul in a function of the model's own."""
    proto = onnx.parser.parse_model(
        """<ir_version: 8, opset_import: ["" : 17, "mine" : 1]>
        g (float[N,4] x) => (float[N,4] y) { y = mine.dense (x, w) }
        <domain: "mine", opset_import: ["" : 17]>
        dense (a, b) => (c) { c = MatMul (a, b) }"""
    )
    proto.graph.initializer.append(numpy_helper.from_array(weights(4, 4), "w"))
    return proto


def loop() -> onnx.ModelProto:
    """A MatMul in a Loop."""
    return build(
        """g (float[N,4] x, int64 count, bool cond) => (float[N,4] y) {
            y = Loop (count, cond, x) <body = b (int64 i, bool k, float[N,4] s) => (bool go, float[N,4] out) {
                go = Identity (k) m = MatMul (s, w) out = Tanh (m) }> }""",
        {"w": weights(4, 4)},
    )


def branch() -> onnx.ModelProto:
    """All that multiplies is in one branch of an If, with open dimensions that have no names."""
    proto = build(
        """g (float[N,2,5,5] x, bool cond) => (float[N,2,5,5] y) {
            y = If (cond) <then_branch = a () => (float[N,2,5,5] t) { c = Conv (x, w) t = Relu (c) },
                           else_branch = b () => (float[N,2,5,5] e) { e = Relu (x) }> }""",
        {"w": weights(2, 2, 1, 1)},
    )
    for value in (*proto.graph.input, *proto.graph.output):
        if value.type.tensor_type.shape.dim:
            value.type.tensor_type.shape.dim[0].Clear()
    return proto


HIDDEN = {
    "function": (function, X),
    "Loop": (loop, X | TRUE | {"count": np.asarray(3)}),
    "If": (branch, {"x": weights(4, 2, 5, 5)} | TRUE),
    "Einsum": (lambda: square('y = Einsum <equation = "ij,jk->ik"> (x, w)'), X),
}


@pytest.mark.parametrize("name", HIDDEN)
def test_all_that_multiplies_is_found(name: str, tmp_path: Path) -> None:
    """ONNX Runtime 1.31.1 reports success with no quantizer for what is in a body, a function or an Einsum.

    https://github.com/microsoft/onnxruntime/issues/8488, https://github.com/microsoft/onnxruntime/issues/18681;
    ModelOpt 0.47.0 leaves functions out too, and ends in a TypeError for dimensions without names in an If.
    """
    make, feed = HIDDEN[name]
    result = quantize(make(), [feed], tmp_path / "q.onnx")
    assert all(row.quantized == row.total == 1 for row in result.plan.coverage())
    assert quantizers(result.qdq) == 1
    assert [v.name for v in result.qdq.graph.input] == [v.name for v in make().graph.input]
    if MEASURED:
        assert quantizers(by_ort(make(), [feed], tmp_path, extra_options={"EnableSubgraph": True})) == 0


BEHIND = {
    "Constant": "w = Constant <value = float[2,2] {1.0, 2.0, -3.0, 0.5}> ()",
    "Identity": "w = Identity (v)",
    "Cast": "w = Cast <to = 1> (v)",
    "Transpose": "w = Transpose (v)",
    "Mul": "w = Mul (v, v)",
}


@pytest.mark.parametrize("name", BEHIND)
def test_a_weight_is_a_weight_wherever_it_stands(name: str, tmp_path: Path) -> None:
    """ONNX Runtime 1.31.1 takes what a node gives for an activation: stored in float, one scale, per run.

    https://github.com/microsoft/onnxruntime/issues/13358 is its words for a weight behind a Cast.
    """
    constants: Arrays = {} if name == "Constant" else {"v": weights(2, 2)}
    proto = build(f"g (float[N,2] x) => (float[N,2] y) {{ {BEHIND[name]} y = MatMul (x, w) }}", constants)
    feed = {"x": weights(8, 2)}
    result = quantize(proto, [feed], tmp_path / "q.onnx")
    (weight,) = result.plan.weights
    assert result.encodings[weight.tensor].param_shape == (2,)
    assert quantizers(result.qdq) == 1 and result.plan.activations[0].tensor == "x"
    if MEASURED:
        theirs = by_ort(proto, [feed], tmp_path, per_channel=True)
        assert quantizers(theirs) == 3 and not any(t.name == "w_quantized" for t in theirs.graph.initializer)


NOTHING = {
    "misspelled node": ("{nodes: [aa], keep_float: true}", r"'aa', which the model lacks; nearest: a"),
    "misspelled operator": ("{op_types: [Matmul], keep_float: true}", r"Matmul.*MatMul"),
    "misspelled option": ("{nodes: [a], keep_flaot: true}", r"keep_flaot"),
}


@pytest.mark.parametrize("name", NOTHING)
def test_a_name_that_nothing_has(name: str, tmp_path: Path) -> None:
    """ONNX Runtime and ModelOpt take a misspelled exclusion, and quantize what was to stay in float.

    Measured with 1.31.1 and 0.47.0; so does ONNX Runtime with op_types_to_quantize and extra_options.
    """
    override, says = NOTHING[name]
    proto = square("[a] y = MatMul (x, w)")
    recipe = tmp_path / "r.yaml"
    recipe.write_text(f"base: {DEFAULT_RECIPE}\nname: r\noverrides: [{override}]\n")
    with pytest.raises(RecipeError, match=says):
        quantize(proto, [X], recipe=load_recipe(recipe))
    if MEASURED:
        wrong = {"nodes_to_exclude": ["aa"], "extra_options": {"ActivationSymetric": True}}
        assert quantizers(by_ort(proto, [X], tmp_path, **wrong)) == 2
        assert quantizers(by_ort(proto, [X], tmp_path, op_types_to_quantize=["Matmul"])) == 0


def test_a_transposed_weight_has_its_channels(tmp_path: Path) -> None:
    """ONNX Runtime 1.31.1 leaves a Linear of torch, a MatMul of a transposed weight, in float if dynamic."""
    proto = build(
        "g (float[N,4] x) => (float[N,3] y) { t = Transpose <perm = [1,0]> (w) y = MatMul (x, t) }",
        {"w": weights(3, 4)},
    )
    result = quantize(proto, [X], tmp_path / "q.onnx", recipe="onnxruntime-uint8-dynamic")
    assert [str(row) for row in result.plan.coverage()] == ["MatMul 1/1"]
    if MEASURED:
        onnx.save(proto, tmp_path / "float.onnx")
        quantize_dynamic(tmp_path / "float.onnx", tmp_path / "dynamic.onnx")
        assert [n.op_type for n in onnx.load(tmp_path / "dynamic.onnx").graph.node] == ["Transpose", "MatMul"]


def test_what_a_message_tells_to_do_can_be_done(tmp_path: Path) -> None:
    """ModelOpt 0.47.0 refuses pickled data and names an option that its parser excludes with that data."""
    np.savez(tmp_path / "data.npz", x=np.asarray([weights(4, 4)] * 3 + [None], object))
    proto = square("y = MatMul (x, w)")
    with pytest.raises(DataError, match="data.npz .*numpy.savez"):
        quantize(proto, tmp_path / "data.npz")
    np.savez(tmp_path / "data.npz", **X)
    quantize(proto, tmp_path / "data.npz")
