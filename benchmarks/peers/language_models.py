"""Language models with weights in int4, activations in float: methods of ModelOpt and onnxfq.

    python benchmarks/peers/language_models.py FOLDER --modelopt PYTHON [--out PAGE.md]

All MatMul with weights are quantized, in blocks along the summed axis. Calibration data and scored data are
different texts. stories260k has rows of 64 and 172 numbers; 172 is no multiple of a block.
"""

from __future__ import annotations

from typing import Any

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

BLOCKS = (32, 64)
MODELOPT = ("rtn_dq", "awq_lite", "awq_clip", "awq_full")
ONNXFQ = (("minmax", "nearest"), ("mse", "nearest"), ("mse", "gptq"))


def scheme(block: int, calibrator: str) -> dict[str, Any]:
    """Return the recipe of weights alone in int4 with blocks of `block`."""
    weights = {"qtype": "int4", "granularity": "blocked", "block_size": block, "calibrator": calibrator}
    return {"base": "tensorrt-int4", "target": "onnxruntime", "weights": weights}


def candidates(block: int, modelopt: str | None) -> list[tuple[str, str, str, dict[str, Any]]]:
    """Return label, tool, task and options of all candidates."""
    own = [
        (f"onnxfq, {calibrator} {rounding}", "onnxfq", "quantize")
        + ({"recipe": scheme(block, calibrator), "rounding": rounding},)
        for calibrator, rounding in ONNXFQ
    ]
    theirs = [
        (f"ModelOpt, {method}", "modelopt", "quantize", {"mode": "int4", "method": method, "block": block})
        for method in MODELOPT
    ]
    return [*own, *(theirs if modelopt else [])]


def measure(folder: Folder, case: Case, modelopt: str | None) -> list[list[str]]:
    """Return a row for each candidate: figure of the task, quantized weights, processor seconds."""
    rows = [["float", "", f"{score(folder, case, None)[0]:.4g}", "", ""]]
    with job_folder(float_model(folder, case), folder.feeds(case)) as work:
        for block in BLOCKS:
            for label, tool, task, options in candidates(block, modelopt):
                result = run(modelopt if tool == "modelopt" else None, tool, task, work, **options)
                cells = [label, str(block)]
                try:
                    made = work / result["model"]
                    cells.append(f"{score(folder, case, made)[0]:.4g}")
                    cells += ["{} of {}".format(*count_weights(made)), f"{result['processor']:.1f}"]
                except KeyError:  # the tool failed
                    cells += [result["error"], "", ""]
                except Exception as error:  # ONNX Runtime does not run the model that the tool wrote
                    cells += [str(error).splitlines()[0][:160], "", f"{result['processor']:.1f}"]
                rows.append(cells)
    return rows


def main() -> None:
    """Measure, and write the section."""
    arguments = parse(__doc__, "modelopt")
    folder = Folder(arguments.folder.resolve())
    columns = ["stories260k", "block", "perplexity", "quantized weights", "processor s"]
    table = markdown_table(columns, measure(folder, find_case("stories260k_dynamo_op20"), arguments.modelopt))
    head = f"int4 weights of MatMul and Gemm, activations in float; one thread; {machine()}."
    write_section(arguments.out, "Language models", f"{head}\n\n{table}")


if __name__ == "__main__":
    main()
