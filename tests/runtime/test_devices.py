"""Devices: the CPU always, a GPU where there is one, and one line that says what is missing elsewhere."""

from __future__ import annotations

import numpy as np
import pytest

from onnxfq.errors import RuntimeLibraryError, SpecError
from onnxfq.runtime import devices as own_devices
from onnxfq.runtime import kernels
from onnxfq.runtime import providers as devices
from onnxfq.runtime.device_choice import self_test
from onnxfq.runtime.devices import gpus
from onnxfq.runtime.providers import cuda_problem
from onnxfq.runtime.session import Session


@pytest.fixture
def no_gpu() -> str:
    """The fault of the GPU here; skips without one."""
    problem = cuda_problem()
    if not problem:
        pytest.skip("a GPU works here")
    return problem


def test_self_test_passes_on_the_cpu() -> None:
    """Every kernel gives NumPy's bits on the CPU."""
    outcomes = self_test("cpu")
    assert len(outcomes) == 5
    assert [outcome.fault for outcome in outcomes] == [""] * 5


def test_a_library_without_cuda_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """Built where there was no compiler, the remedy is to build it again."""
    monkeypatch.setattr(own_devices, "cuda_built", lambda: False)
    assert cuda_problem.__wrapped__() == (
        "the custom-op library was built without CUDA kernels; put nvcc on the PATH and run "
        "`pip install .` again"
    )


def test_missing_provider_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """With a GPU but without onnxruntime's CUDA provider the remedy is the other package."""
    monkeypatch.setattr(devices, "gpus", lambda: ())
    monkeypatch.setattr(devices.onnxruntime, "get_available_providers", lambda: ["CPUExecutionProvider"])
    assert "install onnxruntime-gpu" in cuda_problem.__wrapped__()


def test_provider_that_does_not_load_is_named(monkeypatch: pytest.MonkeyPatch, no_gpu: str) -> None:
    """If the provider's libraries are missing, onnxruntime falls back silently; here a line says so."""
    if "CUDAExecutionProvider" not in devices.onnxruntime.get_available_providers():
        pytest.skip("this onnxruntime has no CUDA provider")
    monkeypatch.setattr(devices, "gpus", lambda: ())
    problem = cuda_problem.__wrapped__()
    assert "CUDA" in problem and "\n" not in problem


def test_libraries_that_are_nowhere_are_named(capfd: pytest.CaptureFixture[str], no_gpu: str) -> None:
    """The names that onnxruntime prints of missing libraries become part of the one line."""
    missing = devices._load_cuda_libraries()
    assert capfd.readouterr().out == ""
    if not missing:
        pytest.skip("this onnxruntime finds CUDA's libraries, or looks for none")
    assert all(name.startswith("lib") or name.endswith(".dll") for name in missing)
    assert f"({', '.join(missing)} not found): `pip install " in devices._provider_problem(missing)


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
