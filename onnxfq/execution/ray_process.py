"""`BrokerProcess`: a process that speaks to Ray; whatever happens to it is one line.

It has a separate session: signals to this process and its group do not reach it, and at the end all that
Ray started is found by that session and ended. Its prints are discarded.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from onnxfq.errors import RuntimeLibraryError
from onnxfq.execution.ray_broker import LOCAL
from onnxfq.support.records import join_lines
from onnxfq.support.temporary import scratch_folder

_ACCEPTING, _CONNECTING, _STARTING, _ENDING = 10.0, 30.0, 120.0, 10.0
"""Seconds for a machine to accept, a cluster to answer, a local one to start, and one to be left."""

_LONGEST_FOLDER = 20
"""Characters of a folder in which Ray still makes sockets, whose paths have at most 107."""

_SERVE = """
import ctypes, os, sys
control = getattr(ctypes.CDLL(None), "prctl", None)
if control is not None:
    control(1, 9)  # PR_SET_PDEATHSIG, SIGKILL: this process ends with the one that started it
if os.getppid() == int(sys.argv[2]):
    from onnxfq.execution.ray_broker import serve
    serve(int(sys.argv[1]))
"""


class BrokerProcess:
    """A process with a connection to a cluster."""

    def __init__(self, address: str, cores: int) -> None:
        """Prepare it; see `Cluster`."""
        self._address, self._cores = address, cores
        self._local = address == LOCAL
        self._used = ExitStack()

    def __enter__(self) -> BrokerProcess:
        """Start it and connect. Raises RuntimeLibraryError if the cluster does not answer."""
        try:
            with self._used as used:
                _knock(self._address)
                room, folder = (
                    str(used.enter_context(scratch_folder(one))) for one in (None, _short_folder())
                )
                used.callback(self._end)
                self._start(room)
                seconds = _STARTING if self._local else _CONNECTING
                self._call(seconds, "connect", self._address, self._cores, folder)
                self._used = used.pop_all()
        except (OSError, EOFError, _Refused) as fault:
            why = join_lines(fault)[:200] or "Ray ended its process"
            what, remedy = f"no Ray cluster at {self._address!r}", "start one, or use local"
            if self._local:
                what, remedy = "Ray does not start on this machine", "run again, or leave --ray out"
            raise RuntimeLibraryError(f"{what}: {why}; {remedy}") from None
        return self

    def __exit__(self, *exception: object) -> None:
        self._used.close()

    def ask(self, name: str, *arguments: object) -> Any:
        """Return what a method of the broker returns. Raises RuntimeLibraryError if the cluster fails."""
        try:
            return self._call(None, name, *arguments)
        except (OSError, EOFError, _Refused) as fault:
            raise failed(self._address, str(fault) or "Ray ended its process") from None

    def _start(self, room: str) -> None:
        mine, theirs = socket.socketpair()
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-c", _SERVE, str(theirs.fileno()), str(os.getpid())],
                pass_fds=[theirs.fileno()],
                start_new_session=True,
                env=os.environ
                | {
                    "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
                    "TMPDIR": room if self._local else tempfile.gettempdir(),
                    "RAY_USAGE_STATS_ENABLED": "0",
                },
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
            )
        self._connection = Connection(mine.detach())

    def _call(self, seconds: float | None, name: str, *arguments: object) -> Any:
        self._connection.send((name, arguments))
        if not self._connection.poll(seconds):
            raise TimeoutError(f"it does not answer within {seconds:.0f} s")
        done, answer = self._connection.recv()
        if not done:
            raise _Refused(answer)
        return answer

    def _end(self) -> None:
        """End the process and all that it started; a cluster elsewhere is left in order first."""
        if not hasattr(self, "_process"):
            return
        self._connection.close()
        if not self._local or not os.path.isdir("/proc/self"):
            try:
                self._process.wait(_ENDING)
            except subprocess.TimeoutExpired:
                self._process.kill()
        for _ in range(500):
            found = _session(self._process.pid)
            for one in found:
                try:
                    os.kill(one, signal.SIGKILL)
                except ProcessLookupError:
                    continue
            if not found:
                break
            self._process.poll()
            time.sleep(0.01)
        self._process.wait()


class _Refused(Exception):
    """An exception of Ray, in words."""


def failed(address: str, why: str) -> RuntimeLibraryError:
    """Return the error for a cluster that failed at work."""
    return RuntimeLibraryError(
        f"the Ray cluster at {address!r} failed: {join_lines(why)[:300]}; run again, or leave --ray out"
    )


def _knock(address: str) -> None:
    """Raise OSError if nothing listens at `address`, HOST:PORT or ray://HOST:PORT; other forms are ray's."""
    place = urlsplit(address if "://" in address else f"ray://{address}")
    try:
        port = place.port
    except ValueError as fault:
        raise OSError(str(fault)) from None
    if place.hostname and port:
        socket.create_connection((place.hostname, port), _ACCEPTING).close()


def _short_folder() -> Path:
    """Return a folder for temporary files with a path that is short enough for Ray's sockets."""
    places = [tempfile.gettempdir(), "/tmp", "/var/tmp", "/dev/shm"]
    short = (one for one in places if len(one) <= _LONGEST_FOLDER and os.access(one, os.W_OK))
    found = next(short, None)
    if found is None:
        raise OSError(f"Ray needs a folder with a path of at most {_LONGEST_FOLDER} letters in TMPDIR")
    return Path(found)


def _session(leader: int) -> list[int]:
    """Return the processes of a session that live; those that only wait for their parent do not."""
    found = []
    for status in Path("/proc").glob("[0-9]*/stat"):
        try:
            state, _, _, session = status.read_text().rpartition(")")[2].split()[:4]
        except (OSError, ValueError):  # it ended meanwhile
            continue
        if int(session) == leader and state != "Z":
            found.append(int(status.parent.name))
    return found
