"""Targets that models are quantized for, each a record; `register_target` adds one."""

from onnxfq.placement.target_policy import Operands, Slots, TargetPolicy
from onnxfq.targets.onnxruntime.policy import ONNXRUNTIME
from onnxfq.targets.openvino import OPENVINO
from onnxfq.targets.simulation import SIMULATION
from onnxfq.targets.target import Target, register_target, target_by_name
from onnxfq.targets.tensorrt import TENSORRT

for _target in (TENSORRT, ONNXRUNTIME, OPENVINO, SIMULATION):
    register_target(_target)

__all__ = ["Operands", "Slots", "Target", "TargetPolicy", "register_target", "target_by_name"]
