"""`Worker`: calls in another process, and whatever a library does there, in one line."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

import onnxfq
from onnxfq.support import memory
from onnxfq.support.workers import Worker, WorkerFault

LIBRARY = """
import os, signal, sys, threading, time

met = threading.Barrier(3)
kept = {}

class Panic(BaseException):
    pass

def keep(name, value):
    kept[name] = value

def take(name):
    return kept[name]

def meet():
    return met.wait()

def panic():
    raise Panic("called `Option::unwrap()`\\non a `None` value")

def crash():
    sys.stdout.write("printed on standard output")
    sys.stdout.flush()
    os.kill(os.getpid(), signal.SIGSEGV)
    time.sleep(60)

def hang():
    time.sleep(1000)

def fill():
    taken = []
    while True:
        taken.append(bytearray(1 << 24))

def number():
    return os.getpid()

def list_folder():
    return os.listdir(".")

class Unreadable:
    def __reduce__(self):
        return int, ("no number",)

def mislead():
    return Unreadable()
"""


@pytest.fixture
def worker(tmp_path: Path) -> Iterator[Worker]:
    """Return a worker with the functions of LIBRARY."""
    (tmp_path / "library.py").write_text(LIBRARY)
    with Worker(str(tmp_path / "library.py")) as made:
        yield made


def test_what_is_opened_stays(worker: Worker) -> None:
    """A value of one call is there in the next, to the bit; the time there is counted."""
    values = np.random.default_rng(0).normal(size=(512, 1024))
    worker.ask("keep", "x", values, seconds=60)
    np.testing.assert_array_equal(worker.ask("take", "x", seconds=60), values)
    assert 0 < worker.seconds < 5


def test_a_relative_path_is_that_of_who_asks(
    worker: Worker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A worker reads from the present folder, not from where it started; one that is gone changes nothing."""
    for name in ("first", "second"):
        (tmp_path / name / name).mkdir(parents=True)
        monkeypatch.chdir(tmp_path / name)
        assert worker.ask("list_folder", seconds=60) == [name]
    (tmp_path / "second" / "second").rmdir()
    (tmp_path / "second").rmdir()
    assert worker.ask("list_folder", seconds=60) == []


def test_threads_ask_side_by_side(worker: Worker) -> None:
    """Calls of several threads run at the same time: three that wait for each other all end."""
    with ThreadPoolExecutor(3) as pool:
        places = pool.map(lambda _: worker.ask("meet", seconds=60), range(3))
        assert sorted(places) == [0, 1, 2]


def test_a_panic_is_a_fault_and_no_end(worker: Worker) -> None:
    """A fault outside Exception has the name of its class, and the process goes on."""
    with pytest.raises(WorkerFault, match="unwrap") as fault:
        worker.ask("panic", seconds=60)
    assert fault.value.kind == "Panic"
    assert worker.ask("number", seconds=60) != os.getpid()


@pytest.mark.parametrize(
    ("name", "seconds", "how"),
    [
        ("crash", 60.0, r"was ended by signal 11 \(printed on standard output\)"),
        ("hang", 0.5, "took more than 0.5 s"),
    ],
)
def test_an_end_is_told_to_all(worker: Worker, name: str, seconds: float, how: str) -> None:
    """A crash and an endless call end the process, and every later call says why."""
    for call in (name, "number"):
        with pytest.raises(WorkerFault, match=how) as fault:
            worker.ask(call, seconds=seconds)
        assert not fault.value.kind


@pytest.mark.skipif(sys.platform != "linux", reason="memory is limited on Linux alone")
def test_memory_is_limited(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Endless memory is a MemoryError there, at the limit that a command has."""
    (tmp_path / "library.py").write_text(LIBRARY)
    monkeypatch.setattr(memory, "free_memory", lambda: 0)
    monkeypatch.setattr(memory, "_LEAST", 300 << 20)
    with Worker(str(tmp_path / "library.py")) as made:
        with pytest.raises(WorkerFault) as fault:
            made.ask("fill", seconds=60)
        assert fault.value.kind == "MemoryError"


KILLED = """
import os, sys
from onnxfq.support.workers import Worker
worker = Worker(sys.argv[1])
print(worker.ask("number", seconds=60), flush=True)
worker.ask("hang", seconds=1000)
"""


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM])
def test_a_worker_ends_with_its_parent(tmp_path: Path, how: signal.Signals) -> None:
    """However the parent is ended in the middle of a call, nothing of it is left."""
    (tmp_path / "library.py").write_text(LIBRARY)
    path = {"PYTHONPATH": str(Path(onnxfq.__file__).parents[1])}
    words = [sys.executable, "-c", KILLED, str(tmp_path / "library.py")]
    with subprocess.Popen(words, env=os.environ | path, stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        number = int(parent.stdout.readline())
        os.kill(number, 0)
        parent.send_signal(how)
    ends = time.monotonic() + 30
    while Path(f"/proc/{number}").exists() and time.monotonic() < ends:
        time.sleep(0.02)
    assert not Path(f"/proc/{number}").exists()


def test_no_file_of_the_working_folder_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A worker finds the modules that are installed, and none in the working folder."""
    for name in ("pickle", "runpy", "numpy", "concurrent"):
        (tmp_path / f"{name}.py").write_text("open('ran', 'w').close()")
    (tmp_path / "library.py").write_text("import numpy\ndef ask():\n    return numpy.__name__")
    monkeypatch.chdir(tmp_path)
    with Worker(str(tmp_path / "library.py")) as made:
        assert made.ask("ask", seconds=60) == "numpy"
    assert not (tmp_path / "ran").exists()


def test_a_file_that_does_not_run_is_told(tmp_path: Path) -> None:
    """A library that cannot be imported ends the process, with its own words."""
    (tmp_path / "library.py").write_text("import missing_library")
    with Worker(str(tmp_path / "library.py")) as made, pytest.raises(WorkerFault, match="missing_library"):
        made.ask("ask", seconds=60)


def test_what_cannot_be_read_ends_the_process(worker: Worker) -> None:
    """The first call ends with the reason, and the next as well."""
    for name in ("mislead", "number"):
        with pytest.raises(WorkerFault, match="sent what cannot be read: invalid literal"):
            worker.ask(name, seconds=60)
    assert worker.ended


def test_a_forked_process_has_no_worker(worker: Worker) -> None:
    """A call there ends at once. Its parent reads the replies, and goes on."""
    worker.ask("number", seconds=60)
    child = os.fork()
    if child == 0:
        try:
            worker.ask("number", seconds=60)
        except WorkerFault as fault:
            os._exit(0 if "forked" in str(fault) else 2)
        finally:
            os._exit(1)
    assert os.waitpid(child, 0)[1] == 0
    assert worker.ask("number", seconds=60) and not worker.ended
