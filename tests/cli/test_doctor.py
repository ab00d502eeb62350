"""`onnxfq doctor`: what it prints, and its exit code."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from onnxfq.cli.main import main
from onnxfq.errors import RuntimeLibraryError
from onnxfq.runtime.device_choice import Outcome
from onnxfq.runtime.devices import Gpu, gpus
from onnxfq.tools import machine


def have_gpu() -> bool:
    """Whether this machine has one."""
    try:
        return bool(gpus())
    except RuntimeLibraryError:
        return False


def test_a_sound_machine(capsys: pytest.CaptureFixture[str]) -> None:
    """Versions, library and a line for each kernel; exit code 0."""
    assert main(["doctor"]) == 0
    lines = capsys.readouterr().out.splitlines()
    for word in ("onnxfq", "onnxruntime", "library", "CUDA kernels", "GPU", "sessions", "device any"):
        assert any(line.startswith(word) for line in lines), word
    tested = [line for line in lines if line.startswith("cpu ")]
    assert len(tested) == 5 and all(line.endswith("ok") for line in tested)


@pytest.mark.skipif(have_gpu(), reason="there is a GPU")
def test_without_a_gpu(capsys: pytest.CaptureFixture[str]) -> None:
    """A missing part stands there with its remedy, and no GPU is tested."""
    main(["doctor"])
    lines = capsys.readouterr().out.splitlines()
    assert any(line.startswith("GPU") and "none: " in line and ";" in line for line in lines)
    assert not any(line.startswith("cuda ") for line in lines)


def test_a_fault_is_told(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """A kernel that gives other bits makes the exit code 1; every GPU's kernels are tested."""
    gpu = Gpu(0, "a GPU", 75, 16 << 30, 12040, 13000)
    monkeypatch.setattr(machine, "gpus", lambda: (gpu,))
    monkeypatch.setattr(
        machine,
        "self_test",
        lambda device, in_sessions=True: [Outcome(device, "Kernel", "3 of 9 values differ")],
    )
    assert main(["doctor"]) == 1
    out = capsys.readouterr().out
    assert "a GPU, sm_75, 16 GB, driver for CUDA 12.4, kernels of CUDA 13.0" in out
    assert "cuda  Kernel  3 of 9 values differ" in out
    assert main(["doctor", "--json"]) == 1
    content = json.loads(capsys.readouterr().out)
    fault = "3 of 9 values differ"
    assert content["tests"] == [{"device": d, "kernel": "Kernel", "fault": fault} for d in ("cpu", "cuda")]
    assert content["facts"][0][0] == "onnxfq" and all(value in out for _, value in content["facts"])


def test_both_builds_of_onnxruntime(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Two packages that write the same files are named, one alone is not."""
    monkeypatch.setattr(
        machine, "self_test", lambda device, in_sessions=True: [Outcome(device, "Kernel", "")]
    )
    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    for name, fault in (("onnxruntime_gpu", False), ("onnxruntime", True)):
        folder = tmp_path / f"{name}-1.20.0.dist-info"
        folder.mkdir()
        (folder / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.20.0\n")
        main(["doctor"])
        assert ("uninstall both and install one" in capsys.readouterr().out) == fault


def test_every_gpu_is_tested(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """With several GPUs kernels run on each, sessions on the first, which is the one in use afterwards."""
    used, asked = [], []

    def tested(device: str, in_sessions: bool = True) -> list[Outcome]:
        asked.append((device, in_sessions, used[-1] if used else None))
        return [Outcome(device, "Kernel", "other bits" if used == [0, 0, 1] else "")]

    two = tuple(Gpu(index, f"GPU {index}", 90, 80 << 30, 13000, 13000) for index in (0, 1))
    monkeypatch.setattr(machine, "gpus", lambda: two)
    monkeypatch.setattr(machine, "use_gpu", used.append)
    monkeypatch.setattr(machine, "cuda_problem", lambda: "")
    monkeypatch.setattr(machine, "self_test", tested)
    assert main(["doctor"]) == 1
    assert asked == [("cpu", True, None), ("cuda", True, 0), ("cuda", False, 1)]
    assert used == [0, 0, 1, 0]
    lines = capsys.readouterr().out.splitlines()
    assert lines[-3:] == ["cpu     Kernel  ok", "cuda:0  Kernel  ok", "cuda:1  Kernel  other bits"]
    assert "device any    cuda" in lines
