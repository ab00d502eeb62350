"""Cost of the second moments for rounding weights: time relative to one observing pass over the same samples.

    python benchmarks/moments.py [--networks NAME ...] [--samples N] [--threads N] [--rounds N] [--out FILE]

An observing pass is `collect_statistics` for `tensorrt-int8`, moments are `collect_moments` for the layers of
the same plan: a run over the data, and the sums over rows of the inputs, whose number is fixed, so that many
samples cost less each. Both include making their sessions, and take turns in one process; times are processor
seconds over all threads, whose ratio other programs hardly change.

Mark: 2 times an observing pass.
"""

from __future__ import annotations

import argparse
import statistics

import numpy as np
import onnx
from shapes import NETWORKS
from timing import machine, markdown_table, median_ratio, paired_costs, report

import onnxfq
from onnxfq.remedies.moments import collect_moments
from onnxfq.remedies.weighted_layers import find_layers


def measure(model: onnx.ModelProto, samples: int, threads: int, rounds: int) -> list[str]:
    """Return the cells of a row: layers, seconds of observing and of moments, and their ratio."""
    loaded = onnxfq.load(model)
    plan = onnxfq.make_plan(loaded, onnxfq.load_recipe("tensorrt-int8"))
    layers, _ = find_layers(loaded, plan)
    (spec,) = loaded.proto.graph.input
    shape = [dimension.dim_value for dimension in spec.type.tensor_type.shape.dim]
    images = np.random.default_rng(1).standard_normal((samples, *shape)).astype(np.float32)
    feeds = [{spec.name: image} for image in images]

    def observe() -> None:
        onnxfq.collect_statistics(loaded, plan, feeds, onnxfq.ObserveOptions(threads=threads))

    def moments() -> None:
        for _ in collect_moments(loaded, layers, feeds, threads):
            pass

    _, costs = paired_costs({"observing": observe, "moments": moments}, rounds)
    figures = [f"{statistics.median(costs[name]):.3f}" for name in ("observing", "moments")]
    return [str(len(layers)), *figures, f"{median_ratio(costs, 'moments', 'observing'):.2f}"]


def main() -> None:
    """Measure and print one table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--networks", nargs="+", choices=sorted(NETWORKS), default=["resnet50", "vit_b16"])
    parser.add_argument("--samples", type=int, nargs="+", default=[64])
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--out", help="write the result to this Markdown file")
    arguments = parser.parse_args()
    rows = []
    for name in arguments.networks:
        for samples in arguments.samples:
            cells = measure(NETWORKS[name](1), samples, arguments.threads, arguments.rounds)
            rows.append([name, str(samples), *cells])
    head = (
        f"{machine()}; numpy {np.__version__}. Processor seconds, medians; the ratio is the median over "
        f"{arguments.rounds} rounds in which both take turns.\n\n"
    )
    header = ["network", "samples", "layers", "observing", "moments", "moments / observing"]
    report(f"Second moments, {arguments.threads} threads", head + markdown_table(header, rows), arguments.out)


if __name__ == "__main__":
    main()
