"""Targets that models are quantized for, each a record; `register_target` adds one."""

from onnxfq.placement.target_policy import Operands, Slots, TargetPolicy
from onnxfq.targets.onnxruntime.policy import ONNXRUNTIME
from onnxfq.targets.target import Target, register_target, target_by_name
from onnxfq.targets.tensorrt import TENSORRT

SIMULATION = Target("simulation", TargetPolicy(channel_blocks=True), has_pairs=False)
"""Accepts every number format, for fake-quant models only."""

for _target in (TENSORRT, ONNXRUNTIME, SIMULATION):
    register_target(_target)

__all__ = ["Operands", "Slots", "Target", "TargetPolicy", "register_target", "target_by_name"]
