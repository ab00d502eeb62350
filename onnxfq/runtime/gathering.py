"""Statistics gathered where a session runs: states lie in the device's memory until the last feed has run."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from onnxfq.feeds import Feed, sample_digest
from onnxfq.runtime.places import Place
from onnxfq.runtime.session import Session
from onnxfq.statistics import TensorStatistics, empty_state
from onnxfq.statistics.tensor import STATE_HEADER

Heads = tuple[NDArray[np.int64], NDArray[np.int64]]
"""After a feed: heads of all states [tensors, 8], those of the feed alone, [0, 8] where they are not kept."""


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
        names: Sequence[Names],
        channels: Mapping[str, tuple[Ends, int]],
        feed_ranges: bool,
        place: Place,
    ) -> None:
        """Put empty states, one for each of `names`, into `place`, which is that of the session's device.

        channels: by tensor, the names and the number of those whose ranges are kept. feed_ranges: fetch the
        statistics of each feed alone too. Raises DeviceMemoryError without room.
        """
        self._session = session
        self._place = place
        self.bindings = session.bindings()
        """Of the states; inputs of the model that do not come with each feed may be bound here too."""
        self._states = np.stack([empty_state()] * len(names))  # [tensors, state]
        states = place.updated(self._states)
        self._bind_rows(self._states, states, [n.given for n in names], is_input=True)
        self._bind_rows(self._states, states, [n.merged for n in names])
        self._channels = {
            tensor: np.repeat(np.asarray([[np.inf], [-np.inf]], np.float32), count, axis=1)  # [2, channels]
            for tensor, (_, count) in channels.items()
        }
        for tensor, (ends, _) in channels.items():
            address = place.updated(self._channels[tensor])
            self._bind_rows(self._channels[tensor], address, ends.given, is_input=True)
            self._bind_rows(self._channels[tensor], address, ends.merged)
        kept = names if feed_ranges else []
        self._of_feed = np.zeros((len(kept), STATE_HEADER), np.int64)
        self._bind_rows(self._of_feed, place.written(self._of_feed), [n.of_feed for n in kept])

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
        return self._place.peek(self._states, STATE_HEADER), self._place.peek(self._of_feed, STATE_HEADER)

    def statistics(self) -> list[TensorStatistics]:
        """Return what was gathered, tensor by tensor, once `place` has given the states back."""
        return [TensorStatistics.from_state(state) for state in self._states]

    def channels(self) -> dict[str, NDArray[np.float32]]:
        """Return the range of each channel, [C, 2] by tensor, once `place` has given the states back."""
        return {tensor: np.ascontiguousarray(ends.T) for tensor, ends in self._channels.items()}
