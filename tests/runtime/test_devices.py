"""Devices: the CPU always, a GPU where there is one, and one line that says what is missing elsewhere."""

from __future__ import annotations

import logging

import numpy as np
import pytest

from onnxfq.errors import RuntimeLibraryError, SpecError
from onnxfq.runtime import devices, kernels
from onnxfq.runtime.devices import choose_device, cuda_problem
from onnxfq.runtime.gpus import Gpu, gpus
from onnxfq.runtime.self_test import self_test
from onnxfq.runtime.session import Session


@pytest.fixture
def no_gpu() -> str:
    """What is wrong with the GPU here; skips where nothing is."""
    problem = cuda_problem()
    if not problem:
        pytest.skip("a GPU works here")
    return problem


def test_self_test_passes_on_the_cpu() -> None:
    """Every kernel gives NumPy's bits on the CPU."""
    outcomes = self_test("cpu")
    assert len(outcomes) == 5
    assert [outcome.fault for outcome in outcomes] == [""] * 5


def test_cuda_without_a_gpu_is_one_line(no_gpu: str) -> None:
    """Asking for a GPU that is not there names what is missing and the remedy."""
    with pytest.raises(RuntimeLibraryError, match="device 'cuda' cannot be used: ") as caught:
        choose_device("cuda")
    assert "\n" not in str(caught.value)
    assert no_gpu in str(caught.value)
    assert ";" in no_gpu


def test_auto_is_the_cpu_without_a_gpu(no_gpu: str, caplog: pytest.LogCaptureFixture) -> None:
    """Where no GPU works, auto is the CPU and nobody is bothered."""
    with caplog.at_level(logging.WARNING, "onnxfq"):
        assert choose_device("auto") == choose_device("cpu") == "cpu"
    assert not caplog.records


def test_auto_says_that_it_takes_a_gpu(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Where a GPU works, auto takes it and names it in one line."""
    gpu = Gpu(0, "a GPU", 90, 141 << 30, 13000, 13000)
    monkeypatch.setattr(devices, "cuda_problem", lambda: "")
    monkeypatch.setattr(devices, "gpus", lambda: (gpu,))
    with caplog.at_level(logging.WARNING, "onnxfq"):
        assert choose_device("auto") == "cuda"
    assert [record.message for record in caplog.records] == [
        f"running on {gpu}; choose device cpu for the CPU"
    ]
    assert str(gpu) == "a GPU, sm_90, 141 GB, driver for CUDA 13.0, kernels of CUDA 13.0"


def test_missing_provider_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """With a GPU but without onnxruntime's CUDA provider the remedy is the other package."""
    monkeypatch.setattr(devices, "gpus", lambda: ())
    monkeypatch.setattr(devices.onnxruntime, "get_available_providers", lambda: ["CPUExecutionProvider"])
    assert "install onnxruntime-gpu" in cuda_problem.__wrapped__()


def test_provider_that_does_not_load_is_named(monkeypatch: pytest.MonkeyPatch, no_gpu: str) -> None:
    """Where the provider's own libraries are missing, onnxruntime falls back silently; here it is said."""
    if "CUDAExecutionProvider" not in devices.onnxruntime.get_available_providers():
        pytest.skip("this onnxruntime has no CUDA provider")
    monkeypatch.setattr(devices, "gpus", lambda: ())
    assert "CUDA" in cuda_problem.__wrapped__()


def test_session_on_a_missing_gpu_is_refused(no_gpu: str) -> None:
    """A session never runs on another device than the one it was asked for."""
    from builders import build

    with pytest.raises(RuntimeLibraryError, match="fell back to the CPU"):
        Session(build("g (float[2] x) => (float[2] y) { y = Relu (x) }"), 1, device="cuda")


def test_kernels_without_a_gpu_are_one_line() -> None:
    """Kernels asked to run on a GPU that is not there raise RuntimeLibraryError."""
    try:
        gpus()
    except RuntimeLibraryError as reason:
        for run in (
            lambda: kernels.fake_quantize(np.ones(3, np.float32), 0.1, qtype="int8", device="cuda"),
            lambda: kernels.dynamic_fake_quantize(np.ones(3, np.float32), qtype="int8", device="cuda"),
            lambda: kernels.observe(np.ones(3, np.float32), device="cuda"),
        ):
            with pytest.raises(RuntimeLibraryError) as caught:
                run()
            assert str(caught.value) == str(reason)
    else:
        pytest.skip("there is a GPU")


def test_unknown_device() -> None:
    """A wrong name is answered with the nearest."""
    with pytest.raises(SpecError, match=r"unknown device 'gpu'; nearest: cpu"):
        kernels.fake_quantize(np.ones(3, np.float32), 0.1, qtype="int8", device="gpu")
