"""OpenVINO in its process: whatever the library does there is one line here, and the next model runs."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import onnx
import pytest
from builders import build

from onnxfq.errors import RuntimeLibraryError
from onnxfq.targets.openvino import runtime

LIBRARY = '''
import os, time
import numpy

__version__ = "2026.9.9-of-tests"

class Panic(BaseException):
    """No Exception, as a panic of Rust."""

class Tensor:
    def __init__(self, data):
        self.data = data

class Port:
    names = {"x"}

class Request:
    def infer(self, feed):
        if feed["x"][0] < 0:
            act(feed["x"][0])
        return [feed["x"] * 2]

class Compiled:
    inputs, outputs = [Port()], [Port()]

    def create_infer_request(self):
        return Request()

class Core:
    def read_model(self, source):
        return source

    def compile_model(self, network, device, options):
        if b"Neg" in network:
            act(-1)
        return Compiled()

def act(what):
    ACTION
'''
ACTIONS = {
    "panic": ("raise Panic('called unwrap()\\nhere')", r"Panic: called unwrap\(\) here"),
    "refusal": ("raise RuntimeError('no kernel\\nfor this')", "no kernel; for this"),
    "sleep": ("time.sleep(1000)", "its process took more than 1 s"),
    "end": ("os._exit(7)", "its process ended with code 7"),
}
"""A fault of a library -> its code, and the line that names it."""
X = {"x": np.ones(2, np.float32)}


@pytest.fixture
def library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str], None]]:
    """Return a function that puts a module openvino with given code on the path."""
    monkeypatch.setattr(runtime, "_library", None)

    def write(action: str) -> None:
        monkeypatch.setattr(runtime, "SECONDS", 1.0 if "1 s" in ACTIONS[action][1] else 60.0)
        (tmp_path / "openvino.py").write_text(LIBRARY.replace("ACTION", ACTIONS[action][0]))
        monkeypatch.syspath_prepend(str(tmp_path))

    yield write
    if runtime._library is not None:
        runtime._library.worker.close()


def network(op: str) -> onnx.ModelProto:
    """Return a network of one operator."""
    return build(f"g (float[2] x) => (float[2] y) {{ y = {op} (x) }}")


@pytest.mark.parametrize("action", ACTIONS)
def test_what_the_library_does_is_one_line(library: Callable[[str], None], action: str) -> None:
    """While it compiles, and while it runs; a model that is opened after that computes."""
    library(action)
    says = ACTIONS[action][1]
    compiles = f"OpenVINO 2026.9.9 cannot compile the model: .*({says})"
    with pytest.raises(RuntimeLibraryError, match=compiles) as fault:
        runtime.open_model(network("Neg"))
    assert len(str(fault.value)) < 500
    run = runtime.open_model(network("Relu"))
    np.testing.assert_array_equal(run(X)["y"], X["x"] * 2)
    with pytest.raises(RuntimeLibraryError, match=f"cannot run the model on this feed: .*({says})"):
        run({"x": -X["x"]})
    again = runtime.open_model(network("Relu"))
    np.testing.assert_array_equal(again(X)["y"], X["x"] * 2)


def test_models_that_nobody_uses_are_dropped(library: Callable[[str], None]) -> None:
    """The process forgets a model with the function that ran it, when the next one is opened."""
    library("refusal")
    first = runtime.open_model(network("Relu"))
    second = runtime.open_model(network("Relu"))
    del first
    third = runtime.open_model(network("Relu"))
    assert runtime._library is not None
    for run in (second, third):
        np.testing.assert_array_equal(run(X)["y"], X["x"] * 2)
    assert not runtime._dropped


def test_a_library_that_does_not_load_is_one_line(
    tmp_path: Path, library: Callable[[str], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """An installation that is broken says why."""
    (tmp_path / "openvino.py").write_text("raise ImportError('libtbb.so.12: cannot open')")
    monkeypatch.syspath_prepend(str(tmp_path))
    says = r"OpenVINO.* cannot start: .*libtbb.so.12: cannot open.*; install"
    with pytest.raises(RuntimeLibraryError, match=says):
        runtime.name_release()
