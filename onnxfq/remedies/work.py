"""`Work`: what planning, observing and trying remedies cost, in seconds of one nominal machine.

The clock of the machine decides nothing: the same data and model give the same trials everywhere.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from onnxfq.data import Feed
from onnxfq.data.replay import StreamSamples
from onnxfq.graph.model import list_nodes
from onnxfq.remedies.layer_costs import WeightSize, measure_costs, weight_sizes
from onnxfq.remedies.moments import choose_rows
from onnxfq.remedies.samples import REPORTED
from onnxfq.remedies.sequential_moments import choose_samples

if TYPE_CHECKING:
    from onnxfq.remedies.candidate import Candidate

RATE = 5e10
"""Multiply-adds in a second of the nominal machine, one core."""

ELEMENT_SECONDS = 5e-10
"""Time that each element of the inputs and outputs of products takes."""

NODE_SECONDS = 5e-6
"""Time that an operator takes without its multiply-adds and elements."""

SESSION_SECONDS = 4e-4
"""Time that each operator takes to insert quantizers and to open a session."""

STAGE_SECONDS = 4e-3
"""Time that each operator takes to be loaded, planned, calibrated, inserted and written."""

CALIBRATE_SECONDS = 5e-3
"""Time of choosing among all calibrators for one tensor."""

SIMULATED = 1.2
"""Runs of the float model in the time of a run of the model with FakeQuantize nodes."""

OBSERVED = 1.4
"""Runs of the float model in the time of a run that observes."""

CHANNEL_SECONDS = 7e-9
"""Time that each element takes whose channels are observed."""

WEIGHT_SECONDS = 0.01
"""Time of rounding even a small weight."""

INPUT_SECONDS = 6e-5
"""The same for each of its inputs: they are rounded one after the other."""

SCALE_SECONDS = 1.5e-7
"""The same for each of its elements: the search of their scales."""

LAYER_SECONDS = 3e-4
"""Time of a sequential method for one layer and sample: it runs each layer of both models by itself."""

COMPARED = 32
"""Samples on which a result is usually compared."""

PROVEN_SHARE = 0.1
"""Share of the time of `base` that runs of further samples may take, so that an interval is narrow."""

ALLOWED_SECONDS = 5.0
"""Time that repair may always take."""

# Processor time on one core of an x86 server: 13 networks of 10 to 550 operators, of 1 to 3,000 million
# multiply-adds. Half of the estimates of a run, of an observing run, of factors, of rounding and of the
# whole without repair are within a quarter of it, and nearly all within a factor of 2.


@dataclass(frozen=True)
class Work:
    """Costs of a model and its data.

    Attributes:
        nodes: operators.
        run: seconds of the float model on one sample.
        samples: of the data.
        tensors: activations that are calibrated.
        elements: of the inputs and outputs of products, for one sample.
        products: multiply-adds for one sample by node.
    """

    nodes: int
    run: float
    samples: int
    tensors: int = 0
    elements: int = 0
    products: Mapping[str, int] = field(default_factory=dict)

    @staticmethod
    def of(candidate: Candidate) -> Work:
        """Return the costs of the model of `candidate`; nothing costs anything without samples."""
        session = candidate.session
        nodes = sum(1 for _ in list_nodes(session.model.proto.graph))
        if not session.kept:
            return Work(nodes, 0.0, 0)
        costs = measure_costs(session.model.proto, candidate.plan, session.kept[0])
        run = sum(costs.products.values()) / RATE + costs.elements * ELEMENT_SECONDS + nodes * NODE_SECONDS
        samples = max(candidate.statistics.whole.data.samples, len(session.kept))
        return Work(nodes, run, samples, len(candidate.plan.activations), costs.elements, costs.products)

    @property
    def opening(self) -> float:
        """Seconds that a session takes to open."""
        return self.nodes * SESSION_SECONDS

    def compare(self, samples: int, candidates: int = 1, is_first: bool = True) -> float:
        """Return the seconds of comparing candidates with the float model, which runs the first time."""
        alone = self.opening + samples * self.run if is_first else 0.0
        return alone + candidates * (self.opening + samples * self.run * SIMULATED)

    @property
    def proving(self) -> int:
        """Number of samples whose runs of both models take PROVEN_SHARE of `base`."""
        return int(PROVEN_SHARE * self.base / (self.run * (1 + SIMULATED))) if self.run else 0

    def observe(self, samples: int | None = None) -> float:
        """Return the seconds of observing; None for all samples."""
        return self.opening + (self.samples if samples is None else samples) * self.run * OBSERVED

    def observe_channels(self, samples: int, share: float) -> float:
        """Return the seconds of observing the channels of the inputs of this share of the products."""
        return self.opening + samples * (self.run + share * self.elements * CHANNEL_SECONDS)

    @property
    def calibrate(self) -> float:
        """Seconds of choosing among all calibrators for each tensor, with a plan."""
        return self.opening + self.tensors * CALIBRATE_SECONDS

    def finish(self, samples: int) -> float:
        """Return the seconds of the models of what is kept, and of comparing `samples`.

        The ranges of all samples, and the models with them, are part of `base`.
        """
        return 2 * self.opening + self.compare(samples)

    def round(self, candidate: Candidate) -> float:
        """Return the seconds of rounding all weights by moments: sums of products, inverse, decomposition."""
        return self._round(self._sizes(candidate))

    def _sizes(self, candidate: Candidate) -> list[WeightSize]:
        return weight_sizes(candidate.session.model.proto, candidate.plan, self.products)

    def _round(self, sizes: Sequence[WeightSize]) -> float:
        seconds = 0.0
        for size, inputs, rows in sizes:
            sums = min(choose_rows(inputs), self.samples * rows) * inputs**2
            seconds += WEIGHT_SECONDS + inputs * INPUT_SECONDS + size * SCALE_SECONDS
            seconds += (sums + 2 * inputs**3 + 5 * size * inputs) / RATE
        return seconds

    def round_in_turn(self, candidate: Candidate) -> float:
        """Return the seconds of rounding one weight after the other, by both models' inputs."""
        sizes = self._sizes(candidate)
        samples = min(choose_samples(sizes), self.samples)
        layers = len(candidate.plan.weights) * samples * LAYER_SECONDS
        return 2 * (self.observe(samples) + self._round(sizes)) + layers

    def allow(self, is_low: bool) -> float:
        """Return the seconds that repair may take: three times `base` for low outputs, else once."""
        return max(ALLOWED_SECONDS, (3 if is_low else 1) * self.base)

    @property
    def base(self) -> float:
        """Seconds of `quantize` without repair."""
        stages = self.nodes * STAGE_SECONDS
        return stages + self.observe() + self.compare(min(self.samples, COMPARED))


