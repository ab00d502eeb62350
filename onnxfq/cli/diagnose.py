"""`onnxfq diagnose`: what is wrong with a quantized file that somebody else made."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from onnxfq.cli.console import Printing, exit_differing, write_page
from onnxfq.cli.data_options import OptionalDataOption
from onnxfq.cli.option import option
from onnxfq.cli.options import CustomOpsOption, ModelArgument, PageOption
from onnxfq.cli.run_options import RunningOnCpu

_REFERENCE = option("FLOAT", "Compare with the float model that it was made of.", "--float")
_LABELS = option("FILE", "Measure top-1 with these classes, one per row of --data.")
_METRIC = option("NAME|MODULE:FUNCTION", "Measure this metric of the task: {metrics}; or a function.")
_TARGET = option("NAME", "Use the rules of this target too: {checked_targets}.")
_OUTPUT = option("OUT", "Write the model with all repairs.", "--output", "-o")
_RECIPE_OUT = option("FILE.yaml", "Write a recipe that makes such a file from FLOAT.")


def diagnose(
    model: ModelArgument,
    reference: Annotated[Path | None, _REFERENCE] = None,
    data: OptionalDataOption = None,
    labels: Annotated[Path | None, _LABELS] = None,
    metric: Annotated[str | None, _METRIC] = None,
    target: Annotated[str | None, _TARGET] = None,
    output: Annotated[Path | None, _OUTPUT] = None,
    recipe_out: Annotated[Path | None, _RECIPE_OUT] = None,
    report: PageOption = None,
    custom_ops: CustomOpsOption = None,
    *,
    running: RunningOnCpu,
    printer: Printing,
) -> None:
    """Without FLOAT the float form is derived from MODEL.

    Without --data only MODEL is read, and nothing is measured. Repairs are measured on samples that did not
    choose them; -o keeps every scale that no repair names.
    """
    from onnxfq.diagnosis.diagnose import diagnose as diagnose_model

    with running.progress(printer) as options:
        result = diagnose_model(
            model,
            reference=reference,
            data=data,
            labels=labels,
            metric=metric,
            target=target,
            output=output,
            recipe_output=recipe_out,
            options=options,
        )
    write_page(report, model.stem, result)
    printer.show(result, hidden=printer.quiet)
    if output is not None and not result.written:
        printer.note("nothing to repair: no model was written")
    printer.wrote(output if result.written else None, recipe_out, report)
    exit_differing(result.proof)
