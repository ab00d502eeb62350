"""`Cluster.map`: a function on many items, by the workers of a Ray cluster. The only importer of ray."""

from __future__ import annotations

import importlib.util
import os
import pickle
import signal
import socket
import subprocess
import sys
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from itertools import islice
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from onnxfq.data import Feed
from onnxfq.errors import RuntimeLibraryError
from onnxfq.runtime.custom_ops import list_custom_ops, use_custom_ops
from onnxfq.support.children import python_command, python_environment
from onnxfq.support.interrupts import ENDING
from onnxfq.support.records import join_lines
from onnxfq.support.temporary import scratch_folder

LOCAL = "local"

SHARD = 16
"""Feeds per task: enough to make sending them cheap, few enough that a lost worker costs little."""

_STORE_BYTES = 256 << 20
_RETRIES = 3
"""Times that a task is tried again whose worker died; a library that crashes on the data dies each time."""
_CONNECTING, _ASKING = 30.0, 2.0
"""Seconds for a cluster to answer, and between questions whether it lives: Ray waits without limit."""
_SHORT = Path("/tmp") if os.access("/tmp", os.W_OK) else None
"""Folder in which the paths of Ray's sockets have at most 107 letters, for a long TMPDIR too."""
_SETTINGS = {"RAY_USAGE_STATS_ENABLED": "0", "RAY_BACKEND_LOG_LEVEL": "fatal"}
"""Ray reports nothing to its makers, and its C++ code prints nothing."""
_PROBE = "import ray, sys; ray.init(address=sys.argv[1], log_to_driver=False)"


def split_shards(feeds: Iterable[Feed], first: int = 0) -> Iterator[tuple[int, list[Feed]]]:
    """Yield the number of the first feed of each shard, and its feeds; `first` numbers the first of all."""
    source = iter(feeds)
    while shard := list(islice(source, SHARD)):
        yield first, shard
        first += len(shard)


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
        with ExitStack() as self._used, _undisturbed():
            for name, value in _SETTINGS.items():
                os.environ.setdefault(name, value)
            import ray

            self._ray = ray
            if not ray.is_initialized():
                self._connect()
                self._used.callback(ray.shutdown)
            self._used = self._used.pop_all()
        return self

    def __exit__(self, *exception: object) -> None:
        self._used.close()

    def workers(self, kind: str = "CPU") -> int:
        """Return how many tasks that take one CPU, or one GPU, run side by side."""
        with self._told():
            return int(self._ray.cluster_resources().get(kind, 0))

    def map(
        self,
        opening: Callable[[], Any],
        function: Callable[[Any, Any], Any],
        items: Iterable[object],
        kind: str = "CPU",
    ) -> Iterator[Any]:
        """Yield the results of `function`, in the order of `items`.

        At most two tasks for each worker are in flight: no worker waits, and memory stays bounded. A task
        whose worker dies runs again elsewhere.

        Args:
            opening: called once in each worker process, with the custom-op libraries of this one. A method
                `close` of its result is called before a worker opens something else.
            function: of a module; gets what is opened, and an item.
            items: that can be pickled.
            kind: CPU or GPU, of which a task takes one.

        Raises what a task raised, RuntimeLibraryError for a failed cluster.
        """
        most, out = 2 * max(1, self.workers(kind)), deque[Any]()
        with self._told():
            opened = self._ray.put(pickle.dumps((list_custom_ops(), opening), 5))
            how = {"num_cpus": 1, "num_gpus": int(kind == "GPU"), "max_retries": _RETRIES}
            task = self._ray.remote(**how)(_run)
        for item in items:
            with self._told():
                out.append(task.remote(opened.hex(), opened, pickle.dumps((function, item), 5)))
            if len(out) >= most:
                yield self._fetch(out.popleft())
        while out:
            yield self._fetch(out.popleft())

    def _fetch(self, sent: Any) -> Any:
        with self._told():
            while not self._ray.wait([sent], timeout=_ASKING)[0]:
                # Without its head, asking for the nodes would end this process after a minute.
                _knock(getattr(self._ray.get_runtime_context(), "gcs_address", self._address))
                if not any(node["Alive"] for node in self._ray.nodes()):
                    raise RuntimeError("all its nodes are lost")
            result, fault = pickle.loads(self._ray.get(sent))
        if fault is not None:
            raise fault
        return result

    def _connect(self) -> None:
        job = self._ray.job_config.JobConfig()
        job._py_driver_sys_path = _NoFolders()
        quiet = {"log_to_driver": False, "logging_level": "FATAL", "job_config": job}
        if self._address != LOCAL:
            _probe(self._address)
            with self._told():
                self._ray.init(address=self._address, **quiet)
            return
        with self._told("Ray does not start on this machine"):
            folder = str(self._used.enter_context(scratch_folder(_SHORT)))
            where = {"num_cpus": self._cores or None, "_temp_dir": folder}
            with _environment(TMPDIR=folder):
                self._ray.init(include_dashboard=False, object_store_memory=_STORE_BYTES, **where, **quiet)

    @contextmanager
    def _told(self, what: str = "") -> Iterator[None]:
        """Raise what Ray raises, its own exceptions and Python's, as RuntimeLibraryError."""
        try:
            yield
        except Exception as fault:
            what = what or f"the Ray cluster at {self._address!r} failed"
            why = join_lines(f"{type(fault).__name__}: {fault}")[:300]
            raise RuntimeLibraryError(f"{what}: {why}; run again, or leave --ray out") from None


