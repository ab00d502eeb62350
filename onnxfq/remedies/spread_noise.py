"""`spread_noise`: the noise of many states of a switchboard, measured by a Ray cluster.

A state depends on no other one, and a feed runs on one thread. The results are therefore equal to the bit.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial

from onnxfq.data import Feed
from onnxfq.execution.cluster import Cluster, Sent
from onnxfq.execution.toggled_segments import State
from onnxfq.remedies.quantizer_toggles import QuantizerToggles
from onnxfq.runtime.session import Progress

NoiseOf = Callable[[Sequence[Feed], Sequence[State], Progress | None], list[float]]
"""`QuantizerToggles.noise`, or what measures the same elsewhere."""


@contextmanager
def spread_noise(board: QuantizerToggles, address: str, threads: int) -> Iterator[NoiseOf]:
    """Yield a function that returns what `QuantizerToggles.noise` does; every worker opens the model once.

    Args:
        board: the model; its workers need onnxfq and the same kind of processor.
        address: of the cluster, or "local" for the cores of this machine.
        threads: cores of this machine, 0 for all.

    Raises RuntimeLibraryError if ray is missing or the cluster fails.
    """
    opening = partial(QuantizerToggles, board.proto, board.plan, board.judged, board.results, threads=1)
    with Cluster(address, threads) as cluster:
        # Neighbours share the tensors before them; two tasks for each worker even out their times.
        tasks = 2 * max(1, cluster.workers())
        sent: dict[int, Sent] = {}  # by feeds, which the caller holds

        def noise(feeds: Sequence[Feed], states: Sequence[State], progress: Progress | None) -> list[float]:
            if id(feeds) not in sent:
                sent[id(feeds)] = cluster.put_opening(partial(_Measuring, opening, feeds))
            size = max(1, -(-len(states) // tasks))
            shards = ((list(states[first : first + size]),) for first in range(0, len(states), size))
            found: list[float] = []
            for made in cluster.map(_Measuring.noise, sent[id(feeds)], shards):
                found += made
                if progress is not None:
                    progress(len(found) * len(feeds))
            return found

        yield noise


class _Measuring:
    """A model in a worker with the feeds that it is measured on: it keeps their float results."""

    def __init__(self, opening: Callable[[], QuantizerToggles], feeds: Sequence[Feed]) -> None:
        self._board, self._feeds = opening(), feeds

    def noise(self, states: list[State]) -> list[float]:
        return self._board.noise(self._feeds, states)
