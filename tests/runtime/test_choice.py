"""Choosing a device: a line says what a machine lacks, be its driver real, missing or fake."""

from __future__ import annotations

import logging
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from builders import build

from onnxfq.errors import DataError, DeviceMemoryError, RuntimeLibraryError, SpecError
from onnxfq.runtime import device_choice as choice
from onnxfq.runtime.device_choice import Outcome, choose_device, fall_back, gpu_problem
from onnxfq.runtime.devices import Gpu, cuda_built
from onnxfq.runtime.session import Session

ANY = choice._choose_any


@pytest.fixture(autouse=True)
def fresh(auto_is_the_cpu: None, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Every test starts without a cache, and leaves none behind."""
    monkeypatch.setattr(choice, "_choose_any", ANY)
    for cached in (choice._choose_any, choice.gpu_problem):
        cached.cache_clear()
    yield
    for cached in (ANY, gpu_problem):
        cached.cache_clear()


@pytest.fixture
def no_gpu() -> str:
    """The fault of the GPU here; skips without one."""
    problem = gpu_problem()
    if not problem:
        pytest.skip("a GPU works here")
    return problem


def test_cuda_without_a_gpu_is_one_line(no_gpu: str) -> None:
    """Asking for a GPU that is not there names what is missing and the remedy."""
    with pytest.raises(RuntimeLibraryError, match="device 'cuda' cannot be used: ") as caught:
        choose_device("cuda")
    assert no_gpu in str(caught.value)
    assert ";" in no_gpu


def test_auto_is_the_cpu_without_a_gpu(
    no_gpu: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Without a GPU any is the CPU, in silence; a request for one is refused with the reason."""
    monkeypatch.setattr(choice, "gpus_of_driver", lambda: 0)
    with caplog.at_level(logging.INFO, "onnxfq"):
        assert choose_device("any") == choose_device("cpu") == "cpu"
    (record,) = caplog.records
    assert (record.levelno, record.message) == (logging.INFO, f"running on the CPU: {no_gpu}")


def test_auto_says_that_it_takes_a_gpu(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """If a GPU works, any takes it and names it in one line, once."""
    gpu = Gpu(0, "a GPU", 90, 141 << 30, 13000, 13000)
    monkeypatch.setattr(choice, "cuda_problem", lambda: "")
    monkeypatch.setattr(choice, "self_test", lambda device: [Outcome(device, "Kernel", "")])
    monkeypatch.setattr(choice, "gpus", lambda: (gpu,))
    with caplog.at_level(logging.WARNING, "onnxfq"):
        assert choose_device("any") == choose_device("any") == choose_device("cuda") == "cuda"
    assert [record.message for record in caplog.records] == [
        f"running on {gpu}; choose device cpu for the CPU"
    ]
    assert str(gpu) == "a GPU, sm_90, 141 GB, driver for CUDA 13.0, kernels of CUDA 13.0"


def test_a_gpu_with_wrong_bits_is_not_used(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A kernel that fails its self-test, as on a GPU too old, keeps any on the CPU, with a note."""
    fault = "CUDA cannot launch FakeQuantize: no kernel image; this GPU is older; run on the CPU"
    outcomes = [Outcome("cuda", "Observe", ""), Outcome("cuda", "FakeQuantize", fault)]
    monkeypatch.setattr(choice, "cuda_problem", lambda: "")
    monkeypatch.setattr(choice, "self_test", lambda device: outcomes)
    monkeypatch.setattr(choice, "gpus_of_driver", lambda: 1)
    with caplog.at_level(logging.WARNING, "onnxfq"):
        assert choose_device("any") == "cpu"
    (record,) = caplog.records
    assert record.message == f"running on the CPU: FakeQuantize fails its self-test there: {fault}"
    with pytest.raises(RuntimeLibraryError, match="fails its self-test there: CUDA cannot launch"):
        choose_device("cuda")


def test_unknown_choice() -> None:
    """A wrong name is answered with the nearest."""
    with pytest.raises(SpecError, match=r"unknown device 'auto'; it is called 'any' here"):
        choose_device("auto")
    with pytest.raises(SpecError, match=r"unknown device 'cud'; nearest: cuda"):
        choose_device("cud")


def test_what_fails_on_a_gpu(caplog: pytest.LogCaptureFixture) -> None:
    """Auto goes to the CPU and says so; with a GPU asked for by name, and on the CPU, it is an error."""
    error = DeviceMemoryError("the GPU has no room; give a smaller batch, or run on the CPU")
    with caplog.at_level(logging.WARNING, "onnxfq"):
        assert fall_back("any", "cuda", error) == "cpu"
    assert [record.message for record in caplog.records] == [f"running on the CPU: {error}"]
    for wanted, device in (("cuda", "cuda"), ("any", "cpu"), ("cpu", "cpu")):
        with pytest.raises(DeviceMemoryError):
            fall_back(wanted, device, error)


def test_memory_that_cannot_be_had_is_told_by_onnxruntime() -> None:
    """Its allocator has the same words on CPU and GPU: there an error of data, here one of memory."""
    text = "g (int64[K] n) => (float[M] y) { one = Constant <value = float {1}> () y = Expand (one, n) }"
    session = Session(build(text), 1)
    feed = {"n": np.array([1 << 46])}
    with pytest.raises(DataError, match=r"the model cannot run on n \[1\]"):
        session.run(feed)
    session.device = "cuda"
    with pytest.raises(DeviceMemoryError, match=r"no room to run on n \[1\]: .*; give a smaller batch"):
        session.run(feed)


DRIVER = """
int cuInit(unsigned flags) { return INIT; }
int cuDriverGetVersion(int* version) { *version = VERSION; return 0; }
int cuDeviceGetCount(int* count) { *count = 1; return 0; }
"""
ASK = """
import logging
logging.basicConfig(format="%(levelname)s %(message)s", level=logging.INFO)
from onnxfq.runtime.device_choice import choose_device
print(choose_device("any"))
try:
    choose_device("cuda")
except Exception as error:
    print(type(error).__name__, error)
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="the driver's library has Linux's name")
@pytest.mark.skipif(not cuda_built(), reason="the library has no CUDA kernels")
@pytest.mark.parametrize(
    ("version", "init", "level", "text"),
    [
        (
            11040,
            0,
            "WARNING",
            r"the driver is for CUDA 11\.4 and these kernels are of CUDA 1\d\.\d+; install",
        ),
        (99000, 100, "INFO", "there is no GPU, or CUDA_VISIBLE_DEVICES hides it; run on the CPU"),
    ],
)
def test_drivers(tmp_path: Path, version: int, init: int, level: str, text: str) -> None:
    """A library in the driver's place that answers as old drivers and machines without a GPU do."""
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        pytest.skip("no C compiler")
    (tmp_path / "driver.c").write_text(DRIVER)
    made = [str(tmp_path / "driver.c"), "-o", str(tmp_path / "libcuda.so.1")]
    subprocess.run(
        [compiler, "-shared", "-fPIC", f"-DVERSION={version}", f"-DINIT={init}", *made], check=True
    )
    root = str(Path(choice.__file__).parents[2])
    environment = os.environ | {"LD_LIBRARY_PATH": str(tmp_path), "PYTHONPATH": root}
    done = subprocess.run(
        [sys.executable, "-c", ASK], env=environment, capture_output=True, text=True, check=True
    )
    device, error = done.stdout.splitlines()
    assert device == "cpu"
    assert error.startswith("RuntimeLibraryError device 'cuda' cannot be used: ") and re.search(text, error)
    (note,) = done.stderr.splitlines()
    assert note.startswith(f"{level} running on the CPU: ") and re.search(text, note)
