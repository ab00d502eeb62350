"""On-device statistics: states in device memory until the last feed has run."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from onnxfq.calibration.statistics import Observed, empty_state
from onnxfq.calibration.statistics.channel_ranges import ChannelNames
from onnxfq.calibration.statistics.state import STATE_HEADER, StateNames
from onnxfq.data import DataDigest, Feed
from onnxfq.runtime.devices import Place
from onnxfq.runtime.session import Session

Heads = tuple[NDArray[np.int64], NDArray[np.int64]]
"""Heads after a feed: of all states [states, 8], and of the feed alone, [0, 8] if not recorded."""

_STATES_AT_ONCE = 64
"""States per transfer: 17 MB."""


class Gathering:
    """The states of one pass over some feeds, bound to a session."""

    def __init__(self, session: Session, observed: Sequence[Observed], place: Place) -> None:
        """Put empty states of `observed` into `place`, the memory of the session's device.

        Raises DeviceMemoryError without room.
        """
        self._session = session
        self.bindings = session.bindings()
        """Bindings of the states; model inputs that are the same for every feed may be bound here too."""
        ends = np.cumsum([0, *(tensor.groups for tensor in observed)]).tolist()
        self.rows = [slice(start, stop) for start, stop in pairwise(ends)]
        """Range of states of each tensor."""
        self._total = ends[-1]
        self._kept = ends[-1] if any(tensor.feed_ranges for tensor in observed) else 0
        state = empty_state()
        self._states = place.rows(self._total, state.size, state[:STATE_HEADER])
        self._of_feed = place.rows(self._kept, STATE_HEADER, state[:STATE_HEADER])
        self._channels: dict[str, NDArray[np.float32]] = {}  # [2, channels]
        for tensor, own in zip(observed, self.rows, strict=True):
            groups = () if tensor.shape is None else (tensor.groups,)
            names = StateNames.from_tensor(tensor.tensor)
            at = self._states.address + own.start * state.nbytes
            self._bind(np.int64, (*groups, state.size), at, names.merged, names.given)
            if self._kept:
                at = self._of_feed.address + own.start * STATE_HEADER * state.itemsize
                self._bind(np.int64, (*groups, STATE_HEADER), at, names.of_feed)
            if tensor.channels:
                self._bind_channels(tensor, place)

    def _bind_channels(self, observed: Observed, place: Place) -> None:
        names = ChannelNames.from_tensor(observed.tensor)
        ranges = np.repeat(np.asarray([[np.inf], [-np.inf]], np.float32), observed.channels, axis=1)
        at = place.updated(ranges)
        for given, merged in zip(names.given, names.merged, strict=True):
            self._bind(np.float32, (observed.channels,), at, merged, given)
            at += ranges.strides[0]
        self._channels[observed.tensor] = ranges

    def _bind(self, dtype: type, shape: tuple[int, ...], at: int, output: str, given: str = "") -> None:
        """Bind memory to an output of the model, and to the input `given` that it replaces."""
        memory = (self._session.device, 0, dtype, shape, at)
        if given:
            self.bindings.bind_input(given, *memory)
        self.bindings.bind_output(output, *memory)

    def run(
        self, feeds: Iterable[Feed], digest: Callable[[Feed], DataDigest]
    ) -> Iterator[tuple[Heads, DataDigest]]:
        """Yield the heads after every feed, and its digest; the next feed is read while the device works.

        Therefore nobody may overwrite the arrays of a feed, see `data.feeds`.
        """
        with ThreadPoolExecutor(1) as pool:
            flying: tuple[Future[Heads], DataDigest] | None = None
            for feed in feeds:
                own = digest(feed)
                if flying is not None:
                    yield flying[0].result(), flying[1]
                flying = pool.submit(self.add, feed), own
            if flying is not None:
                yield flying[0].result(), flying[1]

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

    def channels(self, tensor: str) -> NDArray[np.float32]:
        """Return the range of each channel, [C, 2], after `place` has copied the states back."""
        return np.ascontiguousarray(self._channels[tensor].T)