class _NoFolders(list[str]):
    """Folders of modules for the workers, to which Ray would add the working folder as the first."""

    def extend(self, folders: Iterable[str]) -> None:
        """Add nothing."""


@contextmanager
def _undisturbed() -> Iterator[None]:
    """Keep Ray from setting handlers of signals, by one that exits at once, and discard what it prints."""
    set_handler = signal.signal

    def keep_handler(number: int, handler: Any) -> Any:
        return signal.getsignal(number) if number in ENDING else set_handler(number, handler)

    printed, nothing = os.dup(2), os.open(os.devnull, os.O_WRONLY)
    os.dup2(nothing, 2)
    signal.signal = keep_handler  # type: ignore[assignment]
    try:
        yield
    finally:
        signal.signal = set_handler
        os.dup2(printed, 2)
        os.close(printed)
        os.close(nothing)


def _probe(address: str) -> None:
    """Raise RuntimeLibraryError unless another process connects: Ray waits for minutes, prints, and exits."""
    how: dict[str, Any] = {"capture_output": True, "text": True, "timeout": _CONNECTING}
    try:
        _knock(address)
        with _environment():
            probe = subprocess.run(python_command(_PROBE, address), check=False, **how)
        told = probe.stderr.strip() or "Ray ended its process"
        why = told.splitlines()[-1:] if probe.returncode else []
    except subprocess.TimeoutExpired:
        why = [f"it does not answer within {_CONNECTING:.0f} s"]
    except (OSError, ValueError) as fault:
        why = [join_lines(fault)]
    if why:
        raise RuntimeLibraryError(f"no Ray cluster at {address!r}: {why[0][:200]}; start one, or use {LOCAL}")


def _knock(address: str) -> None:
    """Raise OSError if nothing listens at `address`, HOST:PORT or ray://HOST:PORT; other forms are Ray's."""
    place = urlsplit(address if "://" in address else f"ray://{address}")
    if place.hostname and place.port:
        socket.create_connection((place.hostname, place.port), _CONNECTING).close()


@contextmanager
def _environment(**values: str) -> Iterator[None]:
    """Set variables, and the folders of modules, for the processes that are started meanwhile."""
    values |= python_environment()
    before = {name: os.environ[name] for name in values if name in os.environ}
    os.environ |= values
    try:
        yield
    finally:
        for name in values:
            del os.environ[name]
        os.environ |= before


# What the tasks of this worker process need, opened once: sessions serve all of them.
_opened: dict[str, Any] = {}


def _run(name: str, opening: bytes, job: bytes) -> bytes:
    """Return the result of a task and its fault, one of them None; a worker keeps what it opened last."""
    try:
        if name not in _opened:
            while _opened:
                getattr(_opened.popitem()[1], "close", lambda: None)()
            libraries, opens = pickle.loads(opening)
            for path in libraries:
                use_custom_ops(path)
            _opened[name] = opens()
        function, item = pickle.loads(job)
        return pickle.dumps((function(_opened[name], item), None), 5)
    except Exception as fault:
        return _pack_fault(fault)


def _pack_fault(fault: Exception) -> bytes:
    try:
        return pickle.dumps((None, fault))
    except Exception:  # an exception of a library that holds what cannot be sent
        return pickle.dumps((None, RuntimeError(f"{type(fault).__name__}: {fault}")))
