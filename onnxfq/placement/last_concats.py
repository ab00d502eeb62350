"""Results of a last Concat that joins boxes and scores: one scale for both leaves the scores no steps."""

from __future__ import annotations

from collections.abc import Iterator

from onnxfq.calibration.statistics import Statistics
from onnxfq.documents.plan import Plan
from onnxfq.graph.index import GraphIndex
from onnxfq.graph.ops import MOVES, STANDARD_DOMAINS
from onnxfq.support.reasons import Reason

MOST = 8.0
"""Largest ratio of the ranges of its inputs: the smallest one loses 3 bits."""

APART = Reason(
    "ranges-apart", f"the ranges of its inputs differ by more than {MOST:g} times; they keep pairs"
)


def find_apart(index: GraphIndex, plan: Plan, statistics: Statistics) -> Iterator[str]:
    """Yield the result of each Concat in front of outputs alone whose inputs have ranges far apart."""
    placed = {placement.tensor for placement in plan.activations}
    for node in index.nodes:
        if node.op_type == "Concat" and node.output[0] in placed and _is_last(index, node.output[0]):
            reach = [statistics[name].amax for name in node.input if name in statistics]
            if reach and max(reach) > MOST * min(reach) > 0.0:
                yield node.output[0]


def _is_last(index: GraphIndex, name: str) -> bool:
    readers = index.readers.get(name, [])
    moved = all(one.op_type in MOVES and one.domain in STANDARD_DOMAINS for one in readers)
    return moved and all(_is_last(index, one.output[0]) for one in readers)
