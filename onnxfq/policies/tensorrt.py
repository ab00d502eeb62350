"""TensorRT 10 and 11, explicit quantization: what its parser takes and its builder fuses."""

from __future__ import annotations

from onnxfq.plan import Role
from onnxfq.policies.target import TargetPolicy
from onnxfq.spec import QuantSpec


def _refuses(spec: QuantSpec, role: Role) -> str:
    if not spec.symmetric:
        return "TensorRT takes zero points of 0 only; use symmetric: true"
    if spec.qtype.name == "int4":
        return "TensorRT takes int4 only for weights whose activations stay float; use int8"
    if spec.qtype.name != "int8":
        return f"TensorRT has no {spec.qtype} tensors; use int8"
    if spec.block_size is not None:
        return "TensorRT computes blocked int8 weights with quantized activations wrongly; use per_axis"
    return ""


TENSORRT = TargetPolicy(
    name="tensorrt",
    # NVIDIA staff named axis 0 in 2022, ModelOpt uses axis 1: one scale is right under both.
    per_tensor_weights={"ConvTranspose": "per tensor: TensorRT releases disagree on the channel axis"},
    # Without a pair on the skip branch the Add runs in float and cannot fuse into its Conv.
    residual=True,
    bias="bias: TensorRT refuses a quantized bias and adds it in float",
    refuses=_refuses,
)
