"""Operators that a recipe promises in 8 bits, and those that run so, in the runtimes that run here.

    python benchmarks/promised.py [--folder FOLDER] [--targets NAME ...] [--out PAGE.md]

Each network of `network_list.py` is quantized without remedies, and `check --build` reads the kernels of each
promised operator from the runtime's own listing.
"""

from __future__ import annotations

import argparse
import tempfile
from collections import Counter
from pathlib import Path

from network_list import ListedNetwork, list_networks
from timing import markdown_table, write_section

import onnxfq
from onnxfq.errors import OnnxfqError
from onnxfq.targets.target import BuildOptions

TARGETS = ("onnxruntime", "openvino")


def count_low(network: ListedNetwork, target: str, path: Path) -> tuple[int, int, str]:
    """Return (operators that run low, operators promised, what the others are or why there is no file)."""
    try:
        off = onnxfq.AccuracyTarget(repair=None)
        onnxfq.quantize(network.model, network.feeds, path, recipe=f"{target}-int8", accuracy=off)
        nodes = onnxfq.check(path, target, build=BuildOptions()).engine
    except OnnxfqError as error:
        return 0, 0, str(error)[:100]
    low = sum(node.verdict in ("low", "weight-only") for node in nodes)
    others = Counter(
        f"{node.op_type} {node.verdict}" for node in nodes if node.verdict not in ("low", "weight-only")
    )
    return low, len(nodes), ", ".join(f"{count} {what}" for what, count in others.items())


def main() -> None:
    """Count, and write a section for each target."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--folder", type=Path, help="the folder of real_models.py")
    parser.add_argument("--targets", nargs="+", default=list(TARGETS))
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    networks = list(list_networks(arguments.folder))
    for target in arguments.targets:
        with tempfile.TemporaryDirectory() as work:
            found = [(one.name, *count_low(one, target, Path(work) / "q.onnx")) for one in networks]
        rows = [[name, f"{low} of {promised}", others] for name, low, promised, others in found]
        low, promised = (sum(row[at] for row in found) for at in (1, 2))
        table = markdown_table(
            ["network", "run in 8 bits", "others"], [*rows, ["all", f"{low} of {promised}", ""]]
        )
        write_section(arguments.out, "Promised operators", target, table)


if __name__ == "__main__":
    main()
