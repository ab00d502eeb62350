"""`onnxfq cast`: a model in float16 or bfloat16, without quantization."""

from __future__ import annotations

from typing import Annotated, Literal

import typer

from onnxfq.cli.console import Printing, exit_differing
from onnxfq.cli.data_options import OptionalDataOption
from onnxfq.cli.option import flag, option
from onnxfq.cli.options import CustomOpsOption, ModelArgument, OutputOption
from onnxfq.cli.run_options import Running

_FLOAT = option("fp16|bf16", "Cast to this type.", "--float")
_OVERFLOW = option("fp32|bf16", "Compute what float16 does not hold in this type.")


def cast(
    model: ModelArgument,
    output: OutputOption,
    data: OptionalDataOption = None,
    float_type: Annotated[Literal["fp16", "bf16"], _FLOAT] = "fp16",
    float_io: Annotated[bool, flag("Cast inputs and outputs too.", "--float-io")] = False,
    overflow: Annotated[Literal["fp32", "bf16"], _OVERFLOW] = "fp32",
    custom_ops: CustomOpsOption = None,
    *,
    running: Running,
    printer: Printing,
) -> None:
    """All of --data is observed: what overflows, or loses too many digits, stays in float32 with its reason.

    Without --data rules decide, and inputs drawn at random; nothing is compared. Exits as `check` does.
    """
    from onnxfq.documents.cast_plan import FloatOptions
    from onnxfq.report.conversion import cast_summary
    from onnxfq.tools.cast import cast as cast_model

    floats = FloatOptions(float_type, float_io)
    with running.progress(printer) as options:
        result = cast_model(model, data, output, floats=floats, overflow=overflow, options=options)
    record = {name: value for name, value in vars(result).items() if name not in ("half", "scratch")}
    printer.report(record, cast_summary(result))
    printer.wrote(output)
    if not result.check.passed:
        raise typer.Exit(1)
    exit_differing(result.evaluation)
