"""Faults of a Ray cluster, or of a service in its place: one line, and nothing is left."""

from __future__ import annotations

import operator
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import onnx
import pytest
from builders import conv_relu, feed_for

import onnxfq
from onnxfq.errors import RuntimeLibraryError
from onnxfq.execution import cluster
from onnxfq.execution.cluster import Cluster

ray = pytest.importorskip("ray", reason="extra ray is not installed")
pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="finds processes in /proc")


@pytest.fixture
def reachable(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Workers import the functions of this file, whose folder they would not take as the working folder."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(Path(__file__).parents[1]))


def divide(opened: int, by: int) -> float:
    """A task that may fail."""
    return opened / by


def four() -> int:
    """What a worker opens."""
    return 4


@pytest.mark.sample
def test_results_faults_and_handlers(reachable: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Results come in order, a fault of a task is raised here, no handler of a signal is ever replaced."""
    before = _handlers()
    connect, during = ray.init, []
    monkeypatch.setattr(ray, "init", lambda **how: (connect(**how), during.append(_handlers())))
    with Cluster("local", 2) as one:
        assert during == [before]
        assert list(one.map(four, operator.add, range(9))) == list(range(4, 13))
        with pytest.raises(ZeroDivisionError):
            list(one.map(four, divide, [2, 0]))
        with Cluster("local", 2) as same:
            assert same.workers() == 2
        assert _handlers() == before
        with pytest.raises(RuntimeLibraryError, match="Ray cluster at 'local' failed: .*leave --ray out"):
            list(one.map(four, divide, [lambda: 1]))


@pytest.mark.whole
def test_another_listener(monkeypatch: pytest.MonkeyPatch) -> None:
    """A service that accepts connections and says nothing is not a cluster; Ray alone waits for minutes."""
    monkeypatch.setattr(cluster, "_CONNECTING", 4.0)
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen(5)
        address = f"127.0.0.1:{silent.getsockname()[1]}"
        begun = time.monotonic()
        with pytest.raises(RuntimeLibraryError, match=f"no Ray cluster at '{address}': .*within 4 s"):
            Cluster(address, 1).__enter__()
        assert time.monotonic() - begun < 30


@pytest.mark.whole
def test_nothing_is_left(tmp_path: Path) -> None:
    """A path too long for Ray's sockets is none too long for TMPDIR, which is empty after an interruption.

    tests/cli/test_planted_modules.py has a command that ends by itself.
    """
    place = tmp_path / ("x" * 60)
    place.mkdir()
    onnx.save(conv_relu(), tmp_path / "m.onnx")
    np.savez(tmp_path / "d.npz", **feed_for(conv_relu()))
    words = "observe --moments m.onnx --data d.npz --rounding gptq --ray local -o out.npz".split()
    run = subprocess.Popen(
        [sys.executable, "-m", "onnxfq", *words],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(Path(onnxfq.__file__).parents[1]), "TMPDIR": str(place)},
        stderr=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        text=True,
        start_new_session=True,
    )
    while run.poll() is None and not _named(str(run.pid), b"raylet/raylet"):
        time.sleep(0.05)
    os.killpg(run.pid, signal.SIGTERM)
    lines = [line for line in run.communicate(timeout=120)[1].splitlines() if "note:" not in line]
    assert (run.returncode, lines) == (130, ["onnxfq: error: interrupted"])
    assert not list(place.glob("onnxfq-*")) and not _named(str(place), b"")


def _handlers() -> list[object]:
    return [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]


def _named(word: str, name: bytes) -> bool:
    """Whether a process has `word` in its arguments or as an ancestor, and `name` in its arguments."""
    for process in Path("/proc").glob("[0-9]*"):
        try:
            line, status = (process / "cmdline").read_bytes(), (process / "stat").read_text()
        except OSError:  # it ended
            continue
        if name in line and (word.encode() in line or (word.isdigit() and _descends(status, word))):
            return True
    return False


def _descends(status: str, ancestor: str) -> bool:
    parent = status.rpartition(")")[2].split()[1]
    if parent in ("0", "1"):
        return False
    try:
        return parent == ancestor or _descends(Path(f"/proc/{parent}/stat").read_text(), ancestor)
    except OSError:
        return False
