"""Quantizes a decoder that it makes itself to int4 by GPTQ, and prints time and memory.

    python tests/slow/check_large_decoder.py [--layers 16] [--width 2048] [--samples 64] [--tokens 512]
        [--folder FOLDER]

Not a pytest. 16 layers are 1.1 billion weights: half an hour of processor time, and 15 GB of disk. Checks
that processor time and resident memory, mapped files included, stay within their limits, that
progress says the time left, and that ONNX Runtime reads the result and runs it; the exit code is 1 when not.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import numpy as np
import onnxruntime

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "models"))

from networks.decoder import DecoderShape, random_tokens, write_decoder  # noqa: E402  of the models

MOST_BYTES, MOST_SECONDS = 8e9, 3600.0
"""Limits for a billion weights, in resident bytes and in seconds of processor time."""


class Run(NamedTuple):
    """Costs of a command: seconds of processor time, peak resident bytes, the lines it printed."""

    seconds: float
    peak: int
    lines: list[str]


def quantize(folder: Path, samples: int, shape: DecoderShape, rounding: str = "gptq") -> Run:
    """Write a decoder of `shape` and quantize it. Raises CalledProcessError if that fails."""
    write_decoder(folder, shape)
    np.savez(folder / "tokens.npz", input_ids=random_tokens(shape, samples))
    line = "quantize decoder.onnx --data tokens.npz --recipe tensorrt-int4 -o int4.onnx"
    line += f" --rounding {rounding}"
    command = [sys.executable, "-m", "onnxfq", *line.split()]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    with (folder / "printed").open("w+") as printed:
        run = subprocess.Popen(command, cwd=folder, stdout=printed, stderr=printed, env=environment)
        _, status, used = os.wait4(run.pid, 0)
        run.returncode = os.waitstatus_to_exitcode(status)
        printed.seek(0)
        lines = printed.read().splitlines()
    if run.returncode:
        raise subprocess.CalledProcessError(run.returncode, line, "\n".join(lines[-20:]))
    return Run(used.ru_utime + used.ru_stime, used.ru_maxrss * 1024, lines)


def sqnr_db(folder: Path, tokens: np.ndarray) -> float:
    """Return the SQNR of the int4 model's logits for `tokens`, in dB; infinities and NaN give NaN."""
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    # In any other order onnxruntime dequantizes all weights first and holds them.
    options.execution_order = onnxruntime.ExecutionOrder.PRIORITY_BASED
    options.enable_cpu_mem_arena = False
    logits = []
    for name in ("decoder.onnx", "int4.onnx"):
        session = onnxruntime.InferenceSession(folder / name, options, providers=["CPUExecutionProvider"])
        logits.append(session.run(None, {"input_ids": tokens})[0].astype(np.float64))
    right, found = logits
    return float(10 * np.log10((right**2).sum() / ((found - right) ** 2).sum()))


def main() -> int:
    """Check a decoder of the given number of layers."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--layers", type=int, default=16)
    parser.add_argument("--width", type=int, default=2048, help="of the residual stream; inner widths follow")
    parser.add_argument("--samples", type=int, default=64)
    parser.add_argument("--tokens", type=int, default=512, help="of a sample")
    parser.add_argument("--folder", type=Path)
    asked = parser.parse_args()
    wide = DecoderShape(layers=asked.layers, tokens=asked.tokens)
    shape = replace(wide, width=asked.width, hidden=4 * asked.width, heads=asked.width // 64)
    shape = replace(shape, key_heads=max(1, shape.heads // 4))
    with tempfile.TemporaryDirectory(dir=asked.folder) as place:
        folder = Path(place)
        run = quantize(folder, asked.samples, shape)
        print("\n".join(run.lines))
        noise = sqnr_db(folder, random_tokens(shape, 1, seed=1))
        sizes = [sum(file.stat().st_size for file in folder.glob(f"{name}*")) for name in ("decoder", "int4")]
    print(
        f"{shape.parameters / 1e9:.2f} billion weights, {sizes[0] / 1e9:.2f} GB to {sizes[1] / 1e9:.2f} GB: "
        f"{run.seconds:.0f} s of processor time, {run.peak / 1e9:.2f} GB; {noise:.1f} dB on other tokens"
    )
    right = [
        run.seconds <= MOST_SECONDS,
        run.peak <= MOST_BYTES,
        noise > 10,
        any("s left" in line for line in run.lines),
    ]
    print(right)
    return 0 if all(right) else 1


if __name__ == "__main__":
    sys.exit(main())
