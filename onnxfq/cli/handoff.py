"""`onnxfq handoff`: a folder with everything that the machine with the GPU needs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from onnxfq.cli.console import say, show_progress
from onnxfq.cli.data_options import with_data_options
from onnxfq.cli.options import (
    BATCH,
    BatchOption,
    BuildOption,
    JsonOption,
    ModelArgument,
    OptionalDataOption,
    QuietOption,
    ShapeOption,
    ThreadsOption,
    read_shapes,
)
from onnxfq.data import DataOptions
from onnxfq.stages.handoff import handoff as write_folder
from onnxfq.support.records import to_json
from onnxfq.targets.build_options import BuildOptions

ShapesOption = Annotated[
    list[str] | None,
    typer.Option(
        metavar="NAME:1x3x224x224",
        help="Set this end of the shapes of an input with open dimensions (repeatable, or with commas).",
        show_default=False,
    ),
]


@with_data_options
def handoff(
    model: ModelArgument,
    output: Annotated[
        Path, typer.Option("--output", "-o", metavar="DIR", help="Write this new folder.", show_default=False)
    ],
    described: DataOptions,
    data: OptionalDataOption = None,
    build: BuildOption = False,
    shape: ShapeOption = None,
    min_shapes: ShapesOption = None,
    opt_shapes: ShapesOption = None,
    max_shapes: ShapesOption = None,
    batch: BatchOption = BATCH,
    threads: ThreadsOption = 0,
    as_json: JsonOption = False,
    quiet: QuietOption = False,
) -> None:
    """Write a Q/DQ MODEL with shapes, commands, samples and findings to a folder.

    The first feeds of --data are the samples, and all of them make the shapes; without it both are guessed.
    """
    shapes = read_shapes(shape)
    ends = {"min": read_shapes(min_shapes), "opt": read_shapes(opt_shapes), "max": read_shapes(max_shapes)}
    with show_progress(batch, threads, quiet or as_json, described, "cpu") as options:
        result = write_folder(
            model,
            output,
            data=data,
            build=BuildOptions(shapes) if build else None,
            shapes=shapes,
            ends=ends,
            options=options,
        )
    if as_json:
        say(to_json(result))
        return
    for note in result.notes:
        say(f"note       {note}", quiet)
    say(result.check.table(), quiet)
    say(f"wrote      {output}: {len(result.files)} files, described in its README.md", quiet)
