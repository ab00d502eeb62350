"""OpenVINO on a CPU as a target."""

from __future__ import annotations

from onnxfq.targets.openvino.check import check_model
from onnxfq.targets.openvino.policy import POLICY
from onnxfq.targets.openvino.recipes import RECIPES
from onnxfq.targets.openvino.runtime import open_as_users, open_model, profile_model, run_model
from onnxfq.targets.target import Target

OPENVINO = Target(
    "openvino",
    POLICY,
    recipes=RECIPES,
    check=check_model,
    run=run_model,
    values=open_model,
    open=open_as_users,
    profile=profile_model,
)
