"""Targets that models are quantized for, each a record; `register_target` adds one."""

from dataclasses import replace
from functools import partial

from onnxfq.placement.target_policy import Operands, Slots, TargetPolicy
from onnxfq.runtime.optimized_graph import VERSION
from onnxfq.runtime.plain_session import open_plain_session, profile_plain_session
from onnxfq.targets.genai import GENAI, GENAI_QDQ, GENAI_QDQ_TRANSPOSE
from onnxfq.targets.onnxruntime.policy import ONNXRUNTIME
from onnxfq.targets.openvino import OPENVINO
from onnxfq.targets.qnn import QNN
from onnxfq.targets.simulation import SIMULATION
from onnxfq.targets.target import Target, register_target, target_by_name
from onnxfq.targets.tensorrt import TENSORRT


def _in_plain_sessions(target: Target) -> Target:
    """Return a target whose users open a default session of ONNX Runtime, as GenAI does with a decoder."""
    return replace(
        target,
        values=open_plain_session,
        open=open_plain_session,
        unsaturated=partial(open_plain_session, wide_sums=True),
        release=lambda: f"ONNX Runtime {VERSION}",
        profile=profile_plain_session,
    )


_ONNXRUNTIME = replace(_in_plain_sessions(ONNXRUNTIME), asked=True)
_GENAI = map(_in_plain_sessions, (GENAI, GENAI_QDQ, GENAI_QDQ_TRANSPOSE))
for _target in (TENSORRT, _ONNXRUNTIME, OPENVINO, QNN, *_GENAI, SIMULATION):
    register_target(_target)

__all__ = ["Operands", "Slots", "Target", "TargetPolicy", "register_target", "target_by_name"]
