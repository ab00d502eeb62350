"""`Broker`: everything that onnxfq asks of Ray (extra `ray`), in bytes. The only importer of ray.

`serve` runs it in a separate process, because Ray prints, replaces signal handlers, waits without limit and
ends its process. Workers import this module.
"""

from __future__ import annotations

import pickle
import signal
from collections.abc import Iterator, Sequence
from itertools import count
from multiprocessing.connection import Connection
from typing import Any

LOCAL = "local"

_STORE_BYTES = 256 << 20
_RETRIES = 3
"""Times that a task is tried again whose worker died; a library that crashes on the data dies each time."""
_ASK_SECONDS = 2.0
"""Time between questions whether a node of the cluster is alive; Ray waits for a lost one without limit."""


class Broker:
    """A connection to a cluster, whose objects are known by numbers and hold bytes."""

    def __init__(self) -> None:
        """Import ray; raises ImportError without it."""
        import ray

        self._ray, self._held, self._numbers = ray, dict[int, Any](), count(1)

    @property
    def is_connected(self) -> bool:
        """Whether this process has a connection already."""
        return bool(self._ray.is_initialized())

    def connect(self, address: str, cores: int, folder: str) -> None:
        """Connect to `address`, or start a cluster here with files in `folder`; raises anything."""
        quiet = {"log_to_driver": False, "logging_level": "ERROR"}
        if address == LOCAL:
            where = {"num_cpus": cores or None, "object_store_memory": _STORE_BYTES, "_temp_dir": folder}
            self._ray.init(include_dashboard=False, **where, **quiet)
        else:
            self._ray.init(address=address, **quiet)

    def workers(self, kind: str) -> int:
        """Return how many tasks that take one CPU, or one GPU, run side by side."""
        return int(self._ray.cluster_resources().get(kind, 0))

    def put(self, content: bytes) -> int:
        """Store bytes in the cluster."""
        return self._hold(self._ray.put(content))

    def start(self, opening: int, job: bytes, held: Sequence[int], results: int, kind: str) -> list[int]:
        """Start a task with this number of results, see `_run`."""
        gpus = int(kind == "GPU")
        task = self._ray.remote(num_cpus=1, num_gpus=gpus, num_returns=results, max_retries=_RETRIES)(_run)
        opened = self._held[opening]
        made = task.remote(opened.hex(), opened, job, [self._held[one] for one in held], results)
        return [self._hold(one) for one in ([made] if results == 1 else made)]

    def fetch(self, number: int, keep: bool) -> bytes:
        """Return a result, and forget it unless `keep`.

        Raises what Ray does, and RuntimeError once no node is alive.
        """
        result = self._held[number] if keep else self._held.pop(number)
        while not self._ray.wait([result], timeout=_ASK_SECONDS)[0]:
            if not any(node["Alive"] for node in self._ray.nodes()):
                raise RuntimeError("all its nodes are lost")
        return bytes(self._ray.get(result))

    def close(self) -> None:
        """End the connection."""
        self._ray.shutdown()

    def _hold(self, reference: Any) -> int:
        number = next(self._numbers)
        self._held[number] = reference
        return number


def serve(handle: int) -> None:
    """Do what the process at the other end of the connection asks, until it is closed."""
    connection, broker = Connection(handle), Broker()
    while True:
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, lambda *_: None)  # the other end decides; Ray replaces handlers
        try:
            name, arguments = connection.recv()
        except EOFError:
            break
        try:
            answer = True, getattr(broker, name)(*arguments)
        except (Exception, SystemExit) as fault:
            answer = False, f"{type(fault).__name__}: {fault}"
        connection.send(answer)
    broker.close()


class Held:
    """Objects of the cluster that a worker fetches one after the other, as often as they are read."""

    def __init__(self, references: Sequence[Any]) -> None:
        """Take references of Ray."""
        self._references = references

    def __iter__(self) -> Iterator[Any]:
        """Yield the objects."""
        import ray

        for reference in self._references:
            yield pickle.loads(ray.get(reference))


# What the tasks of this worker process need, opened once: sessions serve all of them.
_opened: dict[str, Any] = {}


def _run(name: str, opening: bytes, job: bytes, references: Sequence[Any], results: int) -> Any:
    """Return the result of a task, or an iterator over several: tuples (result, fault) in bytes.

    Args:
        name: of what is opened; a worker keeps the last one.
        opening: a function that opens it, in bytes.
        job: of (function, arguments, whether it returns several results), in bytes; the function gets what
            is opened first, and `Held` objects last.
        references: of these objects.
        results: number of results; several are made one after the other, so that memory holds one.
    """
    made = _make_results(name, opening, job, references, results)
    return next(made) if results == 1 else made


def _make_results(
    name: str, opening: bytes, job: bytes, references: Sequence[Any], results: int
) -> Iterator[bytes]:
    try:
        if name not in _opened:
            while _opened:
                getattr(_opened.popitem()[1], "close", lambda: None)()
            _opened[name] = pickle.loads(opening)()
        function, arguments, several = pickle.loads(job)
        found = function(_opened[name], *arguments, *([Held(references)] if references else []))
        for one in found if several else [found]:
            yield pickle.dumps((one, None), 5)
            results -= 1
    except Exception as fault:
        for _ in range(results):
            yield _pack_fault(fault)


def _pack_fault(fault: Exception) -> bytes:
    try:
        return pickle.dumps((None, fault))
    except Exception:  # an exception of a library that holds what cannot be sent
        return pickle.dumps((None, RuntimeError(f"{type(fault).__name__}: {fault}")))
