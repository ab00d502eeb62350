"""Policies: where to quantize, one target or idea per file."""

from __future__ import annotations

from onnxfq.placement.target_policy import TargetPolicy
from onnxfq.targets.onnxruntime.policy import ONNXRUNTIME
from onnxfq.targets.simulation import SIMULATION
from onnxfq.targets.tensorrt.policy import TENSORRT

POLICIES: dict[str, TargetPolicy] = {policy.name: policy for policy in (TENSORRT, ONNXRUNTIME, SIMULATION)}
