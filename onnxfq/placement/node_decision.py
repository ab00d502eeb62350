"""`NodeDecision`: placements or float for one node."""

from __future__ import annotations

from dataclasses import dataclass, replace

from onnxfq.documents.plan import Placement
from onnxfq.graph.names import Use
from onnxfq.support.reasons import Reason


@dataclass(frozen=True)
class NodeDecision:
    """Decision for one node: placements for all its needs, or a reason to leave it in float.

    Attributes:
        by_rule: the target wants this node in float, so it does not count in the coverage.
    """

    node: str
    op_type: str
    needs: tuple[Use, ...]
    placements: tuple[Placement, ...] = ()
    why_float: str = ""
    by_rule: bool = False

    def leave_out(self, rule: str, why: str) -> NodeDecision:
        """Return the decision that leaves the node in float, with the reason and the code of its rule."""
        return replace(self, placements=(), why_float=Reason(rule, why))
