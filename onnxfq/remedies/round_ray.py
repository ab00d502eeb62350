"""`round_on_ray`: weights rounded by the workers of a Ray cluster; no layer needs another one."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby

from onnxfq.calibration.weights import RoundedWeight, RoundingJob, round_weight
from onnxfq.execution.cluster import Cluster
from onnxfq.remedies.weighted_layers import WeightedLayer


def round_on_ray(
    jobs: Iterable[tuple[WeightedLayer, RoundingJob]], address: str, threads: int
) -> Iterator[tuple[WeightedLayer, RoundedWeight]]:
    """Yield each layer with its rounded weight, in the order of `jobs`.

    Args:
        jobs: layers and the arguments of `round_weight`; one task rounds neighbours with the same moments,
            so that their factors are computed once.
        address: of the cluster, or "local" for the cores of this machine.
        threads: cores of this machine, 0 for all.

    Raises RuntimeLibraryError if ray is missing or the cluster fails.
    """
    waiting: deque[list[WeightedLayer]] = deque()

    def arguments() -> Iterator[tuple[Sequence[RoundingJob]]]:
        for _, same in groupby(jobs, lambda job: id(job[1].moments)):
            layers, shared = zip(*same, strict=True)
            waiting.append(list(layers))
            yield (shared,)

    with Cluster(address, threads) as cluster:
        for made in cluster.map(_round_all, cluster.put_opening(str), arguments()):
            yield from zip(waiting.popleft(), made, strict=True)


def _round_all(opened: object, jobs: Sequence[RoundingJob]) -> list[RoundedWeight]:
    return [round_weight(job) for job in jobs]
