"""No target: every format and granularity, to be run as a fake-quant model only."""

from __future__ import annotations

from onnxfq.placement.target_policy import TargetPolicy

SIMULATION = TargetPolicy(
    name="simulation",
    per_tensor_weights={},
    residual=False,
    channel_blocks=True,
    bias="bias: added in float",
    refuses=lambda placement, operands: "",
    keeps_float=lambda operands: "",
)
