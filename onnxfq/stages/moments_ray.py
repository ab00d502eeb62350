"""`RayMoments`: second moments of the inputs of layers from a Ray cluster, with the bits of one machine.

Sums are integers on the grids of merged ranges, so that no division of the feeds changes a bit. Tasks are
stateless: if a worker dies, Ray runs its task again elsewhere.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Any

import numpy as np
from numpy.typing import NDArray

from onnxfq.calibration.statistics.moments import MomentSums
from onnxfq.calibration.weights import InputMoments
from onnxfq.calibration.weights.recorded_moments import Key, Ranges
from onnxfq.choices import MOMENTS_MEMORY
from onnxfq.data import Feed, copy_feeds
from onnxfq.graph.model import Model
from onnxfq.runtime.session import Progress
from onnxfq.stages.layer_inputs import Layer
from onnxfq.stages.moments import (
    FloatRuns,
    count_samples,
    input_ends,
    layer_keys,
    read_tensors,
    sample_inputs,
    sums_of_inputs,
    sums_of_layers,
)
from onnxfq.stages.ray_cluster import Cluster, count_workers, fetch_in_task, fetch_result, split_shards
from onnxfq.stages.sent_model import SentModel

_Shard = tuple[int, Any]
"""Number of the first feed, and the reference to the feeds."""


class RayMoments:
    """The ranges and sums of `SampledInputs`, from the workers of a cluster.

    Attributes:
        layers: the layers.
        ranges: largest magnitude of each channel, by input.
    """

    def __init__(
        self,
        model: Model,
        layers: Sequence[Layer],
        feeds: Iterable[Feed],
        samples: int,
        address: str,
        *,
        threads: int = 0,
        memory: int = MOMENTS_MEMORY,
        ranges: Ranges | None = None,
        progress: Progress | None = None,
    ) -> None:
        """Prepare the connection.

        Args:
            model: the float model; its workers need onnxfq and the same kind of processor.
            layers: of `find_layers`.
            feeds: the data, read once; the cluster keeps it.
            samples: number of samples over which the rows are spread.
            address: of the cluster, or "local" for the cores of this machine.
            threads: cores of this machine, 0 for all.
            memory: bytes that the runs of a worker, and its temporary file, may each take.
            ranges: the grids; those of the data if None.
            progress: called with the number of feeds whose ranges are known.

        Raises RuntimeLibraryError if ray is missing.
        """
        self.layers = layers
        self.ranges: dict[Key, NDArray[np.float64]] = {} if ranges is None else dict(ranges)
        self._work = _Work(SentModel.of(model), tuple(layers), samples, memory)
        self._feeds, self._progress = feeds, progress
        self._keys = layer_keys(layers)
        self._cluster = Cluster(address, threads)
        self._sums: list[Sequence[Any]] = []

    def __enter__(self) -> RayMoments:
        """Connect, send model and feeds, and find the ranges if none are given.

        Raises RuntimeLibraryError if the cluster does not answer, StatisticsError for NaN and infinities.
        """
        self._ray = self._cluster.__enter__()
        try:
            self._sent = self._ray.put(self._work)
            shards = split_shards(copy_feeds(self._feeds))
            self._shards = [(first, self._ray.put(shard)) for first, shard in shards]
            if not self.ranges:
                self.ranges = self._find_ranges()
        except BaseException:
            self._cluster.__exit__()
            raise
        return self

    def __exit__(self, *exception: object) -> None:
        self._cluster.__exit__(*exception)

    def sum(self, key: Key) -> MomentSums:
        """Return the moments of an input over all feeds. Raises StatisticsError as `sample_inputs`."""
        self._sums = self._sums or self._start_sums()
        number = self._keys.index(key)
        found: MomentSums = reduce(
            MomentSums.merge, (fetch_result(self._ray, part[number]) for part in self._sums)
        )
        return found

    def _find_ranges(self) -> dict[Key, NDArray[np.float64]]:
        task = self._ray.remote(num_cpus=1, max_retries=-1)(_shard_ranges)
        out = [task.remote(self._sent, *shard) for shard in self._shards]
        found: dict[Key, NDArray[np.float64]] = {}
        for number, reference in enumerate(out):
            for key, ends in fetch_result(self._ray, reference).items():
                found[key] = np.maximum(found[key], ends) if key in found else ends
            if self._progress is not None and number + 1 < len(out):
                self._progress(self._shards[number + 1][0])
        return found

    def _start_sums(self) -> list[Sequence[Any]]:
        """Return the references to the sums of each key, for each part of the feeds."""
        ray, count = self._ray, len(self._keys)
        workers = max(1, count_workers(ray))
        task = ray.remote(num_cpus=1, num_returns=count, max_retries=-1)(_part_sums)
        ranges = ray.put(self.ranges)
        size = max(1, -(-len(self._shards) // workers))
        parts = [self._shards[first : first + size] for first in range(0, len(self._shards), size)]
        found = [task.remote(self._sent, ranges, part) for part in parts]
        return [[one] if count == 1 else one for one in found]


def collect_moments_on_ray(
    model: Model, layers: Sequence[Layer], feeds: Iterable[Feed], address: str, threads: int = 0
) -> Iterator[tuple[Layer, InputMoments]]:
    """Yield what `collect_moments` yields, from the workers of the cluster at `address`."""
    with RayMoments(model, layers, feeds, count_samples(model, feeds), address, threads=threads) as found:
        yield from sums_of_layers([found])


@dataclass(frozen=True)
class _Work:
    """Input of a worker: sent once, kept by every machine."""

    model: SentModel
    layers: tuple[Layer, ...]
    samples: int
    memory: int

    def runs(self) -> FloatRuns:
        return FloatRuns(self.model.open(), read_tensors(self.layers), threads=1, memory=self.memory)


# One model per worker process: its session serves all tasks of the process.
_opened: dict[tuple[str, frozenset[str]], FloatRuns] = {}


def _runs(work: _Work) -> FloatRuns:
    key = work.model.sha256, frozenset(read_tensors(work.layers))
    if key not in _opened:
        for runs in _opened.values():
            runs.close()
        _opened.clear()
        _opened[key] = work.runs()
    return _opened[key]


def _shard_ranges(work: _Work, first: int, shard: list[Feed]) -> dict[Key, NDArray[np.float64]]:
    return input_ends(_runs(work), shard, layer_keys(work.layers), first)


def _part_sums(work: _Work, ranges: Ranges, shards: list[_Shard]) -> Iterator[MomentSums] | MomentSums:
    """Return the sums of each input; Ray takes them one after the other, so that memory holds one."""
    first, feeds = shards[0][0], _Fetched(shards)
    parts = sample_inputs(_runs(work), work.layers, feeds, work.samples, work.memory, ranges, first)
    found = (sums for _, _, sums in sums_of_inputs(parts))
    return next(found) if len(layer_keys(work.layers)) == 1 else found


@dataclass(frozen=True)
class _Fetched:
    """The feeds of some shards, fetched one shard after the other, as often as they are read."""

    shards: list[_Shard]

    def __iter__(self) -> Iterator[Feed]:
        for _, reference in self.shards:
            yield from fetch_in_task(reference)
