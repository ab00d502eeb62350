"""Channels of different size: cross-layer equalization and smoothing, with the same models and data.

    python benchmarks/peers/equalize_channels.py FOLDER --aimet PYTHON --nncf PYTHON [--out PAGE.md]

Channels of resnet20 are scaled at random by powers of two up to 2^11, with the same function: those between
two convolutions in a row, then also those that residual sums share. minilm has a few large ones by itself.
Weights and activations are int8, weights per output channel.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import onnx
from job import (
    Case,
    Folder,
    find_case,
    float_model,
    job_folder,
    output_db,
    parse,
    run,
    scale_channels,
    score,
    unseen_feeds,
    write_section,
)
from timing import machine, markdown_table

COSTS = ["SQNR dB", "new Mul", "processor s", "sessions"]

Candidate = tuple[str, str, dict[str, Any]]
"""Label, tool, and the options of its task `quantize`."""

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


def count_products(model: onnx.ModelProto) -> int:
    """Return the number of Mul nodes: a factor that no constant takes up costs one."""
    return sum(node.op_type == "Mul" for node in model.graph.node)


def measure(
    folder: Folder,
    case: Case,
    change: Callable[[onnx.ModelProto], onnx.ModelProto],
    candidates: tuple[Candidate, ...],
    pythons: dict[str, str | None],
) -> list[list[str]]:
    """Return a row for the float model and each candidate whose python is known."""
    proto = change(float_model(folder, case))
    rows = []
    with job_folder(proto, folder.feeds(case)) as work:
        floats = score(folder, case, work / "model.onnx")[0]
        rows.append(["float", f"{floats:.4f}", "", "", "", ""])
        for label, tool, options in candidates:
            if tool != "onnxfq" and not pythons.get(tool):
                continue
            result = run(pythons.get(tool), tool, "quantize", work, **options)
            if "error" in result:
                rows.append([label, result["error"], "", "", "", ""])
                continue
            made = work / result["model"]
            noise = output_db(work / "model.onnx", made, unseen_feeds(folder, case))
            products = count_products(onnx.load(made)) - count_products(proto)
            figures = [f"{score(folder, case, made)[0]:.4f}", f"{noise:.1f}", str(products)]
            rows.append([label, *figures, f"{result['processor']:.1f}", str(result["sessions"])])
    return rows


def main() -> None:
    """Measure, and write the section."""
    arguments = parse(__doc__, "aimet", "nncf")
    folder = Folder(arguments.folder.resolve())
    pythons = {"aimet": arguments.aimet, "nncf": arguments.nncf}
    resnet, minilm = find_case("resnet20_dynamo_op20_ext"), find_case("minilm_l6_fp16_op17", raised=True)
    tables = [
        markdown_table(
            [f"resnet20, {title}", "top-1", *COSTS], measure(folder, resnet, change, CROSS_LAYER, pythons)
        )
        for title, change in (
            ("pairs of convolutions scaled", lambda proto: scale_channels(proto, 0, pairs=True)),
            ("all channels scaled", lambda proto: scale_channels(proto, 0)),
        )
    ]
    rows = measure(folder, minilm, lambda proto: proto, SMOOTH, pythons)
    tables.append(markdown_table(["minilm", "Spearman", *COSTS], rows))
    head = f"""int8, scored on data that no tool has seen; one thread; {machine()}.
Activations are symmetric, except in AIMET's default. New Mul nodes are those more than in the float model."""
    write_section(arguments.out, "Channels of different size", "\n\n".join([head, *tables]))


if __name__ == "__main__":
    main()
