"""`collect_on_ray`: statistics from a Ray cluster, merged exactly.

A shard is a stateless task: if its worker dies, Ray runs it again elsewhere, and no feed is lost or counted
twice.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from functools import partial

from onnxfq.calibration.statistics import Statistics
from onnxfq.data import Feed, copy_feeds
from onnxfq.documents.plan import Plan
from onnxfq.errors import RuntimeLibraryError
from onnxfq.execution.cluster import Cluster, split_shards
from onnxfq.graph.model import Model
from onnxfq.runtime.device_choice import choose_device
from onnxfq.runtime.devices import Device
from onnxfq.stages.observe import ObservationInterrupted, skip_resumed
from onnxfq.stages.observers import ObserveOptions, StatisticsObserver, observer_on
from onnxfq.targets.target import prepare_model


def collect_on_ray(
    model: Model,
    plan: Plan,
    feeds: Iterable[Feed],
    address: str,
    options: ObserveOptions | None = None,
    start: Statistics | None = None,
) -> Statistics:
    """Return what `collect_statistics` returns, byte for byte, gathered by the workers of a Ray cluster.

    Every worker needs onnxfq and the same kind of processor: onnxruntime rounds differently with other vector
    instructions. Custom-op libraries and data files of the model are read at the same absolute paths. Device
    "any" is the CPU, because workers must not differ; with "cuda" each worker takes a GPU.

    Args:
        model: as for `collect_statistics`.
        plan: as for `collect_statistics`.
        feeds: the data.
        address: of the cluster, or "local" for the cores of this machine.
        options: as for `collect_statistics`.
        start: as for `collect_statistics`.

    Raises as `collect_statistics`, and RuntimeLibraryError if ray is missing or the cluster fails or has no
    GPU.
    """
    options = options or ObserveOptions()
    plan.check_model(model.sha256)
    model = prepare_model(model, plan.target)
    device: Device = "cuda" if options.device == "cuda" else "cpu"
    kind = "GPU" if device == "cuda" else "CPU"
    plain = replace(options, threads=1, progress=None, device=device)
    with Cluster(address, options.threads) as cluster:
        if not cluster.workers(kind):
            raise RuntimeLibraryError(f"the Ray cluster at {address!r} has no {kind}; use device cpu")
        opened = cluster.put_opening(partial(_open, replace(model), plan, plain))
        total = None if start is None else replace(start, complete=True)
        try:
            source = copy_feeds(feeds) if start is None else skip_resumed(model, feeds, start)
            shards = split_shards(source, 0 if start is None else start.feeds)
            for observed in cluster.map(_observe_shard, opened, shards, kind=kind):
                total = observed if total is None else total.join(observed)
                if options.progress is not None:
                    options.progress(total.feeds)
        except KeyboardInterrupt:
            so_far = total or Statistics(model.sha256, 0, {})
            raise ObservationInterrupted(replace(so_far, complete=False)) from None
    return total or Statistics(model.sha256, 0, {})


def _open(model: Model, plan: Plan, options: ObserveOptions) -> StatisticsObserver:
    return observer_on(choose_device(options.device), model, plan, options)


def _observe_shard(observer: StatisticsObserver, first: int, shard: list[Feed]) -> Statistics:
    return observer.run(shard, first)
