"""Inserting FakeQuantize: golden graphs, rounded weights, and the switch."""

from __future__ import annotations

import numpy as np
import onnx
from builders import Staged, build, constants, conv_relu, graph_text, shared_weight, stage, weights
from keyword_numerics import fake_quantize

from onnxfq.passes.insert_fake_quantize import ENABLED_INPUT, with_fake_quantize
from onnxfq.runtime.session import Session


def inserted(staged: Staged, switchable: bool = False) -> onnx.ModelProto:
    """Insert FakeQuantize nodes and see that the model is valid."""
    simulation = with_fake_quantize(
        staged.model, staged.plan, staged.encodings, "one" if switchable else "none"
    )
    assert simulation is not staged.model
    onnx.checker.check_model(simulation.proto, full_check=True)
    return simulation.proto


def test_golden_graph() -> None:
    """Activations get a node, weights are constants that are rounded already."""
    staged = stage(conv_relu())
    proto = inserted(staged)
    assert graph_text(proto) == [
        "[x/fq] x/fq = FakeQuantize <qtype=b'int8'> (x, x/scale, x/zero_point)",
        "[conv] c = Conv <pads=[1, 1, 1, 1]> (x/fq, w/fq, b)",
        "[relu] y = Relu (c)",
    ]
    encoding = staged.encodings["w"]
    want = fake_quantize(weights(4, 3, 3, 3), encoding.scale, qtype="int8", axis=0)
    np.testing.assert_array_equal(constants(proto)["w/fq"], want)
    assert "w" not in constants(proto)
    assert {o.domain: o.version for o in proto.opset_import} == {"": 17, "onnxfq": 1}


def test_golden_switchable_graph() -> None:
    """With the switch weights keep a node too, and all nodes read one optional input that is true."""
    proto = inserted(stage(shared_weight()), switchable=True)
    assert graph_text(proto) == [
        "[x/fq] x/fq = FakeQuantize <qtype=b'int8'> (x, x/scale, x/zero_point, onnxfq/enabled)",
        "[w/fq] w/fq = FakeQuantize <qtype=b'int8' axis=1> (w, w/scale, w/zero_point, onnxfq/enabled)",
        "[first] h = MatMul (x/fq, w/fq)",
        "[relu] r = Relu (h)",
        "[r/fq] r/fq = FakeQuantize <qtype=b'int8'> (r, r/scale, r/zero_point, onnxfq/enabled)",
        "[second] y = MatMul (r/fq, w/fq)",
    ]
    assert [value.name for value in proto.graph.input] == ["x", ENABLED_INPUT]
    assert constants(proto)[ENABLED_INPUT].item() is True


def test_switch_of_the_smallest_ir_version() -> None:
    """IR version 3 wants initializers among the inputs: the model gets version 4, and its switch works."""
    proto = build(
        "g (float[N,4] x) => (float[N,N] y) { t = Transpose (x) y = MatMul (x, t) }", opset=13, ir=3
    )
    staged = stage(proto)
    made = inserted(staged, switchable=True)
    assert proto.ir_version == 3 and made.ir_version == 4
    assert [value.name for value in made.graph.input] == ["x", ENABLED_INPUT]
    (off,) = Session(made, 1, exact=True).run(staged.feed | {ENABLED_INPUT: np.asarray(False)})
    (want,) = Session(staged.model.proto, 1, exact=True).run(staged.feed)
    np.testing.assert_array_equal(off, want)


def test_taken_name_of_the_switch() -> None:
    """A tensor that is called like the switch makes the switch another name, not a wrong model."""
    text = 'g (float[N,4] x) => (float[N,4] y) { "NAME" = Relu (x) y = MatMul ("NAME", w) }'
    proto = build(text.replace("NAME", ENABLED_INPUT), {"w": weights(4, 4)})
    made = inserted(stage(proto), switchable=True)
    assert [value.name for value in made.graph.input] == ["x", f"{ENABLED_INPUT}_2"]
