"""Rounding by data: weights of 4 bits per output channel with int8 activations, on resnet20.

    python benchmarks/peers/round_weights.py FOLDER --aimet PYTHON [--out PAGE.md]

All tools get the same 500 calibration images. Mark: top-1 at least AIMET's AdaRound, in less processor time.
"""

from __future__ import annotations

from typing import Any

from job import (
    Folder,
    find_case,
    float_model,
    job_folder,
    output_db,
    parse,
    run,
    score,
    unseen_feeds,
    write_section,
)
from timing import machine, markdown_table

ITERATIONS, SEQ_MSE = 300, 20
INT4 = {"target": "onnxruntime", "weights": {"qtype": "int4"}}
CANDIDATES: tuple[tuple[str, str, dict[str, Any]], ...] = (
    ("onnxfq, nearest", "onnxfq", {"recipe": INT4, "rounding": "nearest"}),
    ("onnxfq, `rounding: gptq`", "onnxfq", {"recipe": INT4, "rounding": "gptq"}),
    ("onnxfq, `rounding: qronos`", "onnxfq", {"recipe": INT4, "rounding": "qronos"}),
    *(
        (f"AIMET, {name}{kind}", "aimet", {"weights": "int4", "symmetric": symmetric} | options)
        for symmetric, kind in ((True, ", symmetric activations"), (False, ""))
        for name, options in (
            ("nearest", {}),
            ("SeqMSE", {"seq_mse": SEQ_MSE}),
            ("AdaRound", {"adaround": ITERATIONS}),
        )
    ),
)


def measure(folder: Folder, aimet: str | None) -> list[list[str]]:
    """Return a row for the float model and each candidate whose python is known."""
    case = find_case("resnet20_dynamo_op20_ext")
    rows = [["float", f"{score(folder, case, None)[0]:.4f}", "", "", ""]]
    with job_folder(float_model(folder, case), folder.feeds(case)) as work:
        for label, tool, options in CANDIDATES:
            if tool == "aimet" and not aimet:
                continue
            result = run(aimet if tool == "aimet" else None, tool, "quantize", work, **options)
            if "error" in result:
                rows.append([label, result["error"], "", "", ""])
                continue
            made = work / result["model"]
            noise = output_db(work / "model.onnx", made, unseen_feeds(folder, case))
            figures = [f"{score(folder, case, made)[0]:.4f}", f"{noise:.1f}"]
            rows.append([label, *figures, f"{result['processor']:.1f}", str(result["sessions"])])
    return rows


def main() -> None:
    """Measure, and write the section."""
    arguments = parse(__doc__, "aimet")
    header = ["weights", "top-1", "SQNR dB", "processor s", "sessions"]
    rows = measure(Folder(arguments.folder.resolve()), arguments.aimet)
    text = f"""resnet20, int4 weights per output channel, int8 activations; AdaRound with {ITERATIONS}
iterations for each layer, SeqMSE with {SEQ_MSE} candidates; calibrated on 500 images, scored on 2,000 others;
one thread; {machine()}.

{markdown_table(header, rows)}"""
    write_section(arguments.out, "Rounding of 4-bit weights", text)


if __name__ == "__main__":
    main()
