"""Inserting Q/DQ, FakeQuantize and observers: golden graphs, opset forms, names, switch, refusals."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
import pytest
from builders import BUILDERS, Staged, build, constants, conv_relu, graph_text, stage, weights, with_weights
from keyword_numerics import fake_quantize, quantize

from onnxfq.calibration.statistics import TensorStatistics
from onnxfq.errors import PlanError
from onnxfq.graph.io.load import load
from onnxfq.graph.model import Model, default_opset
from onnxfq.graph.signature import with_outputs
from onnxfq.passes.insert_fake_quantize import ENABLED_INPUT, with_fake_quantize
from onnxfq.passes.insert_qdq import with_qdq
from onnxfq.passes.observe.insert_observers import OBSERVE_OUTPUTS, observe_output, with_observers
from onnxfq.runtime.session import Session
from onnxfq.stages.insert import insert_qdq

Insert = Callable[..., Model]


def inserted(staged: Staged, insert: Insert = with_qdq, *switches: str) -> onnx.ModelProto:
    """Insert Q/DQ or FakeQuantize and see that the model is valid."""
    written = insert(staged.model, staged.plan, staged.encodings, *switches)
    assert written is not staged.model
    onnx.checker.check_model(written.proto, full_check=True)
    return written.proto


GOLDEN = {
    ("conv_relu", with_qdq): [
        "[x/q] x/q = QuantizeLinear (x, x/scale, x/zero_point)",
        "[x/dq] x/dq = DequantizeLinear (x/q, x/scale, x/zero_point)",
        "[w/dq] w/dq = DequantizeLinear <axis=0> (w/q, w/scale, w/zero_point)",
        "[conv] c = Conv <pads=[1, 1, 1, 1]> (x/dq, w/dq, b)",
        "[relu] y = Relu (c)",
    ],
    ("shared_weight", with_qdq): [
        "[x/q] x/q = QuantizeLinear (x, x/scale, x/zero_point)",
        "[x/dq] x/dq = DequantizeLinear (x/q, x/scale, x/zero_point)",
        "[w/dq] w/dq = DequantizeLinear <axis=1> (w/q, w/scale, w/zero_point)",
        "[first] h = MatMul (x/dq, w/dq)",
        "[relu] r = Relu (h)",
        "[r/q] r/q = QuantizeLinear (r, r/scale, r/zero_point)",
        "[r/dq] r/dq = DequantizeLinear (r/q, r/scale, r/zero_point)",
        "[second] y = MatMul (r/dq, w/dq)",
    ],
    ("tied_embedding", with_qdq): [
        "[look] e = Gather <axis=0> (table, ids)",
        "[relu] h = Relu (e)",
        "[h/q] h/q = QuantizeLinear (h, h/scale, h/zero_point)",
        "[h/dq] h/dq = DequantizeLinear (h/q, h/scale, h/zero_point)",
        "[table/dq] table/dq = DequantizeLinear <axis=0> (table/q, table/scale, table/zero_point)",
        "[turn] t = Transpose <perm=[1, 0]> (table/dq)",
        "[mm] y = MatMul (h/dq, t)",
    ],
    ("conv_relu", with_fake_quantize): [
        "[x/fq] x/fq = FakeQuantize <qtype=b'int8'> (x, x/scale, x/zero_point)",
        "[conv] c = Conv <pads=[1, 1, 1, 1]> (x/fq, w/fq, b)",
        "[relu] y = Relu (c)",
    ],
    ("shared_weight", with_fake_quantize, "one"): [
        "[x/fq] x/fq = FakeQuantize <qtype=b'int8'> (x, x/scale, x/zero_point, onnxfq/enabled)",
        "[w/fq] w/fq = FakeQuantize <qtype=b'int8' axis=1> (w, w/scale, w/zero_point, onnxfq/enabled)",
        "[first] h = MatMul (x/fq, w/fq)",
        "[relu] r = Relu (h)",
        "[r/fq] r/fq = FakeQuantize <qtype=b'int8'> (r, r/scale, r/zero_point, onnxfq/enabled)",
        "[second] y = MatMul (r/fq, w/fq)",
    ],
}


@pytest.mark.parametrize("case", GOLDEN, ids=lambda case: f"{case[0]}-{case[1].__name__}")
def test_golden_graphs(case: tuple[Any, ...]) -> None:
    """The nodes, their names, their order and their wiring are exactly these."""
    name, *how = case
    assert graph_text(inserted(stage(BUILDERS[name]()), *how)) == GOLDEN[case]


def test_golden_observers() -> None:
    """Each activation is observed; what only the model's own outputs needed is gone."""
    staged = stage(BUILDERS["shared_weight"]())
    observed = with_observers(staged.model, staged.plan).proto
    onnx.checker.check_model(observed, full_check=True)
    seen = {tensor: [observe_output(tensor, name) for name in OBSERVE_OUTPUTS] for tensor in "xr"}
    assert graph_text(observed) == [
        f"[x/observe] {', '.join(seen['x'])} = Observe (x)",
        "[first] h = MatMul (x, w)",
        "[relu] r = Relu (h)",
        f"[r/observe] {', '.join(seen['r'])} = Observe (r)",
    ]
    assert [v.name for v in observed.graph.output] == [*seen["x"], *seen["r"]]


