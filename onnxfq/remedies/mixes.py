"""`Mixes`: which groups of layers get another format, by the noise that each of them makes alone.

Powers of noise add: through activations that are rounded again, the noises of two layers are not coherent.
A run with all groups corrects the sum.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from onnxfq.data import Feed
from onnxfq.documents.sensitivity import FLOAT, Sensitivity
from onnxfq.execution.toggled_segments import State
from onnxfq.judging.accuracy_target import Aim, SqnrAim
from onnxfq.judging.candidate import Candidate
from onnxfq.judging.judge import GAINED_SHARE, Judge
from onnxfq.layers.quantizer_toggles import QuantizerToggles
from onnxfq.numerics.knapsack import Choices, Items, list_choices
from onnxfq.numerics.metrics import ratio_db
from onnxfq.targets.recipes import RECIPES

_LOUDEST = 1e12
"""Noise in place of an infinite one, so that sums tell what the others add."""

_MOST_DB = 20.0
"""Difference in dB that one step makes up for: a figure that is not finite differs by no number of dB."""


@dataclass(frozen=True)
class Mixes:
    """Noise and costs of groups of layers in their own format and in another one.

    Attributes:
        ranking: of the groups, by their noise in their own format.
        fallback: the other format: FLOAT, WEIGHTS, a number format or the name of a recipe.
        noises: noise-to-signal ratio of the outputs with one group alone, [group, 2]: in its own format, and
            in the other one.
        whole: the same with all groups in one format, [2].
        costs: of the other format by group.
    """

    ranking: Sensitivity
    fallback: str
    noises: Items
    whole: NDArray[np.float64]
    costs: NDArray[np.float64]

    @staticmethod
    def in_float(ranking: Sensitivity) -> Mixes:
        """Return the mixes with float, which adds no noise, and costs its share of the time."""
        alone = np.minimum([group.noise for group in ranking.groups], _LOUDEST)
        prices = np.array([group.price or 1.0 / len(alone) for group in ranking.groups])
        whole = np.array([min(ranking.noise, _LOUDEST), 0.0])
        return Mixes(ranking, FLOAT, np.stack([alone, np.zeros(len(alone))], axis=1), whole, prices)

    @staticmethod
    def unmeasured(ranking: Sensitivity, fallback: str) -> Mixes:
        """Return the mixes with `fallback` as if it added no noise, which is known of float alone."""
        return replace(Mixes.in_float(ranking), fallback=fallback)

    @staticmethod
    def measure(
        candidate: Candidate, judge: Judge, ranking: Sensitivity, feeds: Sequence[Feed], fallback: str
    ) -> Mixes:
        """Return the mixes with `fallback`, whose noise `feeds` tell."""
        made = Mixes.unmeasured(ranking, fallback)
        if fallback == FLOAT:
            return made
        board = made.apply(candidate, judge, range(len(ranking.groups))).open_toggles(judge.options)
        groups = [board.reading(group.nodes, group.tensors) for group in ranking.groups]
        states = [board.everything, *(board.enable([group]) for group in groups)]
        whole, *alone = np.minimum(board.noise(feeds, states), _LOUDEST)
        noises = np.stack([made.noises[:, 0], alone], axis=1)
        return replace(made, noises=noises, whole=np.array([made.whole[0], whole]))

    def apply(self, candidate: Candidate, judge: Judge, places: Sequence[int]) -> Candidate:
        """Return `candidate` with the other format for the groups at `places` of the ranking."""
        if self.fallback == FLOAT:
            overrides = self.ranking.float_overrides(places)
        else:
            overrides = (self.ranking.override(places, RECIPES.get(self.fallback, self.fallback)),)
        return candidate.with_overrides(overrides, judge.sources.encodings, judge.options)

    def predict(self, items: NDArray[np.int64]) -> NDArray[np.float64]:
        """Return the noise of mixes, [mix, group]: 1 for a group that gets the other format, else 0."""
        sums = np.stack([items == item for item in (0, 1)], axis=2) * self.noises
        sums, total = sums.sum(axis=1), self.noises.sum(axis=0)
        known = (total > 0.0) & (self.whole > 0.0)
        factors = np.log(np.where(known, self.whole, 1.0) / np.where(known, total, 1.0))
        shares = sums / np.where(known, total, 1.0)
        return np.asarray(sums.sum(axis=1) * np.exp(shares @ factors))

    @cached_property
    def choices(self) -> Choices:
        """The mixes of least noise for their costs, the cheapest first."""
        return list_choices(self.noises, np.stack([np.zeros_like(self.costs), self.costs], axis=1))

    @cached_property
    def predicted(self) -> NDArray[np.float64]:
        """The noise of each of `choices`."""
        return self.predict(self.choices.items)

    def find_cheapest(self, most: float, least: int = 0) -> int:
        """Return the place of the first choice, from `least` on, of noise up to `most`; else the last."""
        found = np.flatnonzero(self.predicted[least:] <= most)
        return least + int(found[0]) if len(found) else len(self.predicted) - 1

    def find_fewest(self) -> int:
        """Return the first choice that gains what the format can gain, or too little less to be proven."""
        return self.find_cheapest(float(self.predicted.min()) / (1.0 - GAINED_SHARE))

    def find_best(self, most: float) -> int:
        """Return the choice of least noise whose cost is at most `most`."""
        return int(np.flatnonzero(self.choices.weights <= most)[-1])

    def find_worthwhile(self, price: float, most: float, enough: float) -> int:
        """Return the choice whose gain in dB is most above its cost.

        Args:
            price: cost that a gain of 1 dB is worth.
            most: cost of all.
            enough: noise below which nothing is gained.
        """
        gains = [ratio_db(self.predicted[0], max(noise, enough)) for noise in self.predicted]
        values = np.array(gains) - self.choices.weights / price
        return int(np.argmax(values[: self.find_best(most) + 1]))

    def list_places(self, choice: int) -> list[int]:
        """Return the places in the ranking of the groups that get the other format, most gain first."""
        gains = (self.noises[:, 0] - self.noises[:, 1]) / np.maximum(self.costs, 1e-12)
        return sorted(np.flatnonzero(self.choices.items[choice]).tolist(), key=lambda at: -gains[at])


def switch_off(board: QuantizerToggles, ranking: Sensitivity, places: Sequence[int]) -> State:
    """Return the switches with the groups at `places` of the ranking in float."""
    tensors = [tensor for at in places for tensor in ranking.groups[at].tensors]
    return board.enable(board.single(tensors), on=False)


class NoiseSearch:
    """Choices that come closer to an SQNR, by what those before them had."""

    def __init__(self, mixes: Mixes, wanted_db: float) -> None:
        """Begin behind the choice that changes nothing."""
        self._mixes, self._wanted_db, self._last = mixes, wanted_db, 0

    def choose(self, reached_db: float) -> list[int]:
        """Return the places of groups that get the other format; none once nothing is left to try.

        All that there is comes last: before it comes a choice between it and the last one.

        Args:
            reached_db: of the last choice, less than is wanted: it was predicted too well by the difference.
        """
        mixes, last, end = self._mixes, self._last, len(self._mixes.predicted) - 1
        if last == end:
            return []
        lead_db = ratio_db(1.0, mixes.predicted[last]) - max(reached_db, -_MOST_DB)
        most = 10 ** (-(self._wanted_db + min(max(lead_db, 0.0), _MOST_DB)) / 10)
        found = mixes.find_cheapest(most, last + 1)
        self._last = (last + 1 + end) // 2 if found == end else found
        return mixes.list_places(self._last)


class CountSearch:
    """More and more groups, one by one, then a quarter more of many.

    The metric of a task moves up and down with single samples, and halving would miss small numbers.
    """

    def __init__(self, order: Sequence[int]) -> None:
        """Take the places of all groups, those first that are tried first."""
        self._order, self._count = order, 0

    def choose(self, reached: float) -> list[int]:
        """Return the places of groups that get the other format; none once nothing is left to try."""
        count, self._count = self._count, min(len(self._order), self._count + max(1, self._count // 4))
        return [] if self._count == count else list(self._order[: self._count])


def open_search(mixes: Mixes, aim: Aim, by_metric: bool = False) -> NoiseSearch | CountSearch:
    """Return the search of groups for the other format: by noise, which tells nothing of a metric."""
    if isinstance(aim, SqnrAim):
        return NoiseSearch(mixes, aim.wanted)
    return CountSearch(mixes.ranking.by_gain(by_metric))
