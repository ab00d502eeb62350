"""Channels of different size: cross-layer equalization and smoothing, with the same models and data.

    python benchmarks/peers/equalize_channels.py FOLDER --aimet PYTHON --nncf PYTHON [--out PAGE.md]

Channels of resnet20 are scaled at random by powers of two up to 2^11, with the same function: those between
two convolutions in a row, then also those that residual sums share. minilm has a few large ones by itself.
Weights and activations are int8, weights per output channel.
"""

from __future__ import annotations

from pathlib import Path

import onnx
from candidates import Candidate, compare, noise
from job import Case, Folder, find_case, float_model, parse, scale_channels, write_section
from timing import machine, markdown_table

COSTS = ["SQNR dB", "new Mul", "processor s", "sessions"]

CROSS_LAYER: tuple[Candidate, ...] = (
    ("onnxfq, none", "onnxfq", {"recipe": {"activations": {"equalize": "none"}}}),
    ("onnxfq, `--equalize cross_layer`", "onnxfq", {"recipe": {"activations": {"equalize": "cross_layer"}}}),
    ("AIMET, none", "aimet", {}),
    ("AIMET, CLE", "aimet", {"equalize": True}),
    ("AIMET, none, symmetric", "aimet", {"symmetric": True}),
    ("AIMET, CLE, symmetric", "aimet", {"symmetric": True, "equalize": True}),
    ("NNCF, none", "nncf", {}),
)
SMOOTH: tuple[Candidate, ...] = (
    ("onnxfq, none", "onnxfq", {}),
    ("onnxfq, `--smooth auto`", "onnxfq", {"recipe": {"smooth": "auto"}}),
    ("onnxfq, `--smooth 0.5`", "onnxfq", {"recipe": {"smooth": 0.5}}),
    ("NNCF, transformer, none", "nncf", {"transformer": True, "smooth": -1}),
    ("NNCF, transformer, SmoothQuant 0.95 (its default)", "nncf", {"transformer": True}),
    ("NNCF, transformer, SmoothQuant 0.5", "nncf", {"transformer": True, "smooth": 0.5}),
)


def count_products(path: Path) -> int:
    """Return the number of Mul nodes: a factor that no constant takes up costs one."""
    return sum(node.op_type == "Mul" for node in onnx.load(path).graph.node)


def table(
    title: str,
    folder: Folder,
    case: Case,
    model: onnx.ModelProto,
    candidates: tuple[Candidate, ...],
    pythons: dict[str, str | None],
) -> str:
    """Return the table of the candidates for one model."""
    sqnr = noise(folder, case)

    def figures(reference: Path, made: Path) -> list[str]:
        return [*sqnr(reference, made), str(count_products(made) - count_products(reference))]

    rows = compare(folder, case, model, candidates, pythons, figures)
    return markdown_table([title, case.metrics[0], *COSTS], rows)


def main() -> None:
    """Measure, and write the section."""
    arguments = parse(__doc__, "aimet", "nncf")
    folder = Folder(arguments.folder.resolve())
    pythons = {"aimet": arguments.aimet, "nncf": arguments.nncf}
    resnet, minilm = find_case("resnet20_dynamo_op20_ext"), find_case("minilm_l6_fp16_op17", raised=True)
    network = float_model(folder, resnet)
    tables = [
        table(f"resnet20, {title}", folder, resnet, scale_channels(network, 0, pairs), CROSS_LAYER, pythons)
        for title, pairs in (("pairs of convolutions scaled", True), ("all channels scaled", False))
    ]
    tables.append(table("minilm", folder, minilm, float_model(folder, minilm), SMOOTH, pythons))
    head = f"""int8, scored on data that no tool has seen; one thread; {machine()}.
Activations are symmetric, except in AIMET's default. New Mul nodes are those more than in the float model."""
    write_section(arguments.out, "Channels of different size", "\n\n".join([head, *tables]))


if __name__ == "__main__":
    main()
