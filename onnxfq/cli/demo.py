"""`onnxfq demo`: all stages on a trained digit network that is installed with the package."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from onnxfq.cli.console import Printing
from onnxfq.cli.option import option

_OUTPUT = option("DIR", "Write to this folder.", "--output", "-o")


def demo(output: Annotated[Path, _OUTPUT] = Path("onnxfq-demo"), *, printer: Printing) -> None:
    """Its models and data are there for the other commands, and a page that compares its results."""
    from onnxfq.cli.digits import PER_AXIS, run_demo
    from onnxfq.documents.plan_text import coverage_line

    result = run_demo(output)
    best = result.results[PER_AXIS]
    calibrator = best.plan.activations[0].calibrator
    printer.report(
        {name: value for name, value in vars(result).items() if name != "results"},
        "model      depthwise-separable residual CNN, trained on 8,000 MNIST digits",
        f"quantized  {coverage_line(best.plan)}, calibrated on 500 digits with {calibrator}",
    )
    printer.wrote(*result.files)
    printer.say(f"time       {result.seconds:.1f} s")
    printer.say("")
    printer.say("accuracy on 1,500 unseen digits")
    scores = {c.candidate: c.outputs[0].sqnr_db for c in result.evaluation.candidates}
    for name, accuracy in result.accuracies().items():
        noise = f"   logits {scores[name]:.1f} dB SQNR" if name in scores else ""
        printer.say(f"  {name:<28}{accuracy:7.2%}{noise}")
