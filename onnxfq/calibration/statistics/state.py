"""States of operator MergeStatistics: the empty state, and reading of states. See `docs/custom-ops.md`."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from onnxfq.calibration.statistics.bins import BIN_COUNT
from onnxfq.calibration.statistics.kind import Results

STATE_HEADER = 8
"""Length of a state before its histogram."""
STATE_NANS, STATE_INFINITIES = 3, 4


@dataclass(frozen=True)
class StateNames:
    """Names of input and outputs for the state of one tensor in a model that merges statistics.

    Attributes:
        given: input with the state so far.
        merged: output with the state including the run.
        of_feed: output with the state of the run alone, without a histogram, for the range of each feed.
    """

    given: str
    merged: str
    of_feed: str

    @staticmethod
    def from_tensor(tensor: str) -> StateNames:
        """Return the names for `tensor`."""
        return StateNames(*(f"{tensor}/statistics/{part}" for part in ("given", "merged", "of_feed")))


def empty_state(histogram: bool = True, groups: int | None = None) -> NDArray[np.int64]:
    """Return the empty state of operator MergeStatistics: int64 [8], or [8 + BIN_COUNT].

    Args:
        histogram: whether the state has a histogram.
        groups: number of groups with separate statistics, one row each; None for the whole tensor.
    """
    rows = () if groups is None else (groups,)
    state = np.zeros((*rows, STATE_HEADER + (BIN_COUNT if histogram else 0)), np.int64)
    state[..., :2] = np.iinfo(np.int32).max, np.iinfo(np.int32).min
    return state


def state_ranges(states: NDArray[np.int64]) -> NDArray[np.float32]:
    """Return the ranges in states [..., at least STATE_HEADER], float32 [..., 2].

    A state without finite values gives (+inf, -inf).
    """
    keys = states[..., :2].astype(np.int32)
    # Keys of negative floats have their magnitude bits flipped, so that they sort as integers.
    limits = (keys ^ ((keys >> 31) & np.int32(0x7FFFFFFF))).view(np.float32)
    some = states[..., 2] > states[..., STATE_NANS] + states[..., STATE_INFINITIES]
    return np.where(some[..., None], limits, np.asarray([np.inf, -np.inf], np.float32))


def read_state(states: NDArray[np.int64]) -> Results:
    """Return range, counts, bins and bin counts of states, as operator Observe gives them.

    Args:
        states: state of a tensor, int64 [8] or [8 + BIN_COUNT]; or of each of its groups, one per row.
    """
    histogram = states[..., STATE_HEADER:].reshape(-1)
    keys = np.flatnonzero(histogram).astype(np.int32)
    return [state_ranges(states), states[..., 2:6].copy(), keys, histogram[keys]]


def read_states(parts: Iterable[NDArray[np.int64]]) -> Results:
    """Return the results of `read_state` for groups whose states come in parts of some rows."""
    read = [read_state(empty_state(False, 0))]
    done = 0
    for states in parts:
        limits, totals, keys, counts = read_state(states)
        read.append([limits, totals, (done * BIN_COUNT + keys).astype(np.int32), counts])
        done += len(states)
    return [np.concatenate(column) for column in zip(*read, strict=True)]
