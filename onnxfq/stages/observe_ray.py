"""`collect_on_ray`: statistics from a Ray cluster, merged exactly.

A shard is a stateless task: if its worker dies, Ray runs it again elsewhere, and no feed is lost or counted
twice.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import partial

from onnxfq.calibration.statistics import Statistics
from onnxfq.data import Feed, copy_feeds
from onnxfq.documents.plan import Plan
from onnxfq.errors import RuntimeLibraryError
from onnxfq.graph.model import Model
from onnxfq.runtime.device_choice import choose_device
from onnxfq.runtime.devices import Device
from onnxfq.stages.observe import ObservationInterrupted, skip_resumed
from onnxfq.stages.observers import ObserveOptions, Observer, observer_on
from onnxfq.stages.ray_cluster import Cluster, collect_results, count_workers, split_shards
from onnxfq.stages.sent_model import SentModel
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
    "auto" is the CPU, because workers must not differ; with "cuda" each worker takes a GPU.

    Args:
        model: as for `collect_statistics`.
        plan: as for `collect_statistics`.
        feeds: the data.
        address: of the cluster, or "local" for the cores of this machine.
        options: as for `collect_statistics`.
        start: as for `collect_statistics`.

    Raises as `collect_statistics`, and RuntimeLibraryError if ray is missing or the cluster cannot be reached
    or has no GPU.
    """
    options = options or ObserveOptions()
    plan.check_model(model.sha256)
    model = prepare_model(model, plan.target)
    with Cluster(address, options.threads) as ray:
        work = ray.put(_Work.from_model(model, plan, options))
        kind = "GPU" if options.device == "cuda" else "CPU"
        workers = count_workers(ray, kind)
        if kind == "GPU" and not workers:
            raise RuntimeLibraryError(f"the Ray cluster at {address!r} has no GPU; use device cpu")
        task = ray.remote(num_cpus=1, num_gpus=int(kind == "GPU"), max_retries=-1)(_observe_shard)
        total = None if start is None else replace(start, complete=True)
        try:
            source = copy_feeds(feeds) if start is None else skip_resumed(model, feeds, start)
            shards = split_shards(source, 0 if start is None else start.feeds)
            tasks = (partial(task.remote, work, *shard) for shard in shards)
            for observed in collect_results(ray, tasks, workers):
                total = observed if total is None else total.merge(observed)
                if options.progress is not None:
                    options.progress(total.feeds)
        except KeyboardInterrupt:
            so_far = total or Statistics(model.sha256, 0, {})
            raise ObservationInterrupted(replace(so_far, complete=False)) from None
    return total or Statistics(model.sha256, 0, {})


@dataclass(frozen=True)
class _Work:
    """Input of an observing worker: sent once, kept by every machine."""

    model: SentModel
    plan: str
    options: ObserveOptions

    @staticmethod
    def from_model(model: Model, plan: Plan, options: ObserveOptions) -> _Work:
        device: Device = "cuda" if options.device == "cuda" else "cpu"
        plain = replace(options, threads=1, progress=None, device=device)
        return _Work(SentModel.of(model), plan.model_dump_json(), plain)

    def observer(self) -> Observer:
        model = self.model.open()
        device = choose_device(self.options.device)
        return observer_on(device, model, Plan.model_validate_json(self.plan), self.options)


# One observer per worker process: its session serves all shards of the process.
_observers: dict[tuple[str, str], Observer] = {}


def _observe_shard(work: _Work, first: int, shard: list[Feed]) -> Statistics:
    key = (work.model.sha256, work.plan)
    if key not in _observers:
        _observers[key] = work.observer()
    return _observers[key].run(shard, first)
