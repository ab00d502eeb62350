"""`onnxfq convert`: models and checkpoints of other tools, into and out of quantized ONNX models."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, get_args

import typer

from onnxfq.choices import DEFAULT_TARGET, CheckpointName
from onnxfq.cli.console import Printer, Printing, exit_differing
from onnxfq.cli.data_options import OptionalDataOption
from onnxfq.cli.option import argument, flag, option, refuse
from onnxfq.cli.run_options import RunningFast

CHECKPOINT_TARGET = "onnxruntime"
"""Target of a checkpoint by default: it takes zero points and blocks of any size."""

_OUTPUT = option(
    "OUT",
    "Write this file; for a checkpoint, or with --to, a new folder if it does not end in .onnx.",
    "--output",
    "-o",
)
_TARGET = option(
    "NAME",
    "Convert for this target: {conversion_targets}; of a checkpoint for any.",
    show_default=f"{DEFAULT_TARGET}, of a checkpoint {CHECKPOINT_TARGET}",
)
_ONTO = option("PATH", "The same model in float: the ONNX model for a checkpoint, the checkpoint with --to.")
_TO = option(
    "FORM", f"Write a checkpoint of this form from an ONNX model: {', '.join(get_args(CheckpointName))}."
)
_PARTIAL = flag("Leave out what has no place in --onto instead of an error.", "--partial")


def convert(
    model: Annotated[Path, argument("MODEL", "A quantized model, a folder of GenAI or a checkpoint.")],
    output: Annotated[Path, _OUTPUT],
    data: OptionalDataOption = None,
    target: Annotated[str | None, _TARGET] = None,
    onto: Annotated[Path | None, _ONTO] = None,
    to: Annotated[CheckpointName | None, _TO] = None,
    partial: Annotated[bool, _PARTIAL] = False,
    *,
    running: RunningFast,
    printer: Printing,
) -> None:
    """--data is for the comparison with the source, and turns dynamic scales into constants.

    The file is written whatever the rules of the target find in it, and the exit code says whether they find
    a fault.

    A checkpoint (GPTQ, AWQ, compressed-tensors, ModelOpt) gives its weights to the graph of --onto; --to
    writes one. Its integers and scales stay.
    """
    from onnxfq.interchange.genai_folder import CONFIG, find_decoder

    if (model / CONFIG).is_file():
        model = find_decoder(model)
    if model.is_dir() or to is not None:
        _refuse_options(model, target, data, onto, to)
        assert onto is not None
        (_export if to is not None else _apply)(model, output, onto, target or to or "", partial, printer)
        return
    refuse(
        onto is not None or partial,
        "--onto and --partial are for checkpoints; give a folder, or --to with a model",
    )
    from onnxfq.report.conversion import conversion_summary
    from onnxfq.tools.convert import convert as convert_model

    with running.progress(printer) as options:
        result = convert_model(model, output, target=target or DEFAULT_TARGET, data=data, options=options)
    record = {name: value for name, value in vars(result).items() if name != "qdq"}
    printer.report(record, conversion_summary(result))
    printer.wrote(output)
    if result.check is not None and not result.check.passed:
        raise typer.Exit(1)
    exit_differing(result.evaluation)


def _refuse_options(model: Path, target: str | None, data: object, onto: Path | None, to: str | None) -> None:
    """Raise BadParameter for options that a conversion of checkpoints lacks or does not have."""
    refuse(
        to is not None and model.is_dir(),
        "--to writes a checkpoint from an ONNX model, and MODEL is a folder; give a model",
    )
    if onto is None:
        what = (
            "the float checkpoint of the model"
            if to is not None
            else "the float ONNX model of the checkpoint"
        )
        raise typer.BadParameter(f"--onto is missing; give {what}")
    refuse(data is not None, "--data has no effect on checkpoints; leave it out")
    refuse(
        to is not None and target is not None,
        "--target is for ONNX models, and --to writes a checkpoint; give one of them",
    )


def _apply(checkpoint: Path, output: Path, onto: Path, target: str, partial: bool, printer: Printer) -> None:
    """Put a checkpoint on the graph `onto`."""
    from onnxfq.report.conversion import applied_summary
    from onnxfq.tools.checkpoints.apply_checkpoint import apply_checkpoint

    result = apply_checkpoint(checkpoint, onto, output, target=target or CHECKPOINT_TARGET, partial=partial)
    kept = ("source", "form", "formats", "notes", "plan")
    printer.report({name: getattr(result, name) for name in kept}, applied_summary(result))
    printer.wrote(output)


def _export(model: Path, output: Path, onto: Path, to: str, partial: bool, printer: Printer) -> None:
    """Write a model as a checkpoint of the form `to`."""
    from onnxfq.report.conversion import exported_summary
    from onnxfq.tools.checkpoints.export_checkpoint import export_checkpoint

    result = export_checkpoint(model, onto, output, to, partial=partial)
    printer.report(vars(result), exported_summary(result))
    printer.wrote(output)
