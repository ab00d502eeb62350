"""A language model with weights in int4, activations in float: methods of ModelOpt and onnxfq.

    python benchmarks/peers/language_models.py FOLDER --modelopt PYTHON [--out PAGE.md]

All MatMul with weights are quantized, in the same blocks along the summed axis. ModelOpt leaves the last one
in float, because its weights are the embedding behind a Transpose; so does onnxfq, except in its last row.
"""

from __future__ import annotations

from typing import Any

import onnx
from job import (
    Case,
    Folder,
    count_weights,
    find_case,
    float_model,
    job_folder,
    parse,
    run,
    score,
    write_section,
)
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


def candidates(model: onnx.ModelProto, modelopt: str | None) -> list[tuple[str, str, dict[str, Any]]]:
    """Return label, tool and options of its task `quantize`; ModelOpt's if its python is known."""
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
    return [*own, *(theirs if modelopt else [])]


def measure(folder: Folder, case: Case, modelopt: str | None) -> list[list[str]]:
    """Return a row for each candidate: figure of the task, quantized weights, processor seconds."""
    rows = [["float", f"{score(folder, case, None)[0]:.3f}", "", ""]]
    model = float_model(folder, case)
    with job_folder(model, folder.feeds(case)) as work:
        for label, tool, options in candidates(model, modelopt):
            result = run(modelopt if tool == "modelopt" else None, tool, "quantize", work, **options)
            if "error" in result:
                rows.append([label, result["error"], "", ""])
                continue
            made = work / result["model"]
            quantized = "{} of {}".format(*count_weights(made))
            perplexity = f"{score(folder, case, made)[0]:.3f}"
            rows.append([label, perplexity, quantized, f"{result['processor']:.1f}"])
    return rows


def main() -> None:
    """Measure, and write the section."""
    arguments = parse(__doc__, "modelopt")
    rows = measure(
        Folder(arguments.folder.resolve()), find_case("stories260k_dynamo_op20"), arguments.modelopt
    )
    text = f"""Weights of stories260k in int4, blocks of {BLOCK}, activations in float; calibrated and scored
on different texts; one thread; {machine()}. AWQ runs without fusing its
factors, which fails without a GPU.

{markdown_table(["weights", "perplexity", "quantized", "processor s"], rows)}"""
    write_section(arguments.out, "Language models", text)


if __name__ == "__main__":
    main()
