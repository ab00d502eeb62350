"""The check of a machine with a GPU: its refusals elsewhere; that its benchmark of networks finds faults."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import numpy as np
import onnx
import pytest
from builders import build, weights

from onnxfq.runtime.providers import cuda_problem

ROOT = Path(__file__).parent.parent


@pytest.fixture
def networks(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The benchmark, with one small network."""
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    for name in ("gpu_networks", "shapes", "timing"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    import gpu_networks

    monkeypatch.setattr(gpu_networks, "NETWORKS", {"small": small})
    return gpu_networks


def small(batch: int) -> onnx.ModelProto:
    """Two convolutions of an image of the usual size."""
    return build(
        f"""g (float[{batch},3,224,224] x) => (float[{batch},4,28,28] y) {{
            c = Conv <strides = [8,8]> (x, w1) r = Relu (c) y = Conv <kernel_shape = [1,1]> (r, w2) }}""",
        {"w1": weights(4, 3, 1, 1), "w2": weights(4, 4, 1, 1)},
    )


def test_networks_on_the_cpu(networks, monkeypatch, capsys, tmp_path) -> None:
    """All of the benchmark but the GPU: sessions, states, profiles, the CPU's statistics."""
    page = tmp_path / "page.md"
    line = f"gpu_networks --device cpu --batch 2 --rounds 1 --networks small --out {page}"
    monkeypatch.setattr(sys, "argv", line.split())
    assert networks.main() == 0
    assert capsys.readouterr().out.endswith("statistics equal, no Memcpy, nothing of ours elsewhere\n")
    text = page.read_text(encoding="utf-8")
    assert "small, batch 2, 2 activations" in text
    assert all(f"\n| {name} | " in text for name in ("plain", "observed", "fake-quantized"))

    true = networks.observed_on_cpu
    monkeypatch.setattr(networks, "observed_on_cpu", lambda x: true(np.nextafter(x, np.float32(9))))
    assert networks.main() == 1
    assert capsys.readouterr().out.endswith("small: statistics differ from the CPU's\n")


def test_nodes_on_another_device_are_found(networks, tmp_path) -> None:
    """If the CUDA provider cannot be loaded, onnxruntime takes the CPU's: the profile shows it."""
    if not cuda_problem():
        pytest.skip("a GPU works here")
    import onnxfq
    from onnxfq.calibration.statistics import empty_state
    from onnxfq.calibration.statistics.state import StateNames
    from onnxfq.passes.observe.insert_merging import with_merging

    model = onnxfq.load(small(1))
    plan = onnxfq.make_plan(model, onnxfq.load_recipe("tensorrt-int8"))
    feed = {"x": np.ones((1, 3, 224, 224), np.float32)}
    feed |= {StateNames.from_tensor(p.tensor).given: empty_state() for p in plan.activations}
    observed = with_merging(model, plan).proto
    assert networks.misplaced(observed, feed, "cpu", tmp_path) == []
    wrong = networks.misplaced(observed, feed, "cuda", tmp_path)
    assert wrong == ["MergeStatistics on CPUExecutionProvider"] * 2


@pytest.mark.skipif(shutil.which("bash") is None, reason="needs bash")
@pytest.mark.parametrize(
    ("with_nvcc", "text"),
    [(False, "there is no nvcc on the PATH"), (True, "there is no GPU that nvidia-smi knows")],
)
def test_what_the_machine_lacks_is_told(with_nvcc: bool, text: str, tmp_path: Path) -> None:
    """One line and an exit code, before anything is built."""
    programs = tmp_path / "bin"
    programs.mkdir()
    for name in ("bash", "dirname", "mkdir"):
        (programs / name).symlink_to(shutil.which(name))
    if with_nvcc:
        (programs / "nvcc").write_text("#!/bin/sh\nexit 1\n")
        (programs / "nvcc").chmod(0o755)
    script = [shutil.which("bash"), str(ROOT / "scripts" / "gpu_check.sh"), str(tmp_path / "results")]
    environment = os.environ | {"PATH": str(programs)}
    done = subprocess.run(script, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert text in done.stderr and len(done.stderr.splitlines()) == 1


def rows_of(page: str) -> dict[str, str]:
    """The result of every step of a page that the script writes."""
    cells = [line.strip("| ").split(" | ") for line in page.splitlines() if line.startswith("| ")]
    return {step: result for step, _, result in cells[2:]}


@pytest.mark.skipif(shutil.which("bash") is None, reason="needs bash")
def test_the_page_tells_what_has_not_run() -> None:
    """The results hold the script's own list, or what the script has written on a GPU: every step."""
    page = (ROOT / "benchmarks" / "results" / "gpu.md").read_text(encoding="utf-8")
    script = [shutil.which("bash"), str(ROOT / "scripts" / "gpu_check.sh"), "--list"]
    listed = subprocess.run(script, capture_output=True, text=True, check=True).stdout
    assert set(rows_of(listed).values()) == {"not run"}
    if "None of this has run on a GPU" in page:
        assert page == listed
    else:
        assert rows_of(page).keys() == rows_of(listed).keys()


TOOLS = {
    "nvcc": "exit 0",
    "nvidia-smi": """case "$1" in
        *=compute_cap) echo 9.0 ;;
        *=memory.total) echo 81559 ;;
        *) echo "Test GPU, 1, 81559 MiB" ;;
        esac""",
    "cmake": """if [ "$1" = -S ]; then
            printf '#!/bin/sh\\nexec "%s" "$@"\\n' "$CHECK" >"$4/cuda_check"
            chmod +x "$4/cuda_check"
        fi""",
    "timeout": """shift; case "$*" in *" large") exit 124 ;; *) exec "$@" ;; esac""",
    "compute-sanitizer": "echo 'ERROR SUMMARY: 0 errors'",
    "python": "echo 'No module named onnx' >&2; exit 1",
    "check": """case "$1" in
        name) echo test_gpu ;;
        speed) echo '| a | table |' >"$2"; echo "$MARKS of 9 marks met." ;;
        formats) echo 'failed: element 3' >&2; exit 1 ;;
        *) echo 'ok: 1e+09 values' ;;
        esac""",
}


@pytest.mark.skipif(shutil.which("bash") is None, reason="needs bash")
@pytest.mark.parametrize(("marks", "word"), [(9, "ok"), (7, "missed")])
def test_one_step_does_not_cost_another(marks: int, word: str, tmp_path: Path) -> None:
    """Tools pretend to fail, hang or miss marks: the page tells it, and the other steps have results."""
    programs = tmp_path / "bin"
    programs.mkdir()
    for name, text in TOOLS.items():
        (programs / name).write_text(f"#!{shutil.which('bash')}\n{text}\n")
        (programs / name).chmod(0o755)
    (tmp_path / "scripts").mkdir()
    script = shutil.copy(ROOT / "scripts" / "gpu_check.sh", tmp_path / "scripts")
    environment = os.environ | {
        "PATH": f"{programs}{os.pathsep}{os.environ['PATH']}",
        "PYTHON": str(programs / "python"),
        "CHECK": str(programs / "check"),
        "MARKS": str(marks),
    }
    done = subprocess.run(["bash", script], env=environment, capture_output=True, text=True, check=False)
    results = tmp_path / "benchmarks" / "results"
    page = (results / "gpu.md").read_text(encoding="utf-8")
    assert page.startswith("# Checked on a GPU\n"), done.stdout + done.stderr
    assert page.splitlines()[2].endswith(": Test GPU, 1, 81559 MiB.")
    rows = rows_of(page)
    assert rows["formats"] == "failed: failed: element 3"
    assert rows["speed"].startswith(f"{word}, ") and rows["speed"].endswith(f"{marks} of 9 marks met.")
    assert rows["floats"].endswith("ok: 1e+09 values")
    assert rows["large"] == "stopped after 60 s" and rows["memcheck"].endswith("ERROR SUMMARY: 0 errors")
    assert rows["doctor"] == rows["networks"] == "left out: No module named onnx"
    assert (results / "cuda_test_gpu.md").exists()
    assert "failed: element 3" in (results / "gpu_check.log").read_text(encoding="utf-8")
    assert done.returncode == 1 and "failed: formats, see" in done.stdout


def test_pages_say_what_the_gpu_met() -> None:
    """Pages count the steps that passed and the marks that are met as the results have them."""
    results = ROOT / "benchmarks" / "results"
    ends = list(rows_of((results / "gpu.md").read_text(encoding="utf-8")).values())
    table = (results / "cuda_nvidia_h200.md").read_text(encoding="utf-8")
    rows = [
        line.strip("| ").split(" | ") for line in table.splitlines() if re.match(r"\| \w*float\d+ \|", line)
    ]
    marked = [row for row in rows if len(row) == 6]
    met = f"{sum('missed' not in row[-1] for row in marked)} of {len(marked)} marks"
    assert any(end.startswith("missed") and met in end for end in ends) or all(met not in end for end in ends)
    passed = f"{sum(end.startswith('ok, ') for end in ends)} of {len(ends)} steps pass"
    for page in ("docs/devices.md", "benchmarks/README.md"):
        text = " ".join((ROOT / page).read_text(encoding="utf-8").split())
        assert passed in text and met in text, page
    quantizing = [float(row[4]) for row in rows if not row[1].startswith(("copy", "MergeStatistics"))]
    most = f"{sum(0.83 <= share <= 0.98 for share in quantizing)} of {len(quantizing)} rows at .83 to .98"
    assert most in " ".join((ROOT / "CHANGELOG.md").read_text(encoding="utf-8").split())
