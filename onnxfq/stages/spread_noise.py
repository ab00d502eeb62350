"""`SpreadNoise`: the noise of many states of a switchboard, measured by a Ray cluster.

A state depends on no other one, and a feed runs on one thread. The results are therefore equal to the bit.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from onnxfq.data import Feed
from onnxfq.runtime.session import Progress
from onnxfq.stages.ray_cluster import Cluster, Sent
from onnxfq.stages.switchboard import Switchboard
from onnxfq.stages.switched_segments import State


class SpreadNoise:
    """`Switchboard.noise` on a cluster: every worker opens the model once."""

    def __init__(self, board: Switchboard, address: str, threads: int) -> None:
        """Prepare the connection.

        Args:
            board: the model; its workers need onnxfq and the same kind of processor.
            address: of the cluster, or "local" for the cores of this machine.
            threads: cores of this machine, 0 for all.

        Raises RuntimeLibraryError if ray is missing.
        """
        self._board, self._cluster = board, Cluster(address, threads)
        self._opened: tuple[Sequence[Feed], Sent] | None = None

    def __enter__(self) -> SpreadNoise:
        """Connect. Raises RuntimeLibraryError if the cluster does not answer."""
        self._cluster.__enter__()
        return self

    def __exit__(self, *exception: object) -> None:
        self._cluster.__exit__(*exception)

    def __call__(
        self, feeds: Sequence[Feed], states: Sequence[State], progress: Progress | None = None
    ) -> list[float]:
        """Return what `Switchboard.noise` returns. Raises RuntimeLibraryError if the cluster fails."""
        if self._opened is None or self._opened[0] is not feeds:
            board = self._board
            opening = partial(Switchboard, board.proto, board.plan, board.logits, board.results, threads=1)
            self._opened = feeds, self._cluster.put_opening(partial(_Measuring, opening, list(feeds)))
        # Neighbours share the tensors before them; two tasks for each worker even out their times.
        size = max(1, -(-len(states) // (2 * max(1, self._cluster.workers()))))
        shards = ((list(states[first : first + size]),) for first in range(0, len(states), size))
        found: list[float] = []
        for made in self._cluster.map(_Measuring.noise, self._opened[1], shards):
            found += made
            if progress is not None:
                progress(len(found) * len(feeds))
        return found


class _Measuring:
    """A model in a worker with the feeds that it is measured on: it keeps their float results."""

    def __init__(self, opening: Callable[[], Switchboard], feeds: list[Feed]) -> None:
        self._board, self._feeds = opening(), feeds

    def noise(self, states: list[State]) -> list[float]:
        return self._board.noise(self._feeds, states)