@pytest.mark.parametrize("name", BUILDERS)
def test_statistics_are_those_of_the_tensor(name: str) -> None:
    """The statistics of the observed model equal NumPy's statistics of the tensor of the float model."""
    staged = stage(BUILDERS[name]())
    tensors = [p.tensor for p in staged.plan.activations]
    # No optimisation on either side would change which kernels run; both sessions are as onnxfq makes them.
    values = Session(with_outputs(staged.model.proto, tensors), 1).run(staged.feed, tensors)
    for tensor, array in zip(tensors, values, strict=True):
        want, got = TensorStatistics.from_array(array), staged.statistics[tensor]
        for part in ("rmin", "rmax", "elements", "zeros", "bins", "counts"):
            np.testing.assert_array_equal(getattr(got, part), getattr(want, part), part)


@pytest.mark.parametrize("recipe", ["tensorrt-int8", "onnxruntime-int8"])
@pytest.mark.parametrize("name", BUILDERS)
def test_every_model_stays_valid(name: str, recipe: str) -> None:
    """Names stay unique, inputs and outputs keep name and type, and two runs give equal bytes."""
    staged, again = (stage(BUILDERS[name](), recipe) for _ in range(2))
    before = staged.model.proto.SerializeToString(deterministic=True)
    proto = inserted(staged)
    assert staged.model.proto.SerializeToString(deterministic=True) == before
    written = [one.SerializeToString(deterministic=True) for one in (proto, inserted(again))]
    assert written[0] == written[1]
    assert list(proto.graph.input) == list(staged.model.proto.graph.input)
    assert list(proto.graph.output) == list(staged.model.proto.graph.output)
    nodes = [node.name for node in proto.graph.node]
    assert len(set(nodes)) == len(nodes) and all(nodes)
    made = [name for node in proto.graph.node for name in node.output] + list(constants(proto))
    assert len(set(made)) == len(made)
    Session(proto, 1).run(staged.feed)


def test_weights_are_stored_as_integers() -> None:
    """A weight is quantized now, by the arithmetic of `numerics`; its float form is gone, the bias stays."""
    staged = stage(conv_relu())
    stored, encoding = constants(inserted(staged)), staged.encodings["w"]
    want = quantize(weights(4, 3, 3, 3), encoding.scale, encoding.zero_point, qtype="int8", axis=0)
    np.testing.assert_array_equal(stored["w/q"], want)
    assert stored["w/q"].dtype == np.int8
    assert "w" not in stored and "b" in stored


def test_simulated_weights_are_rounded() -> None:
    """Weights are constants that are rounded already, unless there is a switch, which is true as a rule."""
    staged = stage(conv_relu())
    proto = inserted(staged, with_fake_quantize)
    want = fake_quantize(weights(4, 3, 3, 3), staged.encodings["w"].scale, qtype="int8", axis=0)
    np.testing.assert_array_equal(constants(proto)["w/fq"], want)
    assert "w" not in constants(proto)
    assert {o.domain: o.version for o in proto.opset_import} == {"": 17, "onnxfq": 1}
    proto = inserted(staged, with_fake_quantize, "one")
    assert [value.name for value in proto.graph.input] == ["x", ENABLED_INPUT]
    assert constants(proto)[ENABLED_INPUT].item() is True


