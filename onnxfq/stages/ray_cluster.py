"""A connection to a Ray cluster. The only importer of ray (extra `ray`)."""

from __future__ import annotations

import socket
import tempfile
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from typing import Any
from urllib.parse import urlsplit

from onnxfq.data import Feed
from onnxfq.errors import RuntimeLibraryError
from onnxfq.support.records import join_lines

LOCAL = "local"
_STORE_BYTES = 256 << 20
_PATIENCE = 10.0
"""Seconds that a cluster may take to answer; ray itself goes on for minutes."""

SHARD = 16
"""Feeds per task: enough to make sending them cheap, few enough that a lost worker costs little."""


def split_shards(feeds: Iterable[Feed], first: int = 0) -> Iterator[tuple[int, list[Feed]]]:
    """Yield the number of the first feed of each shard, and its feeds; `first` numbers the first of all."""
    source = iter(feeds)
    while shard := list(islice(source, SHARD)):
        yield first, shard
        first += len(shard)


def fetch_result(ray: Any, reference: Any) -> Any:
    """Return what a task returned; raise what it raised."""
    try:
        return ray.get(reference)
    except ray.exceptions.RayTaskError as error:
        raise error.cause from None


def count_workers(ray: Any, kind: str = "CPU") -> int:
    """Return how many tasks that take one CPU, or one GPU, run side by side."""
    return int(ray.cluster_resources().get(kind, 0))


def fetch_in_task(reference: Any) -> Any:
    """Return an object of the cluster, inside a task."""
    return _import_ray().get(reference)


def collect_results(ray: Any, tasks: Iterable[Callable[[], Any]], workers: int) -> Iterator[Any]:
    """Start `tasks` and yield their results in this order.

    At most two for each worker are in flight: no worker waits, and memory stays bounded.
    """
    most = 2 * max(1, workers)
    out: deque[Any] = deque()
    for start in tasks:
        out.append(start())
        if len(out) >= most:
            yield fetch_result(ray, out.popleft())
    while out:
        yield fetch_result(ray, out.popleft())


def _import_ray() -> Any:
    try:
        import ray
    except ImportError:
        raise RuntimeLibraryError(
            "a cluster needs ray: pip install 'onnxfq[ray]', or leave --ray out"
        ) from None
    return ray


def _knock(address: str) -> None:
    """Raise OSError if nothing listens at `address`, HOST:PORT or ray://HOST:PORT; other forms are ray's."""
    place = urlsplit(address if "://" in address else f"ray://{address}")
    if place.hostname and place.port:
        socket.create_connection((place.hostname, place.port), _PATIENCE).close()


class Cluster:
    """A connection to a cluster, closed at the end; a connection that is open already is used and kept."""

    def __init__(self, address: str, cores: int) -> None:
        """Prepare the connection.

        Args:
            address: of the cluster, or "local" for this machine.
            cores: of this machine, 0 for all.

        Raises RuntimeLibraryError if ray is missing.
        """
        self._ray, self._address, self._cores = _import_ray(), address, cores
        self._mine = False

    def __enter__(self) -> Any:
        """Connect and return the module ray. Raises RuntimeLibraryError if the cluster does not answer."""
        if self._ray.is_initialized():
            return self._ray
        quiet = {"log_to_driver": False, "logging_level": "ERROR"}
        try:
            if self._address == LOCAL:
                self._ray.init(
                    num_cpus=self._cores or None,
                    object_store_memory=_STORE_BYTES,
                    include_dashboard=False,
                    _temp_dir=tempfile.gettempdir(),
                    **quiet,
                )
            else:
                _knock(self._address)
                self._ray.init(address=self._address, **quiet)
        except (OSError, ValueError, RuntimeError) as error:
            raise RuntimeLibraryError(
                f"no Ray cluster at {self._address!r}: {join_lines(error)[:200]}; start one, or use local"
            ) from None
        self._mine = True
        return self._ray

    def __exit__(self, *exception: object) -> None:
        if self._mine:
            self._ray.shutdown()