def limit_samples(candidate: Candidate, samples: Sequence[Feed]) -> Sequence[Feed]:
    """Return the first REPORTED of `samples`, or as many as take PROVEN_SHARE of `base`; all of a stream."""
    if len(samples) <= REPORTED or isinstance(samples, StreamSamples):
        return samples
    return samples[: max(REPORTED, Work.of(candidate).proving)]


class Budget:
    """Seconds of the nominal machine that are left for repair.

    Attributes:
        left: the seconds.
        later: those of them that remedies need that come later; what is not the first try leaves them alone.
        aside: further seconds, for one remedy, that nothing else spends.
    """

    def __init__(self, seconds: float = math.inf) -> None:
        """Start with so many seconds."""
        self.left = seconds
        self.later = self.aside = 0.0

    def spend(self, seconds: float) -> None:
        """Take the seconds of what is done."""
        self.left -= seconds

    def set_aside(self, seconds: float) -> None:
        """Keep `seconds`, if there are as many, until `release`."""
        self.aside = seconds if seconds <= self.left else 0.0
        self.left -= self.aside

    def release(self) -> None:
        """Give back what was set aside, also if more than all the rest was spent."""
        if self.aside:
            self.left, self.aside = max(self.left, 0.0) + self.aside, 0.0

    def explain_refusal(self, seconds: float, reserved: float = 0.0) -> str:
        """Return why `seconds` cannot be spent, next to those `reserved` for others; empty if they can.

        A remedy that takes no time always fits.
        """
        if seconds == 0.0 or seconds + reserved <= self.left:
            return ""
        return f"it takes about {seconds:.2g} s more, beyond the budget; --repair thorough tries it"

    def explain_extra(self, seconds: float, reserved: float = 0.0) -> str:
        """Return `explain_refusal` for what is not the first try of a remedy."""
        return self.explain_refusal(seconds, reserved + self.later)
