"""`TargetPolicy`: what a target takes and wants, as data and small functions."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from onnxfq.plan import Role
from onnxfq.spec import QuantSpec


@dataclass(frozen=True)
class TargetPolicy:
    """Placement choices of one target.

    per_tensor_weights: op type -> why its weights get one scale only. residual: whether the skip
    branch of a residual Add gets a pair. bias: why biases stay float. refuses: returns why the target
    cannot take a spec for a role, with the remedy; an empty string when it can.
    """

    name: str
    per_tensor_weights: dict[str, str]
    residual: bool
    bias: str
    refuses: Callable[[QuantSpec, Role], str]
