"""Options and arguments that several subcommands share."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from onnxfq.calibrators import FORMS
from onnxfq.feeds import DEFAULT_BATCH
from onnxfq.recipe import RECIPES

ModelArgument = Annotated[Path, typer.Argument(metavar="MODEL", help="The ONNX model.", show_default=False)]
DATA_HELP = "An .npz keyed by input name, an .npy, a folder of these or of images, or module:function."
DataOption = Annotated[str, typer.Option("--data", metavar="DATA", help=DATA_HELP, show_default=False)]
OutputOption = Annotated[
    Path, typer.Option("--output", "-o", metavar="OUT", help="The file to write.", show_default=False)
]
PlanOption = Annotated[
    Path, typer.Option("--plan", metavar="FILE", help="The plan, from `onnxfq plan`.", show_default=False)
]
RecipeOption = Annotated[
    str, typer.Option("--recipe", metavar="NAME|FILE", help=f"{', '.join(RECIPES)}, or a YAML file.")
]
CalibratorOption = Annotated[
    str | None,
    typer.Option(
        "--calibrator",
        metavar="NAME",
        help=f"For activations, in place of the recipe's: {', '.join(FORMS)}.",
        show_default=False,
    ),
]
BatchOption = Annotated[
    int,
    typer.Option(
        "--batch", min=0, help="Samples a run where the model leaves the batch axis open; 0 as they come."
    ),
]
ThreadsOption = Annotated[
    int, typer.Option("--threads", min=0, help="Threads to run with; 0 for one a core.")
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON instead of text.")]
QuietOption = Annotated[bool, typer.Option("--quiet", "-q", help="Print errors only.")]

BATCH = DEFAULT_BATCH
