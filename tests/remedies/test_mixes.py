"""Mixes of formats: what is predicted of them, which are chosen, and how a search goes on."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from builders import build, weights

import onnxfq
from onnxfq.documents.sensitivity import GroupNoise, Sensitivity
from onnxfq.judging.candidate import Sources, build_candidate
from onnxfq.layers.quantizer_toggles import QuantizerToggles, first_feeds
from onnxfq.numerics.metrics import ratio_db
from onnxfq.remedies.mixes import CountSearch, Mixes, NoiseSearch
from onnxfq.remedies.sensitivity import rank_groups
from onnxfq.stages.inputs import open_inputs
from onnxfq.stages.options import QuantizeOptions

WIDTH = 32


def ranking(noises: list[float], prices: list[float], together: float = 1.0) -> Sensitivity:
    """Groups with these figures; all of them make `together` times the sum."""
    groups = tuple(
        GroupNoise(tensors=(f"t{at}",), nodes=(f"n{at}",), op_types=("MatMul",), noise=noise, price=price)
        for at, (noise, price) in enumerate(zip(noises, prices, strict=True))
    )
    whole = sum(noises) * together
    return Sensitivity(model_sha256="", recipe="", outputs=("y",), samples=1, noise=whole, groups=groups)


def open_board() -> tuple[QuantizerToggles, Sensitivity]:
    """Ten layers of ReLU networks side by side and in a row, and the noise of each."""
    lines = [f"h{n} = MatMul (r{n - 1}, w{n}) r{n} = Relu (h{n})" for n in range(1, 11)]
    text = f"g (float[N,{WIDTH}] r0) => (float[N,{WIDTH}] h10) {{ {' '.join(lines)} }}"
    proto = build(text, {f"w{n}": weights(WIDTH, WIDTH, seed=n) * np.float32(0.3) for n in range(1, 11)})
    data = {"r0": np.random.default_rng(0).normal(size=(64, WIDTH)).astype(np.float32)}
    recipe, options = onnxfq.load_recipe("tensorrt-int8"), QuantizeOptions()
    session = open_inputs(proto, data, recipe, options, observed=False)
    candidate = build_candidate(session, recipe, Sources(), options)
    board = candidate.open_toggles(options)
    return board, rank_groups(board, first_feeds(session.kept, 8), recipe)


def test_powers_add() -> None:
    """Random mixes of a network are predicted within 1 dB in the median; both ends are exact."""
    board, ranked = open_board()
    mixes = Mixes.unmeasured(ranked)
    feeds = [feed for feed, _, _ in board._float.values()]
    rng, errors = np.random.default_rng(0), []
    for share in np.linspace(0.1, 0.9, 30):
        items = (rng.random(len(ranked.groups)) < share).astype(np.int64)
        off = [board.reading((), ranked.groups[at].tensors) for at in np.flatnonzero(items)]
        (noise,) = board.noise(feeds, [board.enable(off, on=False)])
        errors.append(
            abs(ratio_db(1.0, noise) - ratio_db(1.0, mixes.predict(items[None])[0])) if noise else 0.0
        )
    assert np.median(errors) < 1.0
    nothing, everything = mixes.predict(np.array([[0] * len(items), [1] * len(items)]))
    assert nothing == pytest.approx(ranked.noise) and everything == 0.0


@pytest.mark.parametrize("together", [0.5, 1.0, 1.5])
def test_the_cheapest_of_all(together: float) -> None:
    """Among all mixes of eight groups that are predicted to keep a limit, none costs less."""
    rng = np.random.default_rng(3)
    mixes = Mixes.unmeasured(ranking([*rng.exponential(size=8)], [*rng.exponential(size=8)], together))
    every = np.array([*itertools.product((0, 1), repeat=8)])
    noises, costs = mixes.predict(every), every @ mixes.costs[:, 1]
    for limit in np.linspace(0.05, 0.95, 10) * mixes.whole[0]:
        choice = mixes.find_cheapest(limit)
        assert mixes.predicted[choice] <= limit
        assert mixes.choices.weights[choice] == pytest.approx(costs[noises <= limit].min())
    for most in np.linspace(0, costs.max(), 10):
        assert mixes.predicted[mixes.find_best(most)] == pytest.approx(noises[costs <= most].min())


def test_three_formats() -> None:
    """Among all mixes of three formats none has less noise at the cost; steps are the convex ones of each."""
    rng = np.random.default_rng(5)
    alone = np.sort(rng.exponential(size=(6, 3)), axis=1)[:, ::-1]
    mixes = Mixes.unmeasured(
        ranking([*alone[:, 0]], [*rng.exponential(size=6)]), ("half", "double"), (0.5, 1)
    )
    mixes.noises[:], mixes.whole[:] = alone, alone.sum(axis=0)
    every = np.array([*itertools.product(range(3), repeat=6)])
    noises, costs = mixes.predict(every), np.take_along_axis(mixes.costs, every.T, axis=1).sum(axis=0)
    for most in np.linspace(0, costs.max(), 20):
        assert mixes.predicted[mixes.find_best(most)] == pytest.approx(noises[costs <= most].min())
    steps = mixes.list_upgrades()
    assert dict(steps) == dict.fromkeys(range(6), "double") and len(steps) > 6
    known = dict[int, int]()
    gains = list[float]()
    for at, name in steps:
        to = 1 + mixes.formats.index(name)
        before = known.get(at, 0)
        gains.append((alone[at, before] - alone[at, to]) / (mixes.costs[at, to] - mixes.costs[at, before]))
        known[at] = to
    assert gains == sorted(gains, reverse=True)
    formats = mixes.list_formats(len(mixes.predicted) // 2)
    traced = mixes.trace(formats)
    assert traced["frontier"][traced["chosen"]].changed == len(formats)
    assert [point.cost for point in traced["frontier"]] == sorted(point.cost for point in traced["frontier"])


def test_what_is_worth_its_price() -> None:
    """A group stays in float where its dB cost less than they are worth, and none beyond what is wanted."""
    mixes = Mixes.unmeasured(ranking([0.9, 0.05, 0.05], [0.05, 0.05, 0.05]))

    def kept(price: float, most: float, enough: float) -> list[int]:
        return [*mixes.list_formats(mixes.find_worthwhile(price, most, enough))]

    assert kept(price=0.01, most=1.0, enough=0.0) == [0, 1, 2]
    assert kept(price=0.01, most=0.1, enough=0.0) == kept(price=0.01, most=1.0, enough=0.1) == [0]
    assert not kept(price=0.001, most=0.1, enough=0.0) and not kept(price=0.01, most=0.04, enough=0.0)


@pytest.mark.parametrize("reached", [5.0, 19.9, -np.inf])
def test_a_search_by_noise_ends(reached: float) -> None:
    """Each choice costs more than the one before; all groups come last, whatever is reached."""
    search, sizes = NoiseSearch(Mixes.unmeasured(ranking([8.0, 4.0, 2.0, 1.0], [0.25] * 4)), 20.0), []
    while places := search.choose(reached):
        sizes.append(len(places))
    assert sizes == sorted(set(sizes)) and sizes[-1] == 4 and len(sizes) > 1


def test_a_search_by_count() -> None:
    """One more each time, then a quarter more, up to all."""
    search, counts = CountSearch([(at, "float") for at in range(20)]), []
    while formats := search.choose(0.0):
        assert formats == dict.fromkeys(range(len(formats)), "float")
        counts.append(len(formats))
    assert counts == [1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 15, 18, 20]
