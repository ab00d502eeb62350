"""`run_sides`: several models on the same feeds, one feed at a time."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from itertools import chain, islice
from typing import Any

import onnx

from onnxfq.choices import DEFAULT_MEMORY, DeviceChoice
from onnxfq.data import Feed, copy_feeds
from onnxfq.errors import DataError, DeviceMemoryError, ModelError
from onnxfq.execution.given_choices import GivenChoices
from onnxfq.execution.sequences import FedBack
from onnxfq.graph.external.sizes import ONE_PIECE, limit_in_memory, weight_bytes
from onnxfq.graph.segments import count_alive
from onnxfq.graph.signature import with_outputs
from onnxfq.runtime.device_choice import choose_device, fall_back
from onnxfq.runtime.devices import Device
from onnxfq.runtime.parallel_runs import ParallelRuns
from onnxfq.runtime.random_numbers import SEED_INPUT
from onnxfq.runtime.segmented_session import SegmentedSession, open_in_segments
from onnxfq.runtime.session import PlacedFeed, Session
from onnxfq.targets.target import Opener

LEAST_FEEDS = 8
"""Feeds from which a standard error means something."""


WEIGHT_FEEDS = 2
"""Feeds on which the noise of weights alone is measured: enough to tell whether it is half of the whole."""


Outputs = list[Any]
"""Outputs of a model on one feed: arrays, maps, sequences."""


@dataclass(frozen=True)
class OpenedModel:
    """A model in the runtime of a target, with the method of a session."""

    compute: Callable[[Feed], Mapping[str, Any]]

    def run(self, feed: Feed | PlacedFeed, names: Sequence[str]) -> Outputs:
        """Return the tensors called `names`; a runtime draws no random numbers from a seed."""
        given = feed.arrays if isinstance(feed, PlacedFeed) else feed
        values = self.compute({name: array for name, array in given.items() if name != SEED_INPUT})
        return [values[name] for name in names]


@dataclass(frozen=True)
class Side:
    """A model and the tensors to fetch from its runs.

    Attributes:
        proto: the model.
        fetches: names of the tensors.
        exact: whether it runs in an exact session.
        opener: opens it in the runtime of a target; None for ONNX Runtime.
        again: inputs to change for one more run on each of the first WEIGHT_FEEDS feeds, if any; the tensors
            of that run follow those of the first.
        takes_choices: whether it is given what the reference chose.
    """

    proto: onnx.ModelProto
    fetches: Sequence[str]
    exact: bool
    again: Feed | None = None
    opener: Opener | None = None
    takes_choices: bool = False

    @property
    def bytes(self) -> int:
        """Bytes of its weights."""
        return weight_bytes(self.proto)

    def session(self, threads: int, device: Device) -> Session | SegmentedSession | OpenedModel:
        """Return a session that can give the tensors."""
        if self.opener is not None:
            return OpenedModel(self.opener(with_outputs(self.proto, self.fetches), threads))
        # Packed, the weights would be in memory twice.
        packed = self.bytes <= limit_in_memory(None)
        proto = with_outputs(self.proto, self.fetches)
        open_session = partial(Session, threads=threads, exact=self.exact, device=device, packed=packed)
        if device != "cpu":
            return open_session(proto)
        return open_in_segments(proto, open_session, self.fetches, given=self.again or ())

    def open_runs(self, threads: int) -> ParallelRuns[Feed, Outputs]:
        """Return runs on a CPU, whose session stays open from one pass to the next; close them."""

        def open_session(count: int) -> Callable[[Feed], Outputs]:
            session = self.session(count, "cpu")
            return lambda feed: session.run(feed, self.fetches)

        return ParallelRuns(
            open_session, threads, DEFAULT_MEMORY // 2, partial(count_alive, self.proto.graph)
        )


Results = list[Outputs]
"""Outputs on one feed by side."""


def run_sides(
    sides: Sequence[Side],
    feeds: Iterable[Feed],
    threads: int,
    wanted: DeviceChoice,
    part: int | None = None,
    fed_back: FedBack | None = None,
    choices: GivenChoices | None = None,
) -> Generator[Results, None, None]:
    """Yield the results of all sides for every feed; the first feed decides whether they run on a GPU.

    With `part`, no feed is run ahead of the part of so many feeds that it belongs to. With `fed_back`, feeds
    run one after the other, and all sides but the first, the reference, are given their own state. The
    reference fills `choices`, unless they are known.
    """
    device = choose_device(wanted)
    source: Iterator[tuple[int, Feed]] = enumerate(copy_feeds(feeds))

    def open_sessions(chosen: Sequence[Side], count: int) -> Callable[[tuple[int, Feed]], Results]:
        sessions = [side.session(count, device) for side in chosen]
        numbers = [[one is side for one in sides].index(True) for side in chosen]

        def place(feed: Feed) -> Feed | PlacedFeed:
            return feed if device == "cpu" else PlacedFeed.from_feed(feed, device)

        def run(numbered: tuple[int, Feed]) -> Results:
            number, feed = numbered
            given = place(feed)  # copied to a GPU once, not once per model
            found: list[Outputs] = []
            for one, side, model in zip(sessions, chosen, numbers, strict=True):
                shared = choices.give(number, feed) if choices is not None and side.takes_choices else feed
                own = shared if fed_back is None else fed_back.give(model, number, shared)
                found.append(one.run(given if own is feed else place(own), side.fetches))
                if fed_back is not None:
                    fed_back.take(model, found[-1])
                if choices is not None and not model and not side.takes_choices:
                    choices.take(number, found[-1])
                if side.again and number < WEIGHT_FEEDS:
                    found[-1] += one.run(place({**shared, **side.again}), side.fetches)
            if choices is not None and model == len(sides) - 1:
                choices.drop(number)
            return found

        return run

    if device != "cpu":
        first = next(source, None)
        if first is None:
            return
        try:
            run = open_sessions(sides, threads)
            results = run(first)
        except (DataError, DeviceMemoryError, ModelError) as error:
            device = fall_back(wanted, device, error)
            source = chain([first], source)
        else:
            yield results
            yield from map(run, source)
            return

    def needed(numbered: tuple[int, Feed]) -> int | None:
        alive = count_alive(sides[0].proto.graph, numbered[1])
        return None if alive is None else alive * len(sides)

    def open_runs(chosen: Sequence[Side]) -> closing[ParallelRuns[tuple[int, Feed], Results]]:
        room = 0 if fed_back else DEFAULT_MEMORY // 2  # without room for a second feed they run in order
        return closing(ParallelRuns(partial(open_sessions, chosen), threads, room, needed))

    parts = iter(lambda: list(islice(source, part)), []) if part else [source]
    if part and any(side.bytes > ONE_PIECE for side in sides):
        # One model at a time, opened again for every part: the weights of two may not fit in memory.
        for numbered in parts:
            found: list[list[Results]] = []
            for side in sides:
                with open_runs([side]) as runs:
                    found.append(list(runs.run(numbered)))
            yield from (list(chain.from_iterable(results)) for results in zip(*found, strict=True))
        return
    with open_runs(sides) as runs:
        for numbered in parts:
            yield from runs.run(numbered)
