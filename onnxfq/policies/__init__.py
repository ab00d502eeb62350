"""Policies: where to quantize, one target or idea per file."""

from __future__ import annotations

from onnxfq.policies.onnxruntime import ONNXRUNTIME
from onnxfq.policies.simulation import SIMULATION
from onnxfq.policies.target import TargetPolicy
from onnxfq.policies.tensorrt import TENSORRT

POLICIES: dict[str, TargetPolicy] = {policy.name: policy for policy in (TENSORRT, ONNXRUNTIME, SIMULATION)}
