"""`SpreadNoise`: the noise of many states of a switchboard, measured by a Ray cluster.

A state depends on no other one, and a feed runs on one thread. The results are therefore equal to the bit.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import onnx

from onnxfq.data import Feed
from onnxfq.documents.plan import Plan
from onnxfq.runtime.custom_ops import list_custom_ops, use_custom_ops
from onnxfq.runtime.session import Progress
from onnxfq.stages.ray_cluster import Cluster, count_workers, fetch_result
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

    def __enter__(self) -> SpreadNoise:
        """Connect and send the model. Raises RuntimeLibraryError if the cluster does not answer."""
        self._ray = self._cluster.__enter__()
        self._work = self._ray.put(_Work.from_board(self._board))
        self._feeds: tuple[Sequence[Feed], Any] | None = None
        return self

    def __exit__(self, *exception: object) -> None:
        self._cluster.__exit__(*exception)

    def __call__(
        self, feeds: Sequence[Feed], states: Sequence[State], progress: Progress | None = None
    ) -> list[float]:
        """Return what `Switchboard.noise` returns."""
        ray = self._ray
        if self._feeds is None or self._feeds[0] is not feeds:
            self._feeds = feeds, ray.put(list(feeds))
        sent = self._feeds[1]
        task = ray.remote(num_cpus=1, max_retries=-1)(_measure_states)
        workers = max(1, count_workers(ray))
        # Neighbours share the tensors before them; two tasks for each worker even out their times.
        size = max(1, -(-len(states) // (2 * workers)))
        shards = [list(states[first : first + size]) for first in range(0, len(states), size)]
        out = [task.remote(self._work, sent.hex(), sent, shard) for shard in shards]
        found: list[float] = []
        for reference in out:
            found += fetch_result(ray, reference)
            if progress is not None:
                progress(len(found) * len(feeds))
        return found


@dataclass(frozen=True)
class _Work:
    """Input of a worker: sent once, kept by every machine."""

    model: bytes
    plan: str
    logits: tuple[str, ...]
    results: tuple[str, ...]
    libraries: tuple[str, ...]

    @staticmethod
    def from_board(board: Switchboard) -> _Work:
        return _Work(
            board.proto.SerializeToString(),
            board.plan.model_dump_json(),
            tuple(board.logits),
            tuple(board.results),
            list_custom_ops(),
        )

    def open(self) -> Switchboard:
        for path in self.libraries:
            use_custom_ops(path)
        proto, plan = onnx.ModelProto.FromString(self.model), Plan.model_validate_json(self.plan)
        return Switchboard(proto, plan, self.logits, self.results, threads=1)


# One model per worker process, with the feeds that it was last measured on: it keeps their float results.
_opened: dict[str, tuple[Switchboard, list[Feed]]] = {}


def _measure_states(work: _Work, name: str, feeds: list[Feed], states: list[State]) -> list[float]:
    if name not in _opened:
        _opened.clear()
        _opened[name] = work.open(), feeds
    board, kept = _opened[name]
    return board.noise(kept, states)
