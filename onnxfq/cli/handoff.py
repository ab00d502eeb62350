"""`onnxfq handoff`: a folder with everything that the machine with the GPU needs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from onnxfq.cli.build_options import BuildChoice, GpuOption, note_gpus, read_shapes
from onnxfq.cli.console import Printing
from onnxfq.cli.data_options import OptionalDataOption
from onnxfq.cli.option import BUILDING, option
from onnxfq.cli.options import ModelArgument
from onnxfq.cli.run_options import RunningOnCpu

_SHAPES = option(
    "NAME:1x3x224x224",
    "Set this end of the shapes of an input with open dimensions (repeatable, or with commas).",
    panel=BUILDING,
)
ShapesOption = Annotated[list[str] | None, _SHAPES]


def handoff(
    model: ModelArgument,
    output: Annotated[Path, option("DIR", "Write this new folder.", "--output", "-o")],
    data: OptionalDataOption = None,
    gpu: GpuOption = None,
    *,
    building: BuildChoice,
    min_shapes: ShapesOption = None,
    opt_shapes: ShapesOption = None,
    max_shapes: ShapesOption = None,
    running: RunningOnCpu,
    printer: Printing,
) -> None:
    """The folder has the findings of `check` too.

    The first feeds of --data are the samples, and all of them make the shapes; without it both are guessed.
    """
    from onnxfq.tools.handoff import handoff as write_folder

    note_gpus(gpu, printer)
    ends = {"min": read_shapes(min_shapes), "opt": read_shapes(opt_shapes), "max": read_shapes(max_shapes)}
    with running.progress(printer) as options:
        result = write_folder(
            model,
            output,
            data=data,
            build=building.options,
            shapes=read_shapes(building.shape, ranges=True),
            ends=ends,
            gpus=gpu or (),
            options=options,
        )
    printer.report(result, *(f"note       {note}" for note in result.notes), result.check.table())
    printer.say(f"wrote      {output}: {len(result.files)} files, described in its README.md")
