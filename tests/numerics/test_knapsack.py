"""Choices of items by groups: against every choice there is."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from onnxfq.numerics import knapsack
from onnxfq.numerics.knapsack import list_choices


def draw(seed: int, groups: int) -> tuple[np.ndarray, np.ndarray]:
    """Values and weights of two or three items a group; whole numbers in every third draw."""
    rng = np.random.default_rng(seed)
    values, weights = rng.exponential(size=(2, groups, int(rng.integers(2, 4))))
    return (np.round(4 * values), np.round(4 * weights)) if seed % 3 == 0 else (values, weights)


def test_against_every_choice() -> None:
    """For any weight the choice is the best there is, and each one weighs what it says."""
    for seed in range(200):
        values, weights = draw(seed, 1 + seed % 7)
        rows = np.arange(len(values))
        every = [np.array(one) for one in itertools.product(range(values.shape[1]), repeat=len(values))]
        sums = np.array([(weights[rows, one].sum(), values[rows, one].sum()) for one in every])
        found = list_choices(values, weights)
        for items, weight in zip(found.items, found.weights, strict=True):
            assert weights[rows, items].sum() == pytest.approx(weight)
            fitting = sums[sums[:, 0] <= weight * (1 + 1e-12), 1]
            assert values[rows, items].sum() == pytest.approx(fitting.min())
        lightest = sums[sums[:, 0] <= sums[:, 0].min() * (1 + 1e-12), 1].min()
        assert values[rows, found.items[0]].sum() == pytest.approx(lightest)
        assert values[rows, found.items[-1]].sum() == pytest.approx(values.min(axis=1).sum())


def test_many_groups_lose_next_to_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """With 400 groups nine choices of ten have at most .1 dB of the best of four times as many, all 1 dB."""
    values, weights = draw(1, 400)
    values **= 3  # noises differ by decades
    few = list_choices(values, weights)
    monkeypatch.setattr(knapsack, "STATES", 4 * knapsack.STATES)
    many = list_choices(values, weights)
    assert len(few.weights) < len(many.weights) / 2
    rows = np.arange(400)
    least = np.array([values[rows, items].sum() for items in many.items])
    lost = [
        10
        * np.log10(values[rows, items].sum() / least[np.searchsorted(many.weights, weight * (1 + 1e-12)) - 1])
        for items, weight in zip(few.items, few.weights, strict=True)
    ]
    assert np.quantile(lost, 0.9) < 0.1 and max(lost) < 1.0


def test_the_lists_end() -> None:
    """Weights rise and values fall along the list; equal items leave the first."""
    values, weights = draw(5, 12)
    found = list_choices(values, weights)
    rows = np.arange(12)
    assert (np.diff(found.weights) > 0).all()
    assert (np.diff([values[rows, items].sum() for items in found.items]) < 0).all()
    assert list_choices(np.ones((3, 2)), np.ones((3, 2))).items.tolist() == [[0, 0, 0]]
