"""If a model declares one shape and computes another, the computed one counts, as in ONNX Runtime."""

from __future__ import annotations

import onnx
import onnxruntime
import pytest
from builders import build, stage, weights

from onnxfq.graph.io.load import load
from onnxfq.stages.insert import insert_qdq

SAID = {"size": "float[N,7]", "rank": "float[N]", "rank of a scalar": "float"}


def dims(value: onnx.ValueInfoProto) -> list[int | str]:
    """Return the shape of `value`."""
    return [d.dim_param or d.dim_value for d in value.type.tensor_type.shape.dim]


@pytest.mark.parametrize("said", SAID)
def test_inner_tensors(said: str) -> None:
    """It is reported and corrected, and the written model loads."""
    proto = build(
        f"g (float[N,4] x) => (float[N,4] y) <{SAID[said]} h> {{ h = Relu (x) y = MatMul (h, w) }}",
        {"w": weights(4, 4)},
    )
    one = stage(proto)
    assert "1 tensor(s) have another shape than the model says, as 'h'" in one.model.notes
    assert {v.name: dims(v) for v in one.model.proto.graph.value_info} == {"h": ["N", 4]}
    made = insert_qdq(one.model, one.plan, one.encodings)
    onnx.checker.check_model(made, full_check=True)
    onnxruntime.InferenceSession(made.SerializeToString(), providers=["CPUExecutionProvider"])


def test_outputs_and_bodies() -> None:
    """Outputs are corrected and keep their names; tensors of a body are treated as in the graph."""
    proto = build(
        """g (float[N,4] x, bool c) => (float[N,5] y, float[N,4] z) {
            y = MatMul (x, w)
            z = If (c) <then_branch = a () => (float[N,4] t) <float[9] h> { h = Relu (x) t = MatMul (h, w) },
                        else_branch = b () => (float[N,4] e) { e = Relu (x) }> }""",
        {"w": weights(4, 4)},
    )
    model = load(proto)
    assert any("2 tensor(s) have another shape" in note for note in model.notes)
    assert [dims(v) for v in model.proto.graph.output] == [["N", 4], ["N", 4]]
    one = stage(proto)
    onnx.checker.check_model(insert_qdq(one.model, one.plan, one.encodings), full_check=True)


def test_what_agrees_stays() -> None:
    """Types behind an operator that ONNX does not know are the model's own, and nothing is said of them."""
    proto = build(
        "g (float[N,4] x) => (float[N,4] y) <float[N,4] h> { h = own.Odd (x) y = MatMul (h, w) }",
        {"w": weights(4, 4)},
        own=1,
    )
    model = load(proto)
    assert not any("shape" in note for note in model.notes)
    assert {v.name: dims(v) for v in model.proto.graph.value_info} == {"h": ["N", 4]}
