"""`NodeDecision`: what is decided for one node."""

from __future__ import annotations

from dataclasses import dataclass

from onnxfq.documents.plan import Placement
from onnxfq.graph.slots import Use


@dataclass(frozen=True)
class NodeDecision:
    """What is decided for one node: placements for all its needs, or a reason to leave it in float.

    by_rule: float is what the target wants for this node, so it does not count in the coverage.
    """

    node: str
    op_type: str
    needs: tuple[Use, ...]
    placements: tuple[Placement, ...] = ()
    why_float: str = ""
    by_rule: bool = False
