"""Times of runs that take turns, and the ratios that their noise bears; the clock is an argument."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import ceil, comb
from statistics import median
from time import perf_counter
from typing import NamedTuple

Clock = Callable[[], float]
"""Returns seconds since any start."""

WARM_RUNS, WARM_SECONDS = 3, 1.0
"""Runs before the first turn; fewer, but at least one, if they take so long."""

TURN_SECONDS = 0.005
"""Least time of a turn: a shorter run is repeated, because the clock and its call take time too."""

MOST_REPEATS = 1000

LEAST_ROUNDS, MOST_ROUNDS = 12, 101
"""Rounds in which each run has one turn: the interval of twelve leaves an outlier on each side out."""

SECONDS = 10.0
"""Time after which no further round begins, once LEAST_ROUNDS are over."""

CONFIDENCE = 0.99
"""Confidence of an interval. Rounds end once it is narrow, and so it misses 3 times of 100 in simulations."""

WIDEST = 0.1
"""Largest width of the interval of a ratio, as a share of its lower end, for which the ratio is given."""


class Interval(NamedTuple):
    """A median, and the ends of its interval of confidence."""

    median: float
    low: float
    high: float

    @property
    def is_borne(self) -> bool:
        """Whether it is narrow enough to give the median."""
        return self.high <= self.low * (1 + WIDEST)


def find_interval(values: Sequence[float]) -> Interval:
    """Return the median of `values` and its interval, whatever their distribution.

    The ends are the order statistics whose ranks a binomial distribution of one half leaves out with at most
    1 - CONFIDENCE together. They are the extremes of fewer than eight values, which bear less.

    Source: Conover, Practical Nonparametric Statistics, section 3.2, confidence interval of a quantile.
    """
    ordered, count = sorted(values), len(values)
    outside, rank = 0.0, 0
    while rank < (count - 1) // 2:
        outside += 2 * comb(count, rank) / 2**count
        if outside > 1 - CONFIDENCE:
            break
        rank += 1
    rank = max(rank, 1)
    return Interval(median(ordered), ordered[rank - 1], ordered[-rank])


def compare_turns(times: Sequence[float], reference: Sequence[float]) -> Interval:
    """Return the ratio of the times of two runs, from the ratio of each round: drifts of a round cancel."""
    return find_interval([own / other for own, other in zip(times, reference, strict=True)])


def time_in_turn(
    runs: Sequence[Callable[[], object]], clock: Clock = perf_counter, seconds: float = SECONDS
) -> list[list[float]]:
    """Return the seconds of one run in each round, by run; the first run is the reference of the others.

    After the warm-up the runs take turns, each second round backwards, so that all have the same neighbours.
    Rounds end once every ratio is borne, or once `seconds` are over, but not before LEAST_ROUNDS.

    Args:
        runs: functions whose calls are timed.
        clock: tells the time.
        seconds: time after which no further round begins.
    """
    repeats = [_warm_up(run, clock) for run in runs]
    turns = list(enumerate(zip(runs, repeats, strict=True)))
    times: list[list[float]] = [[] for _ in runs]
    begun = clock()
    for number in range(MOST_ROUNDS):
        for place, (run, count) in turns[::-1] if number % 2 else turns:
            times[place].append(_time_turn(run, count, clock))
        if number + 1 >= LEAST_ROUNDS and (
            clock() - begun >= seconds or all(compare_turns(own, times[0]).is_borne for own in times)
        ):
            break
    return times


def _warm_up(run: Callable[[], object], clock: Clock) -> int:
    """Run a few times; return how many runs a turn has."""
    begun = clock()
    for _ in range(WARM_RUNS):
        before = clock()
        run()
        now = clock()
        if now - begun >= WARM_SECONDS:
            break
    return min(MOST_REPEATS, max(1, ceil(TURN_SECONDS / max(now - before, 1e-9))))


def _time_turn(run: Callable[[], object], count: int, clock: Clock) -> float:
    begun = clock()
    for _ in range(count):
        run()
    return (clock() - begun) / count
