"""Costs of repair: the whole of `quantize`, relative to `--repair off`.

    python benchmarks/repair_costs.py [--samples 64] [--rounds 2] [--out PAGE.md]

Networks with random weights: MobileNetV2, with an aim that it has and one that nothing reaches, and
MobileNetV3 with one channel 2,048 times as large. Each run is a command with one thread, its start included;
the ways take turns.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

import numpy as np
import onnx
from planted_damage import scale_channels
from shapes import NETWORKS
from timing import machine, markdown_table, report

CASES = {
    "mobilenetv2, random": ("mobilenetv2", False, ("off", "auto", "40")),
    "mobilenetv3, one channel x2,048": ("mobilenetv3", True, ("off", "auto")),
}
"""Network, whether one channel is made larger, and the words or dB of `--repair`, by name."""

HEADER = ["network", "repair", "printed dB", "layers in float", "s", "processor s", "times off"]


class Run(NamedTuple):
    """Seconds and processor seconds of a command, its SQNR in dB, and the nodes that repair left in float."""

    seconds: float
    processor: float
    noise_db: float
    floats: int


def write_inputs(folder: Path, network: str, is_damaged: bool, samples: int) -> None:
    """Write a network and its samples to `folder`."""
    proto = NETWORKS[network](1)
    onnx.save(proto, folder / "model.onnx")
    if is_damaged:
        scale_channels(folder / "model.onnx", folder / "model.onnx", one_channel=True)
    source = proto.graph.input[0]
    shape = [samples, *(dim.dim_value for dim in source.type.tensor_type.shape.dim[1:])]
    values = np.random.default_rng(0).standard_normal(shape).astype(np.float32)
    np.savez(folder / "data.npz", **{source.name: values})


def quantize(folder: Path, way: str) -> Run:
    """Run the command in `folder`. Raises CalledProcessError if it fails."""
    line = f"quantize model.onnx --data data.npz -o out.onnx --threads 1 --json --repair {way}"
    begun, before = time.perf_counter(), resource.getrusage(resource.RUSAGE_CHILDREN)
    # Threads of BLAS spin where others use the machine.
    environment = {**os.environ, "OPENBLAS_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "onnxfq", *line.split()]
    done = subprocess.run(command, cwd=folder, env=environment, check=True, capture_output=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    used = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    record = json.loads(done.stdout)
    (score,) = record["evaluation"]["candidates"]
    noise_db = min(float(one["sqnr_db"]) for one in score["outputs"])
    floats = sum("repair" in one["why"] for one in record["plan"]["skipped"] if one["kind"] == "node")
    return Run(time.perf_counter() - begun, used, noise_db, floats)


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--samples", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--out")
    asked = parser.parse_args()
    rows = []
    for name, (network, is_damaged, ways) in CASES.items():
        with tempfile.TemporaryDirectory() as place:
            folder = Path(place)
            write_inputs(folder, network, is_damaged, asked.samples)
            runs = [[quantize(folder, way) for way in ways] for _ in range(asked.rounds)]
        best = [min(tries, key=lambda run: run.processor) for tries in zip(*runs, strict=True)]
        for way, run in zip(ways, best, strict=True):
            times = f"{run.processor / best[0].processor:.2f}"
            cells = [f"{run.noise_db:.1f}", str(run.floats), f"{run.seconds:.1f}", f"{run.processor:.1f}"]
            rows.append([name, way, *cells, times])
    text = f"{asked.samples} samples, recipe tensorrt-int8, the best of {asked.rounds} rounds. {machine()}."
    report("Costs of repair", f"{text}\n\n{markdown_table(HEADER, rows)}", asked.out)


if __name__ == "__main__":
    main()
