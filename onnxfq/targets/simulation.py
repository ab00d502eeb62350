"""Simulation target: every format and granularity, run as a fake-quant model only."""

from __future__ import annotations

from onnxfq.placement.target_policy import TargetPolicy
from onnxfq.targets.target import Target

SIMULATION = Target("simulation", TargetPolicy(channel_blocks=True), is_written=False)
