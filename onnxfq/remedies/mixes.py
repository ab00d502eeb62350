"""`Mixes`: which groups of layers get other formats, by the noise that each of them makes alone.

Powers of noise add: through activations that are rounded again, the noises of two layers are not coherent.
A run with all groups corrects the sum.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from onnxfq.data import Feed
from onnxfq.documents.override import Override
from onnxfq.documents.recipe import Recipe
from onnxfq.documents.sensitivity import FLOAT, WEIGHTS, GroupRemedy, MixPoint, Sensitivity
from onnxfq.execution.toggled_segments import State
from onnxfq.judging.accuracy_target import Aim, SqnrAim
from onnxfq.judging.candidate import Candidate
from onnxfq.judging.judge import GAINED_SHARE, Judge
from onnxfq.layers.quantizer_toggles import QuantizerToggles
from onnxfq.numerics.knapsack import Choices, Items, list_choices
from onnxfq.numerics.metrics import ratio_db
from onnxfq.numerics.qtypes import qtype_by_name
from onnxfq.targets.recipes import RECIPES

_LOUDEST = 1e12
"""Noise in place of an infinite one, so that sums tell what the others add."""

_FLOAT_BITS = 16
"""Bits of what stays in float, in the engines of GPUs."""

_SHOWN = 10**0.1
"""Ratio of the noise of two mixes that are listed: a dB."""

_MOST_DB = 20.0
"""Difference in dB that one step makes up for: a figure that is not finite differs by no number of dB."""


def list_times(recipe: Recipe, formats: Sequence[str]) -> NDArray[np.float64]:
    """Return the time that each format adds, as a share of what float adds; no change is free."""
    own = (recipe.activations or recipe.weights).qtype.bits
    bits = np.array([_count_bits(name) for name in formats])
    return np.asarray((1.0 + np.maximum(bits - own, 0)) / (1.0 + _FLOAT_BITS - own))


def _count_bits(name: str) -> int:
    scheme = RECIPES[name].activations if name in RECIPES else None
    if scheme is not None:
        return scheme.qtype.bits
    return _FLOAT_BITS if name in (FLOAT, WEIGHTS, *RECIPES) else qtype_by_name(name).bits


@dataclass(frozen=True)
class Mixes:
    """Noise and costs of groups of layers in their own format and in others.

    Attributes:
        ranking: of the groups, by their noise in their own format.
        formats: the others: FLOAT, WEIGHTS, number formats or names of recipes.
        noises: noise-to-signal ratio of the outputs with one group alone, [group, 1 + format]: in its own
            format, and in each other.
        whole: the same with all groups in one format, [1 + format].
        costs: of each format by group, [group, 1 + format]; none for its own.
    """

    ranking: Sensitivity
    formats: tuple[str, ...]
    noises: Items
    whole: NDArray[np.float64]
    costs: Items

    @staticmethod
    def unmeasured(
        ranking: Sensitivity, formats: Sequence[str] = (FLOAT,), times: Sequence[float] | Items = (1.0,)
    ) -> Mixes:
        """Return the mixes with `formats` as if they added no noise, which is known of float alone.

        Args:
            ranking: of the groups.
            formats: the others.
            times: that each adds, for a group that in float adds its price.
        """
        alone = np.minimum([group.noise for group in ranking.groups], _LOUDEST)[:, None]
        prices = np.array([group.price or 1.0 / len(alone) for group in ranking.groups])
        noises = np.concatenate([alone, np.zeros((len(alone), len(formats)))], axis=1)
        whole = np.array([min(ranking.noise, _LOUDEST), *[0.0] * len(formats)])
        return Mixes(ranking, tuple(formats), noises, whole, np.outer(prices, [0.0, *times]))

    @staticmethod
    def measure(
        candidate: Candidate,
        judge: Judge,
        ranking: Sensitivity,
        feeds: Sequence[Feed],
        formats: Sequence[str],
    ) -> Mixes:
        """Return the mixes with `formats`, whose noise `feeds` tell."""
        made = Mixes.unmeasured(ranking, formats, list_times(candidate.recipe, formats))
        for item, name in enumerate(formats, 1):
            if name == FLOAT:
                continue
            changed = dict.fromkeys(range(len(ranking.groups)), name)
            board = apply(candidate, judge, ranking, changed).open_toggles(judge.options)
            groups = [board.reading(group.nodes, group.tensors) for group in ranking.groups]
            states = [board.everything, *(board.enable([group]) for group in groups)]
            made.whole[item], *made.noises[:, item] = np.minimum(board.noise(feeds, states), _LOUDEST)
        return made

    def predict(self, items: NDArray[np.int64]) -> NDArray[np.float64]:
        """Return the noise of mixes, [mix, group]: the item of each group, 0 for its own format."""
        sums = np.stack([items == item for item in range(len(self.whole))], axis=2) * self.noises
        sums, total = sums.sum(axis=1), self.noises.sum(axis=0)
        known = (total > 0.0) & (self.whole > 0.0)
        factors = np.log(np.where(known, self.whole, 1.0) / np.where(known, total, 1.0))
        shares = sums / np.where(known, total, 1.0)
        return np.asarray(sums.sum(axis=1) * np.exp(shares @ factors))

    @cached_property
    def choices(self) -> Choices:
        """The mixes of least noise for their costs, the cheapest first."""
        return list_choices(self.noises, self.costs)

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

    def list_formats(self, choice: int) -> dict[int, str]:
        """Return the other formats of a choice by place in the ranking, most gain for its cost first."""
        items = self.choices.items[choice]
        changed = np.flatnonzero(items).tolist()
        formats = {at: self.formats[items[at] - 1] for at in changed}
        return dict(sorted(formats.items(), key=lambda pair: -self._gain(pair[0], 0, int(items[pair[0]]))))

    def list_upgrades(self) -> list[tuple[int, str]]:
        """Return all steps to a dearer format by place in the ranking, most gain for its cost first.

        A group may take several: each leads to a dearer format, and gains less for its cost.
        """
        found = list[tuple[float, int, str]]()
        for at, (noises, costs) in enumerate(zip(self.noises, self.costs, strict=True)):
            item = 0
            while more := [
                (self._gain(at, item, to), -to)
                for to in range(1, len(noises))
                if costs[to] > costs[item] and noises[to] <= noises[item]
            ]:
                gain, item = max(more)[0], -max(more)[1]
                found.append((gain, at, self.formats[item - 1]))
        return [(at, name) for _, at, name in sorted(found, key=lambda step: -step[0])]

    def _gain(self, at: int, before: int, after: int) -> float:
        """Return the noise of a group that goes for the cost, from one item to another."""
        noises, costs = self.noises[at], self.costs[at]
        return float((noises[before] - noises[after]) / max(costs[after] - costs[before], 1e-12))

    def trace(self, formats: Mapping[int, str]) -> dict[str, Any]:
        """Return the mixes of least noise, a dB apart, and the place of `formats` among them.

        They are fields of a remedy.
        """
        items = np.zeros((1, len(self.noises)), np.int64)
        for at, name in formats.items():
            items[0, at] = 1 + self.formats.index(name)
        shown = list[int]()
        for at, noise in enumerate(self.predicted):
            if not shown or noise <= self.predicted[shown[-1]] / _SHOWN:
                shown.append(at)
        mixes = np.unique(np.concatenate([self.choices.items[shown], items]), axis=0)
        costs = np.take_along_axis(self.costs, mixes.T, axis=1).sum(axis=0)
        order, noises = np.argsort(costs, kind="stable"), self.predict(mixes)
        points = [
            MixPoint(cost=costs[at], noise=noises[at], changed=int(np.count_nonzero(mixes[at])))
            for at in order
        ]
        chosen = int(np.flatnonzero((mixes[order] == items).all(axis=1))[0])
        return {"frontier": tuple(points), "chosen": chosen}


def apply(candidate: Candidate, judge: Judge, ranking: Sensitivity, formats: Mapping[int, str]) -> Candidate:
    """Return `candidate` with other formats for groups, by their places in the ranking."""
    in_float = [at for at, name in formats.items() if name == FLOAT]
    others = {at: name for at, name in formats.items() if name != FLOAT}
    overrides = [*name_overrides(ranking, others), *ranking.float_overrides(in_float)]
    return candidate.with_overrides(overrides, judge.sources.encodings, judge.options)


def name_overrides(ranking: Sensitivity, formats: Mapping[int, str]) -> list[Override]:
    """Return an override of a recipe for each format that groups have, by their places in the ranking."""
    return [
        ranking.override([at for at, one in formats.items() if one == name], RECIPES.get(name, name))
        for name in dict.fromkeys(formats.values())
    ]


def with_remedy(
    ranking: Sensitivity, formats: Mapping[int, str], mixes: Mixes | None = None, **fields: Any
) -> Sensitivity:
    """Return `ranking` with the remedy of other formats, by their places in it.

    Args:
        ranking: of the groups.
        formats: of the remedy.
        mixes: from which they were chosen; None where their noise was not measured.
        fields: others of a `GroupRemedy`.
    """
    traced = {} if mixes is None else mixes.trace(formats)
    kept, names, multiplies = tuple(formats), tuple(formats.values()), ranking.multiplies(formats)
    remedy = GroupRemedy(kept=kept, formats=names, multiplies=multiplies, **fields, **traced)
    return ranking.model_copy(update={"remedy": remedy})


def switch_off(board: QuantizerToggles, ranking: Sensitivity, places: Iterable[int]) -> State:
    """Return the switches with the groups at `places` of the ranking in float."""
    tensors = [tensor for at in places for tensor in ranking.groups[at].tensors]
    return board.enable(board.single(tensors), on=False)


class NoiseSearch:
    """Choices that come closer to an SQNR, by what those before them had."""

    def __init__(self, mixes: Mixes, wanted_db: float) -> None:
        """Begin behind the choice that changes nothing."""
        self._mixes, self._wanted_db, self._last = mixes, wanted_db, 0

    def choose(self, reached_db: float) -> dict[int, str]:
        """Return other formats of groups by their places; none once nothing is left to try.

        All that there is comes last: before it comes a choice between it and the last one.

        Args:
            reached_db: of the last choice, less than is wanted: it was predicted too well by the difference.
        """
        mixes, last, end = self._mixes, self._last, len(self._mixes.predicted) - 1
        if last == end:
            return {}
        lead_db = ratio_db(1.0, mixes.predicted[last]) - max(reached_db, -_MOST_DB)
        most = 10 ** (-(self._wanted_db + min(max(lead_db, 0.0), _MOST_DB)) / 10)
        found = mixes.find_cheapest(most, last + 1)
        self._last = (last + 1 + end) // 2 if found == end else found
        return mixes.list_formats(self._last)


class CountSearch:
    """More and more steps to another format, one by one, then a quarter more of many.

    The metric of a task moves up and down with single samples, and halving would miss small numbers.
    """

    def __init__(self, steps: Sequence[tuple[int, str]]) -> None:
        """Take the places of groups and their other formats, those first that are tried first."""
        self._steps, self._count = steps, 0

    def choose(self, reached: float) -> dict[int, str]:
        """Return other formats of groups by their places; none once nothing is left to try."""
        count, self._count = self._count, min(len(self._steps), self._count + max(1, self._count // 4))
        return {} if self._count == count else dict(self._steps[: self._count])


def open_search(mixes: Mixes, aim: Aim) -> NoiseSearch | CountSearch:
    """Return the search of groups for other formats: by noise, or by steps for a metric.

    Groups that a metric has ranked get one format, those first that drop it most.
    """
    if isinstance(aim, SqnrAim):
        return NoiseSearch(mixes, aim.wanted)
    if mixes.ranking.metric is not None:
        return CountSearch([(at, mixes.formats[0]) for at in mixes.ranking.by_gain()])
    return CountSearch(mixes.list_upgrades())
