"""`Work`: what planning, observing and trying remedies cost, in seconds of one nominal machine.

The clock of the machine decides nothing: the same data and model give the same trials everywhere.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from onnxfq.graph.model import list_graphs, list_nodes
from onnxfq.graph.ops import WEIGHTED_INPUTS
from onnxfq.remedies.layer_costs import measure_costs

if TYPE_CHECKING:
    from onnxfq.remedies.candidate import Candidate

RATE = 4e10
"""Multiply-adds in a second of the nominal machine, two cores: ResNet-50 takes 0.1 s."""

NODE_SECONDS = 1e-5
"""Time that an operator takes without its multiply-adds."""

SESSION_SECONDS = 5e-4
"""Time that each operator takes to insert quantizers and to open a session."""

STAGE_SECONDS = 5e-3
"""Time that each operator takes to be loaded, planned, calibrated, inserted and written."""

SIMULATED = 2.0
"""Runs of the float model in the time of a run of the model with FakeQuantize nodes."""

OBSERVED = 2.0
"""Runs of the float model in the time of a run that observes."""

COMPARED = 32
"""Samples on which a result is usually compared."""

ALLOWED_SECONDS = 5.0
"""Time that repair may always take."""


@dataclass(frozen=True)
class Work:
    """Costs of a model and its data.

    Attributes:
        nodes: operators.
        run: seconds of the float model on one sample.
        samples: of the data.
    """

    nodes: int
    run: float
    samples: int

    @staticmethod
    def of(candidate: Candidate) -> Work:
        """Return the costs of the model of `candidate`; nothing costs anything without samples."""
        session = candidate.session
        nodes = sum(1 for _ in list_nodes(session.model.proto.graph))
        if not session.kept:
            return Work(nodes, 0.0, 0)
        costs = measure_costs(session.model.proto, candidate.plan, session.kept[0])
        multiplies = sum(costs.products.values())
        samples = max(candidate.statistics.whole.data.samples, len(session.kept))
        return Work(nodes, multiplies / RATE + nodes * NODE_SECONDS, samples)

    @property
    def opening(self) -> float:
        """Seconds that a session takes to open."""
        return self.nodes * SESSION_SECONDS

    def compare(self, samples: int, candidates: int = 1) -> float:
        """Return the seconds of comparing candidates with the float model."""
        return (1 + candidates) * self.opening + samples * self.run * (1 + candidates * SIMULATED)

    def observe(self, samples: int | None = None) -> float:
        """Return the seconds of observing; None for all samples."""
        return self.opening + (self.samples if samples is None else samples) * self.run * OBSERVED

    def allow(self, is_low: bool) -> float:
        """Return the seconds that repair may take: three times `base` for low outputs, else once."""
        return max(ALLOWED_SECONDS, (3 if is_low else 1) * self.base)

    @property
    def base(self) -> float:
        """Seconds of `quantize` without repair."""
        stages = self.nodes * STAGE_SECONDS
        return stages + self.observe() + self.compare(min(self.samples, COMPARED))


class Budget:
    """Seconds of the nominal machine that are left for repair.

    Attributes:
        left: the seconds.
        later: those of them that remedies need that come later; what is not the first try leaves them alone.
    """

    def __init__(self, seconds: float = math.inf) -> None:
        """Start with so many seconds."""
        self.left = seconds
        self.later = 0.0

    def spend(self, seconds: float) -> None:
        """Take the seconds of what is done."""
        self.left -= seconds

    def explain_refusal(self, seconds: float, reserved: float = 0.0) -> str:
        """Return why `seconds` cannot be spent, next to those `reserved` for others; empty if they can."""
        if seconds + reserved <= self.left:
            return ""
        return f"it takes about {seconds:.2g} s more, beyond the budget; --repair thorough tries it"

    def explain_extra(self, seconds: float, reserved: float = 0.0) -> str:
        """Return `explain_refusal` for what is not the first try of a remedy."""
        return self.explain_refusal(seconds, reserved + self.later)


def count_weight_multiplies(candidate: Candidate) -> float:
    """Return the multiply-adds of rounding all weights by moments: products, inverse, decomposition.

    Constants of operators that multiply nothing have no moments.
    """
    kinds = {node.node: node.op_type for node in candidate.plan.nodes}
    dims = {
        t.name: tuple(t.dims)
        for graph in list_graphs(candidate.session.model.proto.graph)
        for t in graph.initializer
    }
    total = 0
    for placement in candidate.plan.weights:
        shape = dims.get(placement.tensor)
        others = {kinds.get(use.node) for use in placement.uses} - {None, *WEIGHTED_INPUTS}
        if shape is None or others:
            continue
        granularity = placement.spec.granularity
        outputs = shape[granularity.axis or 0] if granularity.block_size is None else 1
        size = math.prod(shape)
        inputs = size // max(outputs, 1) if outputs > 1 else max(shape, default=0)
        total += LEAST_MULTIPLIES + 4 * inputs**3 + size * inputs
    return float(total)


LEAST_MULTIPLIES = 1 << 28
"""Multiply-adds in the 7 ms that even a small weight takes: a graph of 2,500 small layers took 20 s."""
