"""Costs of rounding a decoder by `gptq`, on paper: bytes, passes over the data, and time.

    python benchmarks/decoder_costs.py [--rate 40] [--disk 200] [--out FILE]

Counts, by the shapes of the decoders and 64 texts of 512 tokens, in the arithmetic of `onnxfq`:

- int4 with a float32 scale for 32 weights; the table of words stays in float32;
- the temporary file of sampled inputs, `choose_rows` of each; layers that read one tensor share it. It may
  take half of the free disk, and each part of it is a run of the float model over the data;
- memory: the largest matrix of moments and its factor, float64, and the weight, which is mapped, in float64;
- operations: the runs, one more over the samples that are compared, for each input the sums of products,
  and for each weight the errors that the columns after it take.

The rate, in billions of operations for a second of one core, comes from a measured run.
"""

from __future__ import annotations

import argparse
import math
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "models"))

from networks.decoder import DecoderShape  # noqa: E402  of the models

from onnxfq.layers.moments import choose_rows  # noqa: E402

SHAPES = {
    "0.13": DecoderShape(width=1024, layers=4, heads=16, key_heads=4, hidden=4096),
    "1.1": DecoderShape(),
    "7": DecoderShape(width=4096, layers=32, heads=32, key_heads=32, hidden=11008),
}
"""Decoders by billions of weights: of `tests/slow/check_large_decoder.py`, and Llama 2."""

TOKENS, COMPARED = 64 * 512, 1 / 4
MACHINES = 8


def count(shape: DecoderShape, rate: float, disk: float) -> list[str]:
    """Return the cells of a decoder."""
    width, hidden, keys = shape.width, shape.hidden, shape.width * shape.key_heads // shape.heads
    inputs = [(width, width + 2 * keys), (width, width), (width, 2 * hidden), (hidden, width)] * shape.layers
    inputs.append((width, shape.words))
    rows = {size: min(choose_rows(size), TOKENS) for size in (width, hidden)}
    stored = sum(4 * size * rows[size] for size, _ in inputs)
    weights = sum(size * outputs for size, outputs in inputs)
    passes = math.ceil(stored / (disk * 1e9 / 2))
    run = 2 * TOKENS * weights
    moments = sum(2 * rows[size] * size**2 for size, _ in inputs)
    rounding = sum(size**2 * outputs + size**3 / 3 for size, outputs in inputs)
    seconds = (run * (passes + 2 * COMPARED) + moments + rounding) / (rate * 1e9)
    table = 4 * shape.words * width
    largest = max(16 * size**2 + 8 * size * outputs for size, outputs in inputs[:-1])
    return [
        f"{(4 * weights + table) / 1e9:.1f}",
        f"{(weights * 5 / 8 + table) / 1e9:.1f}",
        f"{stored / 1e9:.0f}",
        f"{passes}",
        f"{largest / 1e9:.1f}",
        f"{seconds / 3600:.1f}",
        f"{60 * seconds / 3600 / MACHINES:.0f}",
    ]


def main() -> None:
    """Print the table, and write it to a file."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rate", type=float, default=40.0, help="billions a second of one core")
    parser.add_argument("--disk", type=float, default=200.0, help="free GB")
    parser.add_argument("--out", type=Path)
    asked = parser.parse_args()
    head = ["billions of weights", "float GB", "int4 GB", "sampled inputs GB", "passes", "matrices GB"]
    head += ["hours of a core", f"minutes of {MACHINES} cores"]
    lines = [f"| {' | '.join(head)} |", f"|{'---|' * len(head)}"]
    for name, shape in SHAPES.items():
        lines.append(f"| {' | '.join([name, *count(shape, asked.rate, asked.disk)])} |")
    table = "\n".join(lines)
    print(table)
    if asked.out is not None:
        intro = (
            f"`gptq` in blocks of 32 by 64 texts of 512 tokens, with {asked.disk:.0f} GB free on the disk,\n"
            f"at {asked.rate:.0f} billion operations a second of one core."
        )
        asked.out.write_text(f"# Large decoders on paper\n\n{intro}\n\n{table}\n", encoding="utf-8")


if __name__ == "__main__":
    main()
