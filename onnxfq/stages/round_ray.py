"""`round_on_ray`: weights rounded by the workers of a Ray cluster; no layer needs another one."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from itertools import groupby
from typing import Any

from onnxfq.calibration.weights import RoundedWeight, RoundingJob, round_weight
from onnxfq.stages.layer_inputs import Layer
from onnxfq.stages.ray_cluster import Cluster, collect_results, count_workers


def round_on_ray(
    jobs: Iterable[tuple[Layer, RoundingJob]], address: str, threads: int
) -> Iterator[tuple[Layer, RoundedWeight]]:
    """Yield each layer with its rounded weight, in the order of `jobs`.

    Args:
        jobs: layers and the arguments of `round_weight`; one task rounds neighbours with the same moments,
            so that their factors are computed once.
        address: of the cluster, or "local" for the cores of this machine.
        threads: cores of this machine, 0 for all.

    Raises RuntimeLibraryError if ray is missing or the cluster does not answer.
    """
    waiting: deque[list[Layer]] = deque()

    def tasks() -> Iterator[Callable[[], Any]]:
        for _, same in groupby(jobs, lambda job: id(job[1].moments)):
            layers, shared = zip(*same, strict=True)
            waiting.append(list(layers))
            yield partial(task.remote, shared)

    with Cluster(address, threads) as ray:
        task = ray.remote(num_cpus=1, max_retries=-1)(_round_all)
        for made in collect_results(ray, tasks(), count_workers(ray)):
            yield from zip(waiting.popleft(), made, strict=True)


def _round_all(jobs: Sequence[RoundingJob]) -> list[RoundedWeight]:
    return [round_weight(*job) for job in jobs]
