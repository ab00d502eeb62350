"""Rounding by data: weights of 4 bits per output channel with int8 activations, on resnet20.

    python benchmarks/peers/round_weights.py FOLDER --aimet PYTHON [--out PAGE.md]

All tools get the same 500 calibration images. Mark: top-1 at least AIMET's AdaRound, in less processor time.
"""

from __future__ import annotations

from candidates import Candidate, compare, noise
from job import Folder, find_case, float_model, parse, write_section
from timing import machine, markdown_table

ITERATIONS, SEQ_MSE = 300, 20
INT4 = {"target": "onnxruntime", "weights": {"qtype": "int4"}}
CANDIDATES: tuple[Candidate, ...] = (
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


def main() -> None:
    """Measure, and write the section."""
    arguments = parse(__doc__, "aimet")
    header = ["weights", "top-1", "SQNR dB", "processor s", "sessions"]
    folder, case = Folder(arguments.folder.resolve()), find_case("resnet20_dynamo_op20_ext")
    pythons = {"aimet": arguments.aimet}
    rows = compare(folder, case, float_model(folder, case), CANDIDATES, pythons, noise(folder, case))
    text = f"""resnet20, int4 weights per output channel, int8 activations; AdaRound with {ITERATIONS}
iterations for each layer, SeqMSE with {SEQ_MSE} candidates; calibrated on 500 images, scored on 2,000 others;
one thread; {machine()}.

{markdown_table(header, rows)}"""
    write_section(arguments.out, "Rounding of 4-bit weights", text)


if __name__ == "__main__":
    main()
