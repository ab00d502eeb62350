"""`Cluster`: work on a Ray cluster, which others than onnxfq may use too."""

from __future__ import annotations

import importlib.util
import pickle
import sys
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack
from functools import partial
from itertools import islice
from typing import Any, NamedTuple

from onnxfq.data import Feed
from onnxfq.errors import RuntimeLibraryError
from onnxfq.execution.ray_broker import Broker
from onnxfq.execution.ray_process import BrokerProcess, failed
from onnxfq.runtime.custom_ops import list_custom_ops, use_custom_ops

SHARD = 16
"""Feeds per task: enough to make sending them cheap, few enough that a lost worker costs little."""


def split_shards(feeds: Iterable[Feed], first: int = 0) -> Iterator[tuple[int, list[Feed]]]:
    """Yield the number of the first feed of each shard, and its feeds; `first` numbers the first of all."""
    source = iter(feeds)
    while shard := list(islice(source, SHARD)):
        yield first, shard
        first += len(shard)


class Sent(NamedTuple):
    """An object in the cluster, or a result that is on its way."""

    number: int


# Connections in use by their addresses: for other work meanwhile, a second one would be a second cluster.
_connected: dict[str, Callable[..., Any]] = {}


class Cluster:
    """A connection to a cluster. A connection of Ray that this process has already is used and kept."""

    def __init__(self, address: str, cores: int) -> None:
        """Prepare the connection.

        Args:
            address: of the cluster, or "local" for this machine.
            cores: of this machine, 0 for all.

        Raises RuntimeLibraryError if ray is missing.
        """
        if sys.modules.get("ray", self) is None or importlib.util.find_spec("ray") is None:
            raise RuntimeLibraryError("a cluster needs ray: pip install 'onnxfq[ray]', or leave --ray out")
        self._address, self._cores = address, cores
        self._used = ExitStack()

    def __enter__(self) -> Cluster:
        """Connect. Raises RuntimeLibraryError if the cluster does not answer."""
        if self._address in _connected:
            self._ask = _connected[self._address]
        elif "ray" in sys.modules and Broker().is_connected:
            self._ask = partial(_ask_here, Broker(), self._address)
        else:
            self._ask = self._used.enter_context(BrokerProcess(self._address, self._cores)).ask
            _connected[self._address] = self._ask
            self._used.callback(_connected.pop, self._address)
        return self

    def __exit__(self, *exception: object) -> None:
        self._used.close()

    def workers(self, kind: str = "CPU") -> int:
        """Return how many tasks that take one CPU, or one GPU, run side by side."""
        return int(self._ask("workers", kind))

    def put(self, value: object) -> Sent:
        """Send an object, which tasks read."""
        return Sent(self._ask("put", pickle.dumps(value, 5)))

    def put_opening(self, opening: Callable[[], Any]) -> Sent:
        """Send a function; each worker process calls it once, and tasks get what it returns.

        It is called with the custom-op libraries of this process. A method `close` of the result is called
        before another one is opened.
        """
        return self.put(partial(_open_with, list_custom_ops(), opening))

    def start(
        self,
        function: Callable[..., Any],
        opened: Sent,
        *arguments: object,
        held: Sequence[Sent] = (),
        results: int = 0,
        kind: str = "CPU",
    ) -> list[Sent]:
        """Start a task and return its results, for `fetch`.

        Args:
            function: of a module; gets what is opened and `arguments`.
            opened: of `put_opening`.
            arguments: that can be sent.
            held: objects of the cluster, which the function gets as one more argument, an iterable.
            results: how many results it returns, an iterable then; 0 for a plain one.
            kind: CPU or GPU, of which the task takes one.
        """
        job = pickle.dumps((function, arguments, bool(results)), 5)
        numbers = [one.number for one in held]
        return [Sent(one) for one in self._ask("start", opened.number, job, numbers, results or 1, kind)]

    def fetch(self, sent: Sent, keep: bool = False) -> Any:
        """Return a result; once, unless the cluster is to keep it.

        Raises what its task raised, RuntimeLibraryError for a failed cluster.
        """
        result, fault = pickle.loads(self._ask("fetch", sent.number, keep))
        if fault is not None:
            raise fault
        return result

    def map(
        self,
        function: Callable[..., Any],
        opened: Sent,
        arguments: Iterable[tuple[object, ...]],
        *,
        held: Sequence[Sent] = (),
        kind: str = "CPU",
    ) -> Iterator[Any]:
        """Yield the result of `function` for each of `arguments`, in this order; see `start`.

        At most two tasks for each worker are in flight: no worker waits, and memory stays bounded. A task
        whose worker dies runs again elsewhere.
        """
        most = 2 * max(1, self.workers(kind))
        out: deque[Sent] = deque()
        for own in arguments:
            out += self.start(function, opened, *own, held=held, kind=kind)
            if len(out) >= most:
                yield self.fetch(out.popleft())
        while out:
            yield self.fetch(out.popleft())


def _open_with(libraries: Iterable[str], opening: Callable[[], Any]) -> Any:
    for path in libraries:
        use_custom_ops(path)
    return opening()


def _ask_here(broker: Broker, address: str, name: str, *arguments: object) -> Any:
    try:
        return getattr(broker, name)(*arguments)
    except Exception as fault:  # of Ray, which raises exceptions of its own and of Python
        raise failed(address, f"{type(fault).__name__}: {fault}") from None
