"""Models that ONNX Runtime runs and ONNX's checker refuses are taken, with the same results."""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from pathlib import Path

import numpy as np
import onnx
import pytest
from builders import assert_same_outputs, build, choice, feed_for, square, weights
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
    for holder in (proto.opset_import[0], *proto.graph.node):
        holder.domain = "ai.onnx"


def backwards(proto: onnx.ModelProto) -> None:
    """Turn the order of the nodes round, in bodies too, and take the names off those."""
    for attribute in proto.graph.node[-1].attribute:
        attribute.g.node.reverse()
        attribute.g.ClearField("name")
    proto.graph.node.reverse()


Spoil = Callable[[onnx.ModelProto], object]
SPOILED: dict[str, Spoil] = {
    "spelled": spelled,
    "imported twice": lambda proto: proto.opset_import.append(helper.make_opsetid("ai.onnx", 17)),
    "backwards": lambda proto: proto.graph.node.reverse(),
    "bodies, which ONNX Runtime refuses": backwards,
    "without rank": lambda proto: proto.graph.output[0].type.tensor_type.ClearField("shape"),
    "without type": lambda proto: proto.graph.output[0].ClearField("type"),
    "nameless": lambda proto: proto.graph.ClearField("name"),
}


def proto() -> onnx.ModelProto:
    """Two MatMuls and a Relu in front of an If, which has two more nodes in a branch."""
    before = "h = MatMul (x, w) r = Relu (h) k = MatMul (r, w)"
    return choice("s = Add (k, h) u = Tanh (s)", "v = Neg (k)", before)


def test_a_domain_that_no_import_names() -> None:
    """NNCF's files have MatMulNBits without an import of its domain, and ONNX Runtime runs them."""
    made = build(
        """g (float[N,16] x) => (float[N,4] y) {
            y = com.microsoft.MatMulNBits <K = 16, N = 4, bits = 4, block_size = 16> (x, w, s) }""",
        {"w": np.arange(32, dtype=np.uint8).reshape(4, 1, 8), "s": np.ones(4, np.float32)},
        **{"com.microsoft": 1},
    )
    bare = deepcopy(made)
    del bare.opset_import[1]
    assert_same_outputs(made, load(bare).proto)


@pytest.mark.parametrize("name", SPOILED)
def test_taken(name: str) -> None:
    """It loads as the sound model does, valid, and with the bits of the spoiled one in ONNX Runtime."""
    spoiled = proto()
    SPOILED[name](spoiled)
    made = load(spoiled).proto
    onnx.checker.check_model(made, full_check=True)
    assert_same_outputs(proto() if SPOILED[name] is backwards else spoiled, made)
    assert [n.op_type for n in made.graph.node] == ["MatMul", "Relu", "MatMul", "If"]


REFUSED: dict[str, tuple[str, Spoil | None, str]] = {
    "an input of unknown rank": (
        "y = Relu (x)",
        lambda proto: proto.graph.input[0].type.tensor_type.ClearField("shape"),
        "input 'x' has no rank, .*export the model with its shape",
    ),
    "an output of a custom operator": (
        "h = MatMul (x, w) y = own.Odd (h)", SPOILED["without rank"], "output 'y' has no rank",
    ),
    "two opsets of one domain": (
        "y = Relu (x)",
        lambda proto: proto.opset_import.append(helper.make_opsetid("ai.onnx", 13)),
        "imports ai.onnx at opsets 13 and 17",
    ),
    "a cycle, which the checker refuses": (
        "a = Add (x, b) b = Relu (a) y = Relu (b)", None, "not a valid ONNX model",
    ),
    "a function without inputs, as the checker lets pass": (
        "y = MatMul (x, w)",
        lambda proto: proto.functions.add(name="MatMul", domain=""),
        r"calls local function 'MatMul' with 2 input\(s\), and it has 0",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_refused(name: str) -> None:
    """One line names what is missing or wrong."""
    text, spoil, says = REFUSED[name]
    spoiled = square(text, own=1)
    if spoil:
        spoil(spoiled)
    with pytest.raises(ModelError, match=says):
        load(spoiled)


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
    *(("SimplifiedLayerNormalization", opset) for opset in (11, 17, 21)),
    *(("LayerNormalization", opset) for opset in (11, 16)),
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
    sizes = "a,b" if "Gemm" in text else "a,b,c,d"
    made = build(f"g (float[N,3,8,8] x) => (float[{sizes}] y) {{ {text} }}", {"w": weights(*shape)})
    recipe = load_recipe(DEFAULT_RECIPE).override(weights={"rounding": rounding})
    with pytest.raises(ModelError, match=f"of shape .*: {message}.*export it again"):
        quantize(made, [feed_for(made)], recipe=recipe)
    with pytest.raises(OnnxfqError):
        Session(made, 1).run(feed_for(made))
