"""Cost of the proof: the command `quantize --repair off` with the run in the session of users and without.

    python benchmarks/proof.py [--folder FOLDER] [--targets NAME ...] [--rounds 3] [--out PAGE.md]

Both are whole commands, their start and the import of the runtime included: networks with random weights on
16 samples, and the trained ones of FOLDER on up to 64. They take turns, and processor time of all threads
is counted.
"""

from __future__ import annotations

import argparse
import resource
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import onnx
from real_cases import CASES, Folder
from shapes import NETWORKS
from timing import machine, markdown_table, write_section

import onnxfq
from onnxfq.data.model_inputs import input_specs

TARGETS = ("onnxruntime", "openvino")
FEW, MANY = 16, 64
MOST_MEDIAN, MOST = 1.25, 1.6
"""Marks: the median of the ratios, and the largest."""

_START = "import sys; from onnxfq.cli.main import main; {}sys.exit(main(sys.argv[1:]))"
_WITHOUT = (
    "from onnxfq.documents.proof import Proof; from onnxfq.remedies import runtime_cure; "
    "runtime_cure.prove = lambda *given, **named: Proof(); "
)
WAYS = {"without": _START.format(_WITHOUT), "with": _START.format("")}


class ListedNetwork(NamedTuple):
    """A network with data to calibrate it."""

    name: str
    model: onnx.ModelProto
    feeds: list[dict[str, Any]]


def draw_feed(proto: onnx.ModelProto, seed: int) -> dict[str, np.ndarray]:
    """Return random values for each input."""
    rng, feed = np.random.default_rng(seed), {}
    for spec in input_specs(onnxfq.load(proto).proto):
        shape = [size if isinstance(size, int) else 1 for size in spec.shape or ()]
        if np.dtype(spec.dtype).kind == "f":
            feed[spec.name] = rng.standard_normal(shape).astype(spec.dtype)
        else:
            feed[spec.name] = rng.integers(0, 2, shape).astype(spec.dtype)
    return feed


def list_networks(folder: Path | None, names: list[str]) -> Iterator[ListedNetwork]:
    """Yield the networks with their samples, all if no names are given."""
    for name, build in NETWORKS.items():
        if not names or name in names:
            proto = build(1)
            yield ListedNetwork(name, proto, [draw_feed(proto, seed) for seed in range(FEW)])
    trained = None if folder is None else Folder(folder)
    for case in CASES if trained is not None and folder is not None else ():
        if not case.raised and (not names or case.name in names):
            yield ListedNetwork(case.name, onnx.load(folder / case.file), trained.feeds(case)[:MANY])


def write_inputs(network: ListedNetwork, folder: Path) -> None:
    """Write a network and its samples, a file each."""
    onnx.save(network.model, folder / "model.onnx")
    (folder / "data").mkdir()
    for number, feed in enumerate(network.feeds):
        np.savez(folder / "data" / f"{number:04}.npz", **feed)


def measure(folder: Path, target: str, way: str) -> float:
    """Return the processor seconds of a command, -1 if it fails; exit code 3 counts as success."""
    line = f"quantize model.onnx --data data --recipe {target}-int8 --repair off -o {way}.onnx -q"
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run([sys.executable, "-c", WAYS[way], *line.split()], cwd=folder, capture_output=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    used = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return used if done.returncode in (0, 3) else -1.0


def main() -> None:
    """Measure, and write a section for each target."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--folder", type=Path, help="the folder of real_models.py")
    parser.add_argument("--targets", nargs="+", default=list(TARGETS))
    parser.add_argument("--networks", nargs="*", default=[])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--out", type=Path)
    asked = parser.parse_args()
    for target in asked.targets:
        rows, ratios = [], []
        for network in list_networks(asked.folder, asked.networks):
            with tempfile.TemporaryDirectory() as place:
                write_inputs(network, Path(place))
                runs = [[measure(Path(place), target, way) for way in WAYS] for _ in range(asked.rounds)]
            without, proven = (min(tries) for tries in zip(*runs, strict=True))
            if min(without, proven) < 0:
                rows.append([network.name, "it fails", "", ""])
                continue
            ratios.append(proven / without)
            rows.append([network.name, f"{without:.1f}", f"{proven:.1f}", f"{ratios[-1]:.2f}"])
        middle, largest = statistics.median(ratios), max(ratios)
        rows.append([f"median (mark {MOST_MEDIAN})", "", "", f"{middle:.2f}"])
        rows.append([f"largest (mark {MOST})", "", "", f"{largest:.2f}"])
        table = markdown_table(["network", "processor s without", "with", "with / without"], rows)
        text = f"The least of {asked.rounds} runs in turn. {machine()}.\n\n{table}"
        write_section(asked.out, "Cost of the proof in the session of users", target, text)


if __name__ == "__main__":
    main()
