"""Quantizes a decoder that it makes itself to int4 by GPTQ, and prints time and memory.

    python tests/slow/check_large_decoder.py [--layers 16] [--width 2048] [--samples 64] [--tokens 512]
        [--threads N] [--folder FOLDER] [--python PYTHON]

Not a pytest. 16 layers are 1.1 billion weights: two hours of processor time, and 15 GB of disk. Checks that
processor time and resident memory, mapped files included, stay within their limits, and that progress says
the time left of a long run. The folder must generate: in ONNX Runtime GenAI by a PYTHON that has it, else in
ONNX Runtime.
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
sys.path[:0] = [
    str(ROOT / "models"),
    str(ROOT / "tests"),
    str(ROOT / "tests/networks"),
    str(ROOT / "tests/slow"),
]

from check_genai import generate  # noqa: E402  of the slow checks
from networks.decoder import DecoderShape, random_tokens  # noqa: E402  of the models
from networks.genai_decoder import write_genai_decoder  # noqa: E402

MOST_BYTES, MOST_SECONDS = 8e9, 7200.0
"""Limits for a billion weights: resident bytes, and seconds of processor time, an hour on two cores."""

STEPS = 32
"""Tokens that are generated."""


class Run(NamedTuple):
    """Costs of a command: seconds of processor time, peak resident bytes, the lines it printed."""

    seconds: float
    peak: int
    lines: list[str]


def quantize(
    folder: Path, samples: int, shape: DecoderShape, rounding: str = "gptq", threads: int = 0
) -> Run:
    """Write the folders `float` and `int4` of a decoder. Raises CalledProcessError if the latter fails."""
    write_genai_decoder(folder / "float", shape)
    tokens = random_tokens(shape, samples)
    np.savez(folder / "tokens.npz", **feed(shape, tokens))
    line = "quantize float --data tokens.npz --recipe genai-int4 -o int4"
    line += f" --rounding {rounding} --threads {threads}"
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


def feed(shape: DecoderShape, tokens: np.ndarray) -> dict[str, np.ndarray]:
    """Return the inputs that read `tokens` from empty caches."""
    empty = np.zeros((len(tokens), shape.key_heads, 0, shape.width // shape.heads), np.float32)
    caches = {f"past_key_values.{n}.{kind}": empty for n in range(shape.layers) for kind in ("key", "value")}
    return {"input_ids": tokens, "attention_mask": np.ones_like(tokens), **caches}


def generate_plainly(folder: Path, shape: DecoderShape, given: list[int]) -> tuple[np.ndarray, list[int]]:
    """Return the logits of `STEPS` steps in ONNX Runtime, and their tokens: the given ones, or the best."""
    options = onnxruntime.SessionOptions()
    options.enable_cpu_mem_arena = False
    options.log_severity_level = 3  # no warning of constants that nothing reads
    session = onnxruntime.InferenceSession(folder / "model.onnx", options, providers=["CPUExecutionProvider"])
    names = [output.name for output in session.get_outputs()]
    inputs = feed(shape, np.array([[1, 40, 50, 60]]))
    logits, tokens = [], []
    for step in range(STEPS):
        made = dict(zip(names, session.run(None, inputs), strict=True))
        logits.append(made.pop("logits")[0, -1])
        tokens.append(given[step] if given else int(logits[-1].argmax()))
        mask = np.ones((1, inputs["attention_mask"].shape[1] + 1), np.int64)
        caches = {name.replace("present", "past_key_values"): value for name, value in made.items()}
        inputs = {"input_ids": np.array([tokens[-1:]]), "attention_mask": mask, **caches}
    return np.array(logits), tokens


def run_steps(
    folder: Path, shape: DecoderShape, python: str | None, given: list[int]
) -> tuple[np.ndarray, list[int]]:
    """Return what `generate_plainly` returns; in ONNX Runtime GenAI if `python` has it."""
    if python:
        return generate(folder, folder.parent, python, given)
    return generate_plainly(folder, shape, given)


def sqnr_db(folder: Path, shape: DecoderShape, python: str | None = None) -> float:
    """Return the SQNR of int4's logits, token by token along an unseen text, in dB.

    The text is like those that calibrate: a network of random weights goes astray in its own.
    """
    tokens = random_tokens(shape, 1, seed=1)[0, :STEPS].tolist()
    right, found = (
        run_steps(folder / name, shape, python, tokens)[0].astype(np.float64) for name in ("float", "int4")
    )
    return float(10 * np.log10((right**2).sum() / ((found - right) ** 2).sum()))


def main() -> int:
    """Check a decoder of the given number of layers."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--layers", type=int, default=16)
    parser.add_argument("--width", type=int, default=2048, help="of the residual stream; inner widths follow")
    parser.add_argument("--samples", type=int, default=64)
    parser.add_argument("--tokens", type=int, default=512, help="of a sample")
    parser.add_argument("--threads", type=int, default=0)
    parser.add_argument("--folder", type=Path)
    parser.add_argument("--python", help="of an environment with onnxruntime-genai")
    asked = parser.parse_args()
    wide = DecoderShape(layers=asked.layers, tokens=asked.tokens)
    shape = replace(wide, width=asked.width, hidden=4 * asked.width, heads=asked.width // 64)
    shape = replace(shape, key_heads=max(1, shape.heads // 4))
    with tempfile.TemporaryDirectory(dir=asked.folder) as place:
        folder = Path(place)
        run = quantize(folder, asked.samples, shape, threads=asked.threads)
        print("\n".join(run.lines))
        print("generates", *run_steps(folder / "int4", shape, asked.python, [])[1])
        noise = sqnr_db(folder, shape, asked.python)
        sizes = [sum(file.stat().st_size for file in folder.glob(f"{name}/*")) for name in ("float", "int4")]
    print(
        f"{shape.parameters / 1e9:.2f} billion weights, {sizes[0] / 1e9:.2f} GB to {sizes[1] / 1e9:.2f} GB: "
        f"{run.seconds:.0f} s of processor time, {run.peak / 1e9:.2f} GB; {noise:.1f} dB on unseen tokens"
    )
    right = [
        run.seconds <= MOST_SECONDS,
        run.peak <= MOST_BYTES,
        noise > 10,
        run.seconds < 60 or any("s left" in line for line in run.lines),
    ]
    print(right)
    return 0 if all(right) else 1


if __name__ == "__main__":
    sys.exit(main())
