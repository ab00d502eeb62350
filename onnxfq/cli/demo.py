"""`onnxfq demo`: the whole flow on a trained digit network that comes with the package."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from onnxfq.cli.console import say
from onnxfq.cli.demo_run import PER_AXIS, run_demo
from onnxfq.report.text import coverage_line


def demo(
    output: Annotated[
        Path, typer.Option("--output", "-o", metavar="DIR", help="The folder to write into.")
    ] = Path("onnxfq-demo"),
) -> None:
    """Quantize a trained digit network and measure it on 1,500 digits it never saw."""
    result = run_demo(output)
    best = result.results[PER_AXIS]
    say("model      depthwise-separable residual CNN, trained on 8,000 MNIST digits")
    calibrator = best.plan.activations[0].calibrator
    say(f"quantized  {coverage_line(best.plan)}, calibrated on 500 digits with {calibrator}")
    for path in result.files:
        say(f"wrote      {path}")
    say(f"time       {result.seconds:.1f} s")
    say("")
    say("accuracy on 1,500 unseen digits")
    scores = {c.candidate: c.outputs[0].sqnr_db for c in result.evaluation.candidates}
    for name, accuracy in result.accuracies().items():
        noise = f"   logits {scores[name]:.1f} dB SQNR" if name in scores else ""
        say(f"  {name:<26}{accuracy:7.2%}{noise}")
