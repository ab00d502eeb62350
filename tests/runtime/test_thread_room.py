"""Sessions where the system gives fewer threads than asked."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import onnx
import pytest
from builders import conv_relu

import onnxfq.runtime

_OPEN = """
import os, resource, sys
from onnxfq.errors import OnnxfqError
from onnxfq.runtime.session import Session
import onnx
model, limit = onnx.load(sys.argv[1]), int(sys.argv[2])
Session(model, threads=1)
size = int(open("/proc/self/statm").read().split()[0]) * os.sysconf("SC_PAGE_SIZE")
resource.setrlimit(resource.RLIMIT_AS, (size + limit * 10**6, resource.RLIM_INFINITY))
try:
    Session(model, threads=16)
    print("opened")
except (OnnxfqError, MemoryError) as error:
    print(type(error).__name__, error)
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="limits of Linux")
@pytest.mark.parametrize("limit", [1, 20, 50, 100, 300])
def test_few_threads(tmp_path: Path, limit: int) -> None:
    """Room for some of 16 threads of 8 MB: the session has one, where onnxruntime alone never returns."""
    onnx.save(conv_relu(), tmp_path / "m.onnx")
    shell = ["bash", "-c", 'ulimit -s 8192; exec "$@"', "bash"]
    words = [sys.executable, "-c", _OPEN, str(tmp_path / "m.onnx"), str(limit)]
    ended = subprocess.run([*shell, *words], capture_output=True, text=True, timeout=100)
    assert ended.returncode == 0, ended
    assert limit < 20 or "opened" in ended.stdout, ended.stdout
    assert "onnxruntime runs on 1 thread instead of 16" in ended.stderr


@pytest.mark.whole
def test_one_door() -> None:
    """All sessions of the package are opened in one place."""
    calls = []
    for path in Path(onnxfq.runtime.__file__).parents[1].rglob("*.py"):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        calls += [
            path.name
            for node in ast.walk(tree)
            if isinstance(node, ast.Call) and ast.unparse(node.func).endswith("onnxruntime.InferenceSession")
        ]
    assert calls == ["ort.py"]
