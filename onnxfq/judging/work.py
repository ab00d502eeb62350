"""`Work`: what planning, observing and trying remedies cost, in runs of the float model on one sample.

They are counted from the model, the plan and the number of samples. No clock decides anything: the same data
and model give the same trials everywhere.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from onnxfq.data import Feed
from onnxfq.data.replay import FEWEST_UNSEEN
from onnxfq.data.stream import StreamSamples
from onnxfq.graph.walk import count_operators
from onnxfq.judging.samples import REPORTED
from onnxfq.layers.layer_costs import WeightSize, measure_costs, weight_sizes
from onnxfq.layers.moments import choose_rows
from onnxfq.layers.sequential_moments import JOINED, choose_samples
from onnxfq.support.progress import announce

if TYPE_CHECKING:
    from onnxfq.judging.candidate import Candidate

# Each constant is a number of multiply-adds of a product, in the time that something else takes.
# `benchmarks/work.py` fits them to processor times, and has their errors on networks that it leaves out.

ELEMENT = 25.0
"""An element that a product reads or writes, or a pair rounds."""

NODE = 1e6
"""An operator, without its multiply-adds and elements."""

HANDLED = 6e7
"""An operator or tensor that a stage handles, or a session opens."""

SEARCHED = 4e4
"""An element of a weight whose scales or channel factors are searched."""

LINEAR = 0.7
"""A multiply-add of linear algebra, in float64."""

STAGES = 10
"""Stages that handle each operator: from loading and planning to both forms and their sessions."""

COMPARED = 32
"""Samples on which a result is usually compared."""

PROVEN_SHARE = 0.1
"""Share of `base` that runs of further samples may take, so that an interval is narrow."""

ALLOWED = 5e11
"""Multiply-adds that repair may always take: 10 seconds of a core that does 5e10 in a second.

