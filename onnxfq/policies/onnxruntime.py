"""ONNX Runtime's CPU provider: which Q/DQ kernels it has, and what its fusion takes."""

from __future__ import annotations

from onnxfq.deployed import deployed_qtype
from onnxfq.plan import Placement
from onnxfq.policies.target import Operands, TargetPolicy


def _refuses(placement: Placement, operands: Operands) -> str:
    # onnxruntime 1.31.1 has QuantizeLinear for integers of 2, 4, 8 and 16 bits and for the float8 types.
    qtype = placement.spec.qtype
    if deployed_qtype(qtype) is None:
        return f"ONNX has no {qtype} tensors; use float8e4m3fn, or target simulation"
    if qtype.base == "float4e2m1":
        return "ONNX Runtime has no QuantizeLinear for float4e2m1; use int4, or target simulation"
    return ""


ONNXRUNTIME = TargetPolicy(
    name="onnxruntime",
    per_tensor_weights={},
    # ONNX Runtime fuses an Add only with pairs on both inputs and the output.
    residual=False,
    bias="bias: added in float, so that no rounding of int32 biases is needed",
    refuses=_refuses,
    keeps_float=lambda operands: "",
)
