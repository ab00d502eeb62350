"""`quantize.py`, `sensitivity.py` and `moments.py` of benchmarks run; their figures are not judged here."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import onnx
import pytest
from builders import build, weights

ROOT = Path(__file__).resolve().parents[1]


def tiny_network() -> onnx.ModelProto:
    """Return a network with the input of the benchmarks' networks."""
    return build(
        """g (float[1,3,224,224] x) => (float[1,4,55,55] y) {
            h = Conv <strides = [4, 4]> (x, w) y = Relu (h) }""",
        {"w": weights(4, 3, 7, 7)},
    )


def test_the_whole_job_is_measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each job runs in its own process on its network and gives one row of figures, no error."""
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.delitem(sys.modules, "quantize", raising=False)
    import quantize

    onnx.save(tiny_network(), tmp_path / "tiny.onnx")
    jobs = ["plain inference", "onnxfq", "onnxruntime minmax"]
    rows = quantize.measure(tmp_path / "tiny.onnx", 2, jobs, threads=1, rounds=1)
    assert [row[:3] for row in rows] == [["tiny", "2", job] for job in jobs]
    assert all(float(cell) > 0 for row in rows for cell in row[3:])
    assert (tmp_path / "onnxfq.onnx").exists() and (tmp_path / "onnxruntime.onnx").exists()


def test_the_ranking_is_measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each job gives one row; the ranking reads the statistics of the calibration."""
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    for name in ("quantize", "sensitivity"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    import sensitivity

    onnx.save(tiny_network(), tmp_path / "tiny.onnx")
    rows = sensitivity.measure(tmp_path / "tiny.onnx", 2, threads=1, rounds=1)
    assert [row[1] for row in rows] == ["plain inference", "calibration", "ranking"]
    assert all(float(row[2]) > 0 and float(row[4]) > 0 for row in rows)
    assert json.loads((tmp_path / "tiny.groups.json").read_text())["samples"] == 2


def test_moments_are_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    """Moments and observing take turns on a network and give one row of figures."""
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    import moments

    network = build(
        """g (float[1,3,8,8] x) => (float[1,4,6,6] y) { h = Conv (x, w) y = Relu (h) }""",
        {"w": weights(4, 3, 3, 3)},
    )
    layers, observing, taken, ratio = moments.measure(network, 3, threads=1, rounds=1)
    assert layers == "1"
    assert min(map(float, (observing, taken, ratio))) > 0