@pytest.mark.parametrize("opset", [13, 17, 20, 21, 23])
def test_form_of_the_type(opset: int) -> None:
    """Up to opset 20 an int8 zero point tells the type, from 21 on output_dtype; never both or neither."""
    proto = inserted(stage(conv_relu(opset)))
    assert default_opset(proto) == opset
    for node in proto.graph.node:
        typed = any(a.name == "output_dtype" and a.i == onnx.TensorProto.INT8 for a in node.attribute)
        if node.op_type == "QuantizeLinear":
            assert (len(node.input) == 3, typed) == ((True, False) if opset <= 20 else (False, True))
        if node.op_type == "DequantizeLinear":
            assert len(node.input) == (3 if opset <= 20 else 2) and not typed
    zeros = [value for name, value in constants(proto).items() if name.endswith("/zero_point")]
    assert all(value.dtype == np.int8 and not value.any() for value in zeros)


@pytest.mark.parametrize("opset", [17, 21])
def test_zero_points_that_are_not_zero_are_written(opset: int) -> None:
    """An asymmetric activation has its zero point and no output_dtype at any opset."""
    staged = stage(conv_relu(opset), "onnxruntime-int8")
    proto = inserted(staged)
    (node,) = [n for n in proto.graph.node if n.name == "x/q"]
    assert len(node.input) == 3 and not node.attribute
    assert constants(proto)["x/zero_point"].dtype == np.uint8
    assert constants(proto)["x/zero_point"] == staged.encodings["x"].zero_point != 0


BLOCKED = {
    "int4": {"qtype": "int4"},
    "int8 in blocks": {"granularity": "blocked", "block_size": 2},
    "int4 in blocks": {"qtype": "int4", "granularity": "blocked", "block_size": 3},
    "int16": {"qtype": "int16"},
}


@pytest.mark.parametrize("case", BLOCKED)
def test_new_formats_raise_the_opset(case: str) -> None:
    """4 and 16 bits and blocks need opset 21; every node still has a unique name."""
    text = """g (float[N,4] x) => (float[N,1] y) {
        [mm] h = MatMul (x, w) [mean] y = ReduceMean <axes = [1]> (h) }"""
    recipe = with_weights("onnxruntime-int8", **BLOCKED[case])
    staged = stage(build(text, {"w": weights(4, 3)}, opset=13), recipe)
    proto = inserted(staged)
    assert default_opset(proto) == 21 and proto.ir_version == 10
    assert [node.name for node in proto.graph.node] == ["x/q", "x/dq", "w/dq", "mm", "mean"]
    Session(proto, 1).run(staged.feed)


def test_outputs_keep_their_float_values() -> None:
    """A tensor that is read quantized and is an output too is not rounded at the output."""
    staged = stage(BUILDERS["inner_output"]())
    proto = inserted(staged)
    h = Session(proto, 1, exact=True).run(staged.feed)[0]
    np.testing.assert_array_equal(h, np.maximum(staged.feed["x"], 0))


def test_names_that_are_taken() -> None:
    """Tensors, nodes and names inside bodies called like ours make ours `_2`."""
    proto = build(
        """g (float[N,4] x, bool c) => (float[N,4] y, float[N,4] z) {
            ["x/dq"] "x/q" = Relu (x)
            [mm] h = MatMul (x, w)
            ["w/dq"] y = Add (h, "x/q")
            z = If (c) <then_branch = a () => (float[N,4] t) { "w/scale" = Relu (h) t = Relu ("w/scale") },
                        else_branch = b () => (float[N,4] e) { e = Relu (h) }> }""",
        {"w": weights(4, 4)},
    )
    staged = stage(proto)
    made = inserted(staged)
    nodes = graph_text(made)
    assert "[x/q] x/q_2 = QuantizeLinear (x, x/scale, x/zero_point)" in nodes
    assert "[x/dq_2] x/dq = DequantizeLinear (x/q_2, x/scale, x/zero_point)" in nodes
    assert "[w/dq_2] w/dq = DequantizeLinear <axis=1> (w/q, w/scale_2, w/zero_point)" in nodes
    Session(made, 1).run(staged.feed)


