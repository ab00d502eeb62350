"""Every command ends with every built-in recipe on every kind of end that a network has: no inner error."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from builders import build_used, weights

from onnxfq.cli.main import main
from onnxfq.targets.recipes import RECIPES

CONV = "a = Conv <pads = [1, 1, 1, 1]> (x, k) r = Relu (a)"
FEATURES, ROWS = "float[N,4,6,6]", "float[N,32]"
ENDS: dict[str, tuple[str, str, str]] = {
    "product": (ROWS, "float[N,32] y", "h = MatMul (x, w) r = Relu (h) y = MatMul (r, w)"),
    "convolution": (FEATURES, "float[N,4,6,6] y", f"{CONV} y = Conv <pads = [1, 1, 1, 1]> (r, k)"),
    "activation": (
        FEATURES,
        "float[N,4,6,6] y",
        f"{CONV} b = Conv <pads = [1, 1, 1, 1]> (r, k) y = Relu (b)",
    ),
    "softmax": (ROWS, "float[N,32] y", "h = MatMul (x, w) y = Softmax (h)"),
    "concat": (
        FEATURES,
        "float[N,8,6,6] y",
        f"{CONV} b = Conv <pads = [1, 1, 1, 1]> (r, k) y = Concat <axis = 1> (r, b)",
    ),
    "sum": (FEATURES, "float[N,4,6,6] y", f"{CONV} b = Conv <pads = [1, 1, 1, 1]> (r, k) y = Add (x, b)"),
    "pooling": (FEATURES, "float[N,4,1,1] y", f"{CONV} y = GlobalAveragePool (r)"),
    "two outputs of one tensor": (
        ROWS,
        "float[N,32] y, float[N,32] z, float[N,32] u",
        "h = MatMul (x, w) y = Relu (h) z = Identity (y) u = Identity (y)",
    ),
    "an output that is read again": (
        ROWS,
        "float[N,32] y, float[N,32] z",
        "h = MatMul (x, w) y = Relu (h) z = MatMul (y, w)",
    ),
    "an input that is an output": (
        ROWS,
        "float[N,32] y, float[N,32] z",
        "y = MatMul (x, w) z = Identity (x)",
    ),
    "classes": (ROWS, "int64[N,1] y, float[N,32] h", "h = MatMul (x, w) y = ArgMax <axis = 1> (h)"),
    "nothing to quantize": (ROWS, "float[N,32] y", "y = Neg (x)"),
    "sequence": (ROWS, "seq(float[N,32]) y", "h = MatMul (x, w) r = Relu (h) y = SequenceConstruct (h, r)"),
}
"""Type of the input, the outputs and the nodes of a network, by the kind of its end."""

LINES = (
    "quantize m.onnx --data d.npz --recipe {0} -o q.onnx --report r.html",
    "sensitivity m.onnx --data d.npz --recipe {0}",
    "plan m.onnx --data d.npz --recipe {0} -o p.json",
    "observe m.onnx --data d.npz --recipe {0} -o s.npz",
    "evaluate m.onnx q.onnx --data d.npz --per-tensor",
    "check q.onnx --target {1} --no-build",
    "compare q.onnx --data d.npz",
    "diagnose q.onnx --data d.npz",
    "inspect q.onnx",
    "inspect m.onnx q.onnx",
    "convert q.onnx -o c.onnx",
    "quantize q.onnx --data d.npz --recipe {0} --requantize -o again.onnx",
    "cast m.onnx --data d.npz -o half.onnx",
    "handoff q.onnx -o packed --data d.npz",
)


def write_network(end: str) -> None:
    """Write the network and 12 samples of data to the current folder."""
    kind, outputs, nodes = ENDS[end]
    constants = {"w": weights(32, 32), "k": weights(4, 4, 3, 3)}
    onnx.save(build_used(f"g ({kind} x) => ({outputs}) {{ {nodes} }}", constants), "m.onnx")
    shape = [12 if size == "N" else int(size) for size in kind.partition("[")[2].rstrip("]").split(",")]
    np.savez("d.npz", x=np.random.default_rng(0).normal(size=shape).astype(np.float32))


@pytest.mark.parametrize("recipe", sorted(RECIPES))
def test_no_command_crashes(
    recipe: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
    request: pytest.FixtureRequest,
) -> None:
    """Each ends with success, a difference or one line of an error; an inner error would be raised.

    Unless all cases are asked for, a recipe has one end and a third of the lines behind the first, and the
    next recipe the next ones.
    """
    number, every = sorted(RECIPES).index(recipe), request.config.getoption("--all-cases")
    lines = LINES if every else (LINES[0], *LINES[1 + number % 3 :: 3])
    for end in ENDS if every else [[*ENDS][number % len(ENDS)]]:
        (tmp_path / end).mkdir()
        monkeypatch.chdir(tmp_path / end)
        write_network(end)
        run_all(lines, recipe, capfd)


def run_all(lines: tuple[str, ...], recipe: str, capfd: pytest.CaptureFixture[str]) -> None:
    """Run lines of commands in the current folder."""
    for line in lines:
        if " q.onnx" in line and not Path("q.onnx").exists() and "-o q.onnx" not in line:
            continue
        code = main(line.format(recipe, RECIPES[recipe].target).split())
        errors = [line for line in capfd.readouterr().err.splitlines() if line.startswith("onnxfq: error")]
        assert code in (0, 1, 3) and len(errors) <= 1, (line, errors)
