"""`onnxfq handoff`: a folder with all that the machine with the GPU needs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from onnxfq.cli.console import running, say
from onnxfq.cli.data_options import with_data_options
from onnxfq.cli.options import (
    BATCH,
    BatchOption,
    ModelArgument,
    QuietOption,
    ShapeOption,
    ThreadsOption,
    data_option,
    shape_option,
)
from onnxfq.data import DataOptions
from onnxfq.stages.handoff import SAMPLES
from onnxfq.stages.handoff import handoff as write_folder
from onnxfq.targets.build_options import BuildOptions


@with_data_options
def handoff(
    model: ModelArgument,
    output: Annotated[
        Path, typer.Option("--output", "-o", metavar="DIR", help="A new folder.", show_default=False)
    ],
    described: DataOptions,
    data: Annotated[str | None, data_option(f"Its first {SAMPLES} feeds go along.")] = None,
    build: Annotated[
        bool, typer.Option("--build", help="For the findings build it too, as `check --build` does.")
    ] = False,
    shape: ShapeOption = None,
    batch: BatchOption = BATCH,
    threads: ThreadsOption = 0,
    quiet: QuietOption = False,
) -> None:
    """Write a Q/DQ MODEL with shapes, commands, samples and findings into a folder."""
    shapes = dict(shape_option(text) for text in shape or ())
    with running(batch, threads, quiet, described, "cpu") as options:
        result = write_folder(
            model,
            output,
            data=data,
            build=BuildOptions(shapes) if build else None,
            shapes=shapes,
            options=options,
        )
    for note in result.notes:
        say(f"note       {note}", quiet)
    say(result.check.table(), quiet)
    say(f"wrote      {output}: {len(result.files)} files, told of in its README.md", quiet)