@pytest.mark.parametrize("insert", [with_qdq, with_fake_quantize])
def test_second_application_is_refused(insert) -> None:
    """A pass does not quantize what it has quantized: the plan's uses read something else by then."""
    staged = stage(BUILDERS["two_branch"]())
    quantized = insert(staged.model, staged.plan, staged.encodings)
    with pytest.raises(PlanError, match=r"the plan says input \d of node 'conv1' is 'h', it reads 'h/.*'"):
        insert(quantized, staged.plan, staged.encodings)


def test_empty_plans_change_nothing() -> None:
    """A plan without placements gives the model itself back."""
    staged = stage(conv_relu())
    empty = staged.plan.model_copy(update={"placements": ()})
    assert with_qdq(staged.model, empty, staged.encodings) is staged.model
    assert with_fake_quantize(staged.model, empty, staged.encodings) is staged.model
    assert with_observers(staged.model, empty) is staged.model
    insert_qdq(staged.model, empty, staged.encodings)
    assert not staged.model.proto.metadata_props


EDITS = {
    "tensor": ({"tensor": "xx"}, r"no encoding for tensor 'xx'"),
    "node": ({"uses": [["cnv", 0]]}, r"names node 'cnv', which the model lacks; nearest: conv"),
    "slot": ({"uses": [["conv", 1]]}, r"says input 1 of node 'conv' is 'x', it reads 'w'"),
    "slot too high": ({"uses": [["conv", 9]]}, r"says input 9 of node 'conv' is 'x', it reads nothing"),
    "slot below 0": ({"uses": [["conv", -1]]}, r"says input -1 of node 'conv' is 'x', it reads nothing"),
    "no use": ({"uses": []}, r"places tensor 'x' for no use"),
    "spec": ({"spec": {"qtype": "int16"}}, r"is planned as int16 .* and encoded as int8"),
}


@pytest.mark.parametrize("edit", EDITS)
def test_edited_plans_are_checked(edit: str) -> None:
    """A plan that a person broke is refused with the place and the nearest names."""
    staged = stage(conv_relu())
    change, message = EDITS[edit]
    content = staged.plan.model_dump(mode="json")
    content["placements"][0] |= change
    plan = type(staged.plan).model_validate(content)
    with pytest.raises(PlanError, match=message):
        with_qdq(staged.model, plan, staged.encodings)


def test_plan_and_encodings_of_another_model() -> None:
    """A plan, or encodings, of another model are refused, also when all names fit."""
    staged, other = stage(conv_relu()), load(conv_relu(18))
    with pytest.raises(PlanError, match="the plan was made for a model with SHA-256"):
        with_qdq(other, staged.plan, staged.encodings)
    plan = staged.plan.model_copy(update={"model_sha256": other.sha256})
    with pytest.raises(PlanError, match="the encodings were made for another model"):
        with_qdq(other, plan, staged.encodings)


def test_switch_of_the_smallest_ir_version() -> None:
    """IR version 3 wants initializers among the inputs: the model gets version 4, and its switch works."""
    text = "g (float[N,4] x) => (float[N,N] y) { t = Transpose (x) y = MatMul (x, t) }"
    proto = build(text, opset=13, ir=3)
    staged = stage(proto)
    made = inserted(staged, with_fake_quantize, "one")
    assert proto.ir_version == 3 and made.ir_version == 4
    assert [value.name for value in made.graph.input] == ["x", ENABLED_INPUT]
    (off,) = Session(made, 1, exact=True).run(staged.feed | {ENABLED_INPUT: np.asarray(False)})
    (want,) = Session(staged.model.proto, 1, exact=True).run(staged.feed)
    np.testing.assert_array_equal(off, want)


def test_taken_name_of_the_switch() -> None:
    """A tensor that is called like the switch makes the switch another name, not a wrong model."""
    text = 'g (float[N,4] x) => (float[N,4] y) { "NAME" = Relu (x) y = MatMul ("NAME", w) }'
    proto = build(text.replace("NAME", ENABLED_INPUT), {"w": weights(4, 4)})
    made = inserted(stage(proto), with_fake_quantize, "one")
    assert [value.name for value in made.graph.input] == ["x", f"{ENABLED_INPUT}_2"]
