"""Kernels and bytes of float8 engines, by the bytes that count for the kernel of an entry pair.

    python benchmarks/entry_kernels.py [--out benchmarks/results/entry_kernels.md]

`placement/short_runs.py` leaves a run of float8 convolutions in float if its pairs move more bytes than 8
bits save, and counts bytes for each kernel of an entry. Each network of the tests whose plan depends on that
number is built by TensorRT for RTX, without a GPU. Bytes are the results that kernels write and the weights
that they read, per sample. No time is measured.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import warnings
from collections import defaultdict
from pathlib import Path

from timing import markdown_table, write_section

from onnxfq.targets.reading.context import read
from onnxfq.targets.recipes import load_recipe
from onnxfq.targets.tensorrt.builder.figures import count_layers
from onnxfq.targets.tensorrt.builder.layers import parse_layers
from onnxfq.targets.tensorrt.builder.without_pairs import without_pairs
from onnxfq.targets.tensorrt.rules.structure import EXTRA

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests" / "networks"))

import plan_networks
from engines import build_all, unmeasured

COUNTS = (0, 16 << 10, 64 << 10, 256 << 10, 1 << 20)
NETWORKS = ("mobilenetv2", "unet", "residual", "depthwise", "gated", "conditioned", "lines", "grouped")
"""Names in tests/networks/plan_networks.py: the plan of each depends on the count."""


def measure(name: str, folder: Path) -> dict[str, tuple[int, int]]:
    """Return (kernels, bytes) of a network by count, and without pairs."""
    source, models = plan_networks.NETWORKS[name](folder), {}
    for count in COUNTS:
        recipe = load_recipe("tensorrt-fp8").override(entry_bytes=count)
        models[f"{count >> 10} kB"] = unmeasured(source, recipe, "fp16")
    models["half, without pairs"] = without_pairs(read(models["0 kB"], EXTRA))
    found = {}
    for count, reports in build_all(folder, models).items():
        figures = count_layers(parse_layers(reports.popitem()[1].layers), {})
        found[count] = (figures.kernels, figures.written + figures.weights)
    return found


def main() -> None:
    """Build all networks, and write their sums."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path)
    out = parser.parse_args().out
    sums = defaultdict(list)
    for name in NETWORKS:
        with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings(action="ignore"):
            for count, figures in measure(name, Path(folder)).items():
                sums[count].append(figures)
        print(name, {count: rows[-1] for count, rows in sums.items()}, flush=True)
    rows = [
        [count, *(f"{sum(column):,}" for column in zip(*figures, strict=True))]
        for count, figures in sums.items()
    ]
    write_section(out, "Kernels of entries", "float8", markdown_table(["count", "kernels", "bytes"], rows))


if __name__ == "__main__":
    main()
