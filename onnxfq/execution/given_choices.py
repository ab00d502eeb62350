"""Choices of a float model on feeds, handed to the models that are compared with it."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import onnx

from onnxfq.data import Feed
from onnxfq.graph.signature import with_outputs
from onnxfq.passes.give_choices import given_name
from onnxfq.runtime.random_numbers import with_seed
from onnxfq.runtime.session import Session


def add_choices(feed: Feed, choices: Mapping[str, Any]) -> Feed:
    """Return `feed` with the values of choices, for a model of `with_given_choices`."""
    # Random numbers depend on the feed: the float model has the same ones.
    given = {given_name(name): values for name, values in choices.items()}
    return {**with_seed(feed), **given} if given else feed


def feeds_with_choices(
    proto: onnx.ModelProto, choices: Iterable[str], feeds: Iterable[Feed], threads: int = 0
) -> Iterator[Feed]:
    """Yield `feeds` with the choices that the float model `proto` makes; itself without choices."""
    names = list(choices)
    session = Session(with_outputs(proto, names), threads) if names else None
    for feed in feeds:
        made = [] if session is None else session.run(feed, names)
        yield add_choices(feed, dict(zip(names, made, strict=True)))


class GivenChoices:
    """Choices of the reference by the number of the feed, for the models that run on the same feeds."""

    def __init__(self, choices: Iterable[str], outputs: Sequence[str]) -> None:
        """Start without feeds; `outputs` are the reference's, in the order of its results."""
        self._places = {name: outputs.index(name) for name in choices}
        self._made: dict[int, dict[str, Any]] = {}

    def take(self, number: int, outputs: Sequence[Any]) -> None:
        """Keep the choices of the reference on feed `number`."""
        self._made[number] = {name: outputs[place] for name, place in self._places.items()}

    def watch(
        self, feeds: Iterable[Feed], expected: Iterable[list[Any]]
    ) -> tuple[Iterator[Feed], Iterator[list[Any]]]:
        """Return `feeds`, and the outputs of the reference on each feed that was read."""
        made: deque[list[Any]] = deque()

        def watched() -> Iterator[Feed]:
            for number, (feed, outputs) in enumerate(zip(feeds, expected, strict=False)):
                self.take(number, outputs)
                made.append(outputs)
                yield feed

        return watched(), iter(made.popleft, None)

    def give(self, number: int, feed: Feed) -> Feed:
        """Return feed `number` with the choices."""
        return add_choices(feed, self._made[number])

    def drop(self, number: int) -> None:
        """Forget feed `number`."""
        self._made.pop(number, None)
