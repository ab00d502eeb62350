"""States of operator MergeStatistics, see `docs/custom-ops.md`: the empty one, and reading what they hold."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from onnxfq.calibration.statistics.bins import BIN_COUNT
from onnxfq.calibration.statistics.kind import Observed, Results

STATE_HEADER = 8
"""Numbers of a state before its histogram."""
STATE_NANS, STATE_INFINITIES = 3, 4


@dataclass(frozen=True)
class StateNames:
    """Of a model that merges statistics, the input and the outputs with the state of one tensor.

    given, merged: the state, and the same with the run's statistics added.
    of_feed: the run's alone, without a
    histogram, for the range of each feed.
    """

    given: str
    merged: str
    of_feed: str

    @staticmethod
    def of(tensor: str) -> StateNames:
        """Return the names for `tensor`."""
        return StateNames(*(f"{tensor}/statistics/{part}" for part in ("given", "merged", "of_feed")))


def empty_state(histogram: bool = True, groups: int | None = None) -> NDArray[np.int64]:
    """Return the state of operator MergeStatistics that has seen nothing: int64 [8], or [8 + BIN_COUNT].

    groups: of a tensor that are observed each by itself; the state is then one row for each.
    """
    rows = () if groups is None else (groups,)
    state = np.zeros((*rows, STATE_HEADER + (BIN_COUNT if histogram else 0)), np.int64)
    state[..., :2] = np.iinfo(np.int32).max, np.iinfo(np.int32).min
    return state


def state_ranges(states: NDArray[np.int64]) -> NDArray[np.float32]:
    """Return the ranges that states [..., at least STATE_HEADER] tell of, float32 [..., 2].

    (+inf, -inf) where there was no finite value.
    """
    keys = states[..., :2].astype(np.int32)
    # Keys of negative floats have their magnitude bits flipped, so that they sort as integers.
    limits = (keys ^ ((keys >> 31) & np.int32(0x7FFFFFFF))).view(np.float32)
    some = states[..., 2] > states[..., STATE_NANS] + states[..., STATE_INFINITIES]
    return np.where(some[..., None], limits, np.asarray([np.inf, -np.inf], np.float32))


def read_state(states: NDArray[np.int64]) -> Results:
    """Return what operator Observe would give: range, counts, bins and bin counts.

    Args:
        states: of a tensor, int64 [8] or [8 + BIN_COUNT]; or of each of its groups, one a row.
    """
    histogram = states[..., STATE_HEADER:].reshape(-1)
    keys = np.flatnonzero(histogram).astype(np.int32)
    return [state_ranges(states), states[..., 2:6].copy(), keys, histogram[keys]]


def read_states(parts: Iterable[NDArray[np.int64]]) -> Results:
    """Return what operator Observe would give of groups whose states come some rows after the other."""
    read = [read_state(empty_state(False, 0))]
    done = 0
    for states in parts:
        limits, totals, keys, counts = read_state(states)
        read.append([limits, totals, (done * BIN_COUNT + keys).astype(np.int32), counts])
        done += len(states)
    return [np.concatenate(column) for column in zip(*read, strict=True)]


def state_bytes(observed: Observed) -> int:
    """Return what the states of a tensor with histograms take."""
    return empty_state().nbytes * observed.groups
