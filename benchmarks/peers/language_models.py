"""A language model with weights in int4, activations in float: methods of ModelOpt and onnxfq.

    python benchmarks/peers/language_models.py FOLDER --modelopt PYTHON [--out PAGE.md]

All MatMul with weights are quantized, in the same blocks along the summed axis. ModelOpt leaves the last one
in float, because its weights are the embedding behind a Transpose; so does onnxfq, except in its last row.
"""

from __future__ import annotations

from typing import Any

import onnx
from candidates import Candidate, compare
from job import Folder, count_weights, find_case, float_model, parse, write_section
from timing import machine, markdown_table

BLOCK = 32
MODELOPT = ("rtn_dq", "awq_lite", "awq_clip", "awq_full")
ONNXFQ = (
    ("minmax", "nearest", False),
    ("mse", "nearest", False),
    ("mse", "gptq", False),
    ("mse", "gptq", True),
)
"""Calibrator of the scales, rounding, and whether the last MatMul is quantized."""


def recipe(model: onnx.ModelProto, calibrator: str, head: bool) -> dict[str, Any]:
    """Return the recipe of weights alone in int4; without `head` the last MatMul stays in float."""
    last = [node.name for node in model.graph.node if node.op_type == "MatMul"][-1]
    weights = {"qtype": "int4", "granularity": "blocked", "block_size": BLOCK, "calibrator": calibrator}
    overrides = [] if head else [{"nodes": [last], "keep_float": True}]
    return {"base": "tensorrt-int4", "target": "onnxruntime", "weights": weights, "overrides": overrides}


def candidates(model: onnx.ModelProto) -> list[Candidate]:
    """Return the candidates of both tools."""
    own = [
        (
            f"onnxfq, {calibrator} {rounding}" + (", the last MatMul too" if head else ""),
            "onnxfq",
            {"recipe": recipe(model, calibrator, head), "rounding": rounding},
        )
        for calibrator, rounding, head in ONNXFQ
    ]
    theirs = [
        (f"ModelOpt, {method}", "modelopt", {"mode": "int4", "method": method, "block": BLOCK})
        for method in MODELOPT
    ]
    return [*own, *theirs]


def main() -> None:
    """Measure, and write the section."""
    arguments = parse(__doc__, "modelopt")
    folder, case = Folder(arguments.folder.resolve()), find_case("stories260k_dynamo_op20")
    model = float_model(folder, case)
    rows = compare(
        folder,
        case,
        model,
        candidates(model),
        {"modelopt": arguments.modelopt},
        lambda _, made: ["{} of {}".format(*count_weights(made))],
    )
    text = f"""Weights of stories260k in int4, blocks of {BLOCK}, activations in float; calibrated and scored
on different texts; one thread; {machine()}. AWQ runs without fusing its
factors, which fails without a GPU.

{markdown_table(["weights", "perplexity", "quantized", "processor s", "sessions"], rows)}"""
    write_section(arguments.out, "Language models", text)


if __name__ == "__main__":
    main()
