"""ONNX Runtime's CPU provider: what its Q/DQ fusion takes."""

from __future__ import annotations

from onnxfq.plan import Role
from onnxfq.policies.target import TargetPolicy
from onnxfq.spec import QuantSpec


def _refuses(spec: QuantSpec, role: Role) -> str:
    return ""


ONNXRUNTIME = TargetPolicy(
    name="onnxruntime",
    per_tensor_weights={},
    # ONNX Runtime fuses an Add only with pairs on both inputs and the output.
    residual=False,
    bias="bias: added in float, so that no rounding of int32 biases is needed",
    refuses=_refuses,
)
