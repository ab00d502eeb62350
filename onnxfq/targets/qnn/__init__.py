"""Qualcomm's HTP by QNN as a target."""

from __future__ import annotations

from onnxfq.graph.normalize.fold_batch_norm import fold_batch_norm
from onnxfq.support.attempts import attempt
from onnxfq.targets.qnn.check import check_model
from onnxfq.targets.qnn.policy import POLICY
from onnxfq.targets.qnn.recipes import RECIPES
from onnxfq.targets.target import Target

QNN = Target(
    "qnn",
    POLICY,
    recipes=RECIPES,
    check=check_model,
    prepare=lambda model: attempt(
        "folding BatchNormalization", lambda: fold_batch_norm(model), lambda: model
    ),
)
