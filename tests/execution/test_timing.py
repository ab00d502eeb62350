"""Times in turn, by a clock that the tests move themselves."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np
import pytest

from onnxfq.execution.timing import (
    CONFIDENCE,
    LEAST_ROUNDS,
    MOST_ROUNDS,
    TURN_SECONDS,
    compare_turns,
    find_interval,
    time_in_turn,
)


class Bench:
    """A clock, and runs that move it; `names` has the runs in their order."""

    def __init__(self) -> None:
        self.now = 0.0
        self.names: list[str] = []

    def clock(self) -> float:
        """Return the time."""
        return self.now

    def run(self, name: str, seconds: Callable[[int], float]) -> Callable[[], None]:
        """Return a run that takes `seconds` of its number."""

        def act() -> None:
            self.now += seconds(self.names.count(name))
            self.names.append(name)

        return act


# Conover, Practical Nonparametric Statistics, table of the binomial distribution: 99% of a median.
@pytest.mark.parametrize(
    ("count", "low", "high"), [(8, 1, 8), (11, 1, 11), (12, 2, 11), (15, 3, 13), (20, 4, 17), (25, 6, 20)]
)
def test_interval_has_the_ranks_of_the_tables(count: int, low: int, high: int) -> None:
    """The ends of the interval are the order statistics that the sign test gives."""
    values = list(range(count, 0, -1))
    assert find_interval(values) == (float(np.median(values)), low, high)


def test_interval_covers_the_median() -> None:
    """The interval holds the true median of a skewed distribution as often as it says."""
    samples = np.random.default_rng(0).lognormal(size=(2000, 25))
    held = [one.low <= 1.0 <= one.high for one in map(find_interval, samples.tolist())]
    assert CONFIDENCE - 0.01 <= np.mean(held) <= 1


def test_runs_take_turns() -> None:
    """Every round has one turn of each run, each second one backwards, after a warm-up."""
    bench = Bench()
    times = time_in_turn([bench.run(name, lambda number: 1.0) for name in "abc"], bench.clock, seconds=0)
    assert len(bench.names) == 3 + 3 * LEAST_ROUNDS
    assert "".join(bench.names[3:9]) == "abccba"
    assert times == [[1.0] * LEAST_ROUNDS] * 3


def test_short_runs_are_repeated() -> None:
    """A turn lasts long enough for the clock, and its time is divided by the number of its runs."""
    bench, seconds = Bench(), 2.0**-10
    times = time_in_turn([bench.run("a", lambda number: seconds)], bench.clock)
    assert times[0] == [seconds] * LEAST_ROUNDS
    assert len(bench.names) == 3 + math.ceil(TURN_SECONDS / seconds) * LEAST_ROUNDS


def test_drift_of_the_machine_cancels() -> None:
    """The ratio is right, and borne at once, on a machine that gets slower all the time."""
    bench = Bench()
    slow = lambda seconds: lambda number: seconds * (1 + number / 20)  # noqa: E731
    times = time_in_turn([bench.run("a", slow(0.02)), bench.run("b", slow(0.01))], bench.clock, 1e9)
    assert compare_turns(times[1], times[0]) == pytest.approx((0.5, 0.5, 0.5))
    assert len(times[0]) == LEAST_ROUNDS


def noisy(spread: float, seed: int) -> Callable[[int], float]:
    """Return seconds around 1 with so much noise."""
    draws = np.random.default_rng(seed).lognormal(0, spread, 100_000)
    return lambda number: float(draws[number])


def measure(spread: float, seconds: float) -> Sequence[Sequence[float]]:
    """Return the times of two equal runs with so much noise."""
    bench = Bench()
    return time_in_turn([bench.run(name, noisy(spread, ord(name))) for name in "ab"], bench.clock, seconds)


def test_more_rounds_for_more_noise() -> None:
    """Rounds go on until the ratio is borne; it is then right."""
    times = measure(0.05, math.inf)
    ratio = compare_turns(times[1], times[0])
    assert LEAST_ROUNDS < len(times[0]) < MOST_ROUNDS
    assert ratio.is_borne and ratio.low <= 1 <= ratio.high


def test_noise_bears_no_ratio() -> None:
    """Rounds end with the time that was given, and at MOST_ROUNDS, and the ratio is not borne."""
    for seconds, rounds in ((60.0, range(LEAST_ROUNDS, MOST_ROUNDS)), (math.inf, [MOST_ROUNDS])):
        times = measure(1.0, seconds)
        assert len(times[0]) in rounds
        assert not compare_turns(times[1], times[0]).is_borne
