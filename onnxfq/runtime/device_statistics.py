"""Statistics gathered where a session runs: states lie in the device's memory until the last feed has run."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import pairwise
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from onnxfq.calibration.statistics import empty_state
from onnxfq.calibration.statistics.tensor import STATE_HEADER
from onnxfq.data import Feed, sample_digest
from onnxfq.runtime.device_memory import Place, Rows
from onnxfq.runtime.session import Session

Heads = tuple[NDArray[np.int64], NDArray[np.int64]]
"""After a feed: heads of all states [states, 8], those of the feed alone, [0, 8] where they are not kept."""

_STATES_AT_ONCE = 64
"""Fetched together: 17 MB."""


class Names(Protocol):
    """The input and the outputs of the model that belong to one tensor's state."""

    @property
    def given(self) -> str:
        """The input that takes the state."""

    @property
    def merged(self) -> str:
        """The output that gives it with the feed's statistics added."""

    @property
    def of_feed(self) -> str:
        """The output that gives the feed's statistics alone, without a histogram."""


class Ends(Protocol):
    """The inputs and the outputs of the model that belong to the ranges of one tensor's channels."""

    @property
    def given(self) -> tuple[str, ...]:
        """The inputs that take the lowest values and the highest."""

    @property
    def merged(self) -> tuple[str, ...]:
        """The outputs that give them with those of the feed."""


class Gathering:
    """The states of one pass over some feeds, bound to a session."""

    def __init__(
        self,
        session: Session,
        names: Sequence[tuple[Names, int | None]],
        channels: Mapping[str, tuple[Ends, int]],
        feed_ranges: bool,
        place: Place,
    ) -> None:
        """Put empty states into `place`, which is that of the session's device.

        names: of each tensor, and its number of groups, each of which has a state; None for one state of the
        whole. channels: by tensor, the names and the number of those whose ranges are kept. feed_ranges:
        fetch the statistics of each feed alone too. Raises DeviceMemoryError without room.
        """
        self._session = session
        self.bindings = session.bindings()
        """Of the states; inputs of the model that do not come with each feed may be bound here too."""
        counts = [1 if groups is None else groups for _, groups in names]
        ends = np.cumsum([0, *counts]).tolist()
        self.rows = [slice(start, stop) for start, stop in pairwise(ends)]
        """Of each tensor, which states are its own."""
        state = empty_state()
        self._states = place.rows(ends[-1], state.size, state[:STATE_HEADER])
        self._bind_states(self._states, state.size, [(n.given, g) for n, g in names], is_input=True)
        self._bind_states(self._states, state.size, [(n.merged, g) for n, g in names])
        self._channels = {
            tensor: np.repeat(np.asarray([[np.inf], [-np.inf]], np.float32), count, axis=1)  # [2, channels]
            for tensor, (_, count) in channels.items()
        }
        for tensor, (of_channels, _) in channels.items():
            address = place.updated(self._channels[tensor])
            self._bind_rows(self._channels[tensor], address, of_channels.given, is_input=True)
            self._bind_rows(self._channels[tensor], address, of_channels.merged)
        self._total, self._kept = ends[-1], ends[-1] if feed_ranges else 0
        self._of_feed = place.rows(self._kept, STATE_HEADER, state[:STATE_HEADER])
        if feed_ranges:
            self._bind_states(self._of_feed, STATE_HEADER, [(n.of_feed, g) for n, g in names])

    def _bind_states(
        self, rows: Rows, size: int, names: Sequence[tuple[str, int | None]], is_input: bool = False
    ) -> None:
        bind = self.bindings.bind_input if is_input else self.bindings.bind_output
        for (name, groups), own in zip(names, self.rows, strict=True):
            shape = (size,) if groups is None else (groups, size)
            at = rows.address + own.start * size * np.dtype(np.int64).itemsize
            bind(name, self._session.device, 0, np.int64, shape, at)

    def _bind_rows(
        self, array: NDArray[Any], address: int, names: Sequence[str], is_input: bool = False
    ) -> None:
        bind = self.bindings.bind_input if is_input else self.bindings.bind_output
        for row, name in enumerate(names):
            at = address + row * array.strides[0]
            bind(name, self._session.device, 0, array.dtype.type, array.shape[1:], at)

    def run(self, feeds: Iterable[Feed]) -> Iterator[tuple[NDArray[np.int64], NDArray[np.int64], int]]:
        """Yield the heads after every feed and its digest; the next is read while the device works.

        So nobody may fill their arrays anew, see `feeds.owned`.
        """
        with ThreadPoolExecutor(1) as pool:
            flying: tuple[Future[Heads], int] | None = None
            for feed in feeds:
                digest = sample_digest(feed)
                if flying is not None:
                    yield *flying[0].result(), flying[1]
                flying = pool.submit(self.add, feed), digest
            if flying is not None:
                yield *flying[0].result(), flying[1]

    def add(self, feed: Feed) -> Heads:
        """Run one feed. Raises as `Session.run`."""
        self._session.run_bound(feed, self.bindings)
        heads = self._states.read(0, self._total, STATE_HEADER)
        return heads, self._of_feed.read(0, self._kept, STATE_HEADER)

    def states(self, tensor: int) -> Iterator[NDArray[np.int64]]:
        """Yield the states of tensor number `tensor`, a few at a time, while `place` is open."""
        own = self.rows[tensor]
        for start in range(own.start, own.stop, _STATES_AT_ONCE):
            stop = min(own.stop, start + _STATES_AT_ONCE)
            yield self._states.read(start, stop, empty_state().size)

    def channels(self) -> dict[str, NDArray[np.float32]]:
        """Return the range of each channel, [C, 2] by tensor, once `place` has given the states back."""
        return {tensor: np.ascontiguousarray(ends.T) for tensor, ends in self._channels.items()}
