"""`FedBack`: the state that each of several models feeds back, where the data is a stream of one of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import accumulate
from typing import Any

import numpy as np
from numpy.typing import NDArray

from onnxfq.data import Feed
from onnxfq.runtime.random_numbers import with_seed

STREAM_FEEDS = 5
"""Feeds at the beginning of the data that tell whether it is a stream."""


class FedBack:
    """State that models feed back while they run on the same feeds, one feed after the other.

    The reference takes the state of the data. A feed continues the one before if its state is what the
    reference has returned there; then the other models take what they have returned themselves.
    """

    def __init__(
        self, states: Mapping[str, str], outputs: Sequence[str], known: Sequence[Sequence[Any]] | None = None
    ) -> None:
        """Start without feeds.

        Args:
            states: by output that is fed back, the input that takes it.
            outputs: of the reference, in the order of its results.
            known: results of the reference, if it does not run again; model 0 is then the first other one.
        """
        self._known = known
        self._places = {name: outputs.index(output) for output, name in states.items()}
        self._left: dict[int, Feed] = {}
        self._continued: list[list[str]] = []

    def give(self, model: int, number: int, feed: Feed) -> Feed:
        """Return feed `number` for a model, with its own state where the feed continues the one before.

        Model 0 is the reference, and the first to be given a feed.
        """
        if not model:
            known = self._left.get(0, {}) if number else {}
            self._continued[number:] = [[name for name in known if is_continued(known[name], feed[name])]]
            if self._known is None:
                return feed
            self._left[0] = self._pick(self._known[number])
        model += self._known is not None
        own = {name: self._left[model][name] for name in self._continued[number]}
        # Random numbers depend on the feed: the reference has the same ones.
        return {**with_seed(feed), **own} if own else feed

    def take(self, model: int, outputs: Sequence[Any]) -> None:
        """Keep the state that a model has returned."""
        self._left[model + (self._known is not None)] = self._pick(outputs)

    def _pick(self, outputs: Sequence[Any]) -> Feed:
        return {name: outputs[place] for name, place in self._places.items()}

    def lengths(self, name: str) -> list[int]:
        """Return the lengths of the sequences over which the state of input `name` was fed back."""
        found: list[int] = []
        for names in self._continued:
            if name in names:
                found[-1] += 1
            else:
                found.append(1)
        return found

    @property
    def steps(self) -> list[int]:
        """The number of each feed in its sequence, from 0; a feed that continues any state begins none."""
        return list(accumulate(self._continued, lambda step, names: step + 1 if names else 0, initial=0))[1:]

    @property
    def is_stream(self) -> bool:
        """Whether at least half of the feeds continue the one before; sequences may end in between."""
        return 2 * sum(map(bool, self._continued)) >= max(len(self._continued) - 1, 1)


def is_continued(left: object, taken: NDArray[Any]) -> bool:
    """Tell whether `taken`, the state of a feed, is `left` from the one before, apart from rounding.

    The data may come from another runtime, whose sums round otherwise. Half of the digits of the type of
    the state are those that roundings of a network leave alone; states of other feeds differ in the first.
    """
    if not isinstance(left, np.ndarray) or left.shape != taken.shape or left.dtype != taken.dtype:
        return False
    size = float(np.linalg.norm(left.astype(np.float64)))
    error = float(np.linalg.norm(left.astype(np.float64) - taken.astype(np.float64)))
    return error <= float(np.sqrt(np.finfo(left.dtype).eps)) * size
