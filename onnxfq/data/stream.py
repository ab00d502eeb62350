"""`StreamSamples`: samples of a stream, each behind those that lead to its state."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from onnxfq.data.inputs import Feed

FloatOutputs = dict[tuple[str, ...], dict[int, tuple[Feed, list[Any]]]]
"""A sample, so that its identity lasts, and the tensors of these names, by identity."""


class StreamSamples(list[Feed]):
    """Some samples of recordings.

    Attributes:
        recordings: all kept samples, recording by recording in their order.
        outputs: of the float model on them, as far as they were kept.
    """

    def __init__(
        self,
        chosen: Sequence[Feed],
        recordings: Sequence[Sequence[Feed]] = (),
        outputs: FloatOutputs | None = None,
    ) -> None:
        """Take samples of `recordings`; without any, they are a recording."""
        super().__init__(chosen)
        self.recordings = recordings or [list(chosen)]
        self.outputs: FloatOutputs = {} if outputs is None else outputs

    def part(self, places: slice) -> StreamSamples:
        """Return the samples at `places`."""
        return StreamSamples(self[places], self.recordings, self.outputs)

    def led(self) -> tuple[list[Feed], list[int | None]]:
        """Return each recording up to its last sample of these, and the places of these; None for others.

        A model that runs them all has its own state, which its errors have reached, at each of these.
        """
        places = {id(one): at for at, one in enumerate(self)}
        found: list[tuple[int, list[tuple[Feed, int | None]]]] = []
        for recording in self.recordings:
            given = [(one, places.get(id(one))) for one in recording]
            last = max((at for at, (_, place) in enumerate(given) if place is not None), default=-1)
            if last >= 0:
                found.append((min(place for _, place in given if place is not None), given[: last + 1]))
        pairs = [pair for _, given in sorted(found, key=lambda one: one[0]) for pair in given]
        return [one for one, _ in pairs], [place for _, place in pairs]


def count_runs(samples: Sequence[Feed]) -> int:
    """Return how many feeds are run to measure `samples`."""
    return len(lead_to(samples)[0])


def lead_to(samples: Sequence[Feed]) -> tuple[list[Feed], list[int | None]]:
    """Return what `StreamSamples.led` does; of other samples themselves with their places."""
    return samples.led() if isinstance(samples, StreamSamples) else ([*samples], [*range(len(samples))])