With half as many two of five trained networks in int8 keep less: 2.0 dB on espcn, .6 on the demo's.
"""


@dataclass(frozen=True)
class Work:
    """Costs of a model and its data. All figures but these fields are runs of the float model.

    Attributes:
        nodes: operators that a run computes.
        samples: of the data; without any nothing costs anything.
        tensors: activations that are calibrated.
        elements: of the inputs and outputs of products, for one sample.
        products: multiply-adds for one sample by node.
    """

    nodes: int
    samples: int = 0
    tensors: int = 0
    elements: int = 0
    products: Mapping[str, int] = field(default_factory=dict)

    @staticmethod
    def of(candidate: Candidate) -> Work:
        """Return the costs of the model of `candidate`; nothing costs anything without samples."""
        return candidate.recall(Work, lambda: Work._measure(candidate))  # it may take a run

    @staticmethod
    def _measure(candidate: Candidate) -> Work:
        session = candidate.session
        nodes = count_operators(session.model.proto.graph)
        if not session.kept:
            return Work(nodes)
        costs = measure_costs(session.model.proto, candidate.plan, session.kept[0])
        samples = max(candidate.statistics.whole.data.samples, len(session.kept))
        return Work(nodes, samples, len(candidate.plan.activations), costs.elements, costs.products)

    @property
    def size(self) -> float:
        """Multiply-adds that take the time of a run of the float model on one sample."""
        return sum(self.products.values()) + self.elements * ELEMENT + self.nodes * NODE

    def runs(self, multiplies: float) -> float:
        """Return the runs in the time of so many multiply-adds; none without samples."""
        return multiplies / self.size if self.samples and self.size else 0.0

    @property
    def plain(self) -> float:
        """A run; nothing without samples."""
        return 1.0 if self.samples else 0.0

    @property
    def quantized(self) -> float:
        """A run that observes or simulates: each element once more, and a node for each tensor."""
        return self.plain + self.runs(self.elements * ELEMENT + self.tensors * NODE)

    @property
    def opening(self) -> float:
        """A session that is opened."""
        return self.runs(self.nodes * HANDLED)

    def compare(self, samples: int, candidates: int = 1, is_first: bool = True) -> float:
        """Return the runs of comparing candidates with the float model, which runs the first time."""
        alone = self.opening + samples * self.plain if is_first else 0.0
        return alone + candidates * (self.opening + samples * self.quantized)

    @property
    def proving(self) -> int:
        """Number of samples whose runs in both models take PROVEN_SHARE of `base`."""
        return int(PROVEN_SHARE * self.base / (self.plain + self.quantized)) if self.samples else 0

    def observe(self, samples: int | None = None) -> float:
        """Return the runs of observing; None for all samples."""
        return self.opening + (self.samples if samples is None else samples) * self.quantized

    @property
    def calibrate(self) -> float:
        """Choosing among all calibrators for each tensor."""
        return self.runs(self.tensors * HANDLED)

    def finish(self, samples: int) -> float:
        """Return the runs of the models of what is kept, and of comparing `samples`.

        The ranges of all samples, and the models with them, are part of `base`.
        """
        return 2 * self.opening + self.compare(samples)

    def factors(self, groups: int, elements: int) -> float:
        """Return the runs of choosing factors for groups of channels, whose weights have `elements`."""
        return self.runs(groups * STAGES * HANDLED + elements * SEARCHED)

    def round(self, candidate: Candidate) -> float:
        """Return the runs of rounding all weights by moments: sums of products, inverse, decomposition."""
        return self._round(self._sizes(candidate))

    def _sizes(self, candidate: Candidate) -> list[WeightSize]:
        return weight_sizes(candidate.session.model.proto, candidate.plan, self.products)

    def _round(self, sizes: Sequence[WeightSize]) -> float:
        multiplies = 0.0
        for size, inputs, rows in sizes:
            sums = min(choose_rows(inputs), self.samples * rows) * inputs**2
            multiplies += LINEAR * (sums + 2 * inputs**3 + 5 * size * inputs)
            multiplies += STAGES * HANDLED + size * SEARCHED
        return self.runs(multiplies)

    def round_in_turn(self, candidate: Candidate) -> float:
        """Return the runs of rounding one weight after the other, by both models' inputs.

        A session opens for each layer of both models, and runs over some samples at a time.
        """
        sizes = self._sizes(candidate)
        samples = min(choose_samples(sizes), self.samples)
        layers = self.runs(len(candidate.plan.weights) * -(-samples // JOINED) * HANDLED)
        return 2 * (self.observe(samples) + self._round(sizes)) + layers

    def allow(self, is_low: bool) -> float:
        """Return the runs that repair may take: as `base` or ALLOWED, for low outputs three times as many."""
        return (3 if is_low else 1) * max(self.runs(ALLOWED), self.base)

    @property
    def base(self) -> float:
        """`quantize` without repair."""
        return STAGES * self.opening + self.observe() + self.compare(min(self.samples, COMPARED))


def limit_samples(candidate: Candidate, samples: Sequence[Feed]) -> Sequence[Feed]:
    """Return the first REPORTED of `samples`, or as many as take PROVEN_SHARE of `base`; all of a stream."""
    if len(samples) <= REPORTED or isinstance(samples, StreamSamples):
        return samples
    return samples[: max(REPORTED, Work.of(candidate).proving)]


def least_samples(candidate: Candidate, samples: Sequence[Feed]) -> int:
    """Return how many of `samples` are compared, though the interval is narrow: the tail of few is not seen.

    A comparison that ended at the first narrow interval would miss the samples with most of the noise.
    """
    if len(samples) <= FEWEST_UNSEEN:  # all of them, whatever they cost
        return FEWEST_UNSEEN
    return min(REPORTED, max(FEWEST_UNSEEN, Work.of(candidate).proving))


class Budget:
    """Runs of the float model that are left for repair.

    Attributes:
        left: the runs.
        later: those of them that remedies need that come later; what is not the first try leaves them alone.
        trying: what takes them now.
    """

    def __init__(self, runs: float = math.inf) -> None:
        """Start with so many runs."""
        self.left = self._given = runs
        self.later = 0.0
        self.trying = "repair"

    def spend(self, runs: float) -> None:
        """Take the runs of what is done."""
        self.left -= runs
        self.announce()

    def announce(self) -> None:
        """Tell what is tried, and how much of the budget is gone."""
        if math.isfinite(self._given) and math.isfinite(self.left):
            announce(self.trying, round(self._given - self.left), round(self._given))
        else:
            announce(self.trying)

    def explain_refusal(self, runs: float, reserved: float = 0.0) -> str:
        """Return why `runs` cannot be spent, next to those `reserved` for others; empty if they can.

        A remedy that takes no time always fits.
        """
        if runs == 0.0 or runs + reserved <= self.left:
            return ""
        count = f"{runs:.2g}" if runs < 100 else f"{round(runs, 1 - len(str(int(runs)))):,.0f}"
        taken = f"it takes about {count} runs of the float model"
        return f"{taken}, beyond the budget; --repair thorough tries it"

    def explain_extra(self, runs: float) -> str:
        """Return `explain_refusal` for what is not the first try of a remedy."""
        return self.explain_refusal(runs, self.later)
