"""Options and arguments that several subcommands share."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from onnxfq.calibration.calibrators import spellings
from onnxfq.data import DEFAULT_BATCH
from onnxfq.documents.recipe import RECIPES, Equalize, Recipe, load_recipe
from onnxfq.runtime.custom_ops import use_custom_ops
from onnxfq.runtime.device_choice import DeviceChoice
from onnxfq.stages.encoding_sources import Missing
from onnxfq.stages.options import MOST_THREADS

ModelArgument = Annotated[Path, typer.Argument(metavar="MODEL", help="The ONNX model.", show_default=False)]
DATA_PANEL, RUN_PANEL = "Data", "Running"
"""What `--help` lists apart from the options of the command itself."""


def data_option(more: str = "") -> Any:
    """Return the option --data. more: what it means to the command, after what it may be."""
    help_text = "An .npz keyed by input name, an .npy, a folder of these or of images, or module:function."
    return typer.Option(
        "--data",
        metavar="DATA",
        help=f"{help_text} {more}".strip(),
        show_default=False,
        rich_help_panel=DATA_PANEL,
    )


DataOption = Annotated[str, data_option()]
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
        help=f"For activations, in place of the recipe's: {', '.join(spellings())}.",
        show_default=False,
    ),
]
EqualizeOption = Annotated[
    Equalize | None,
    typer.Option(
        "--equalize",
        help="Which inputs have their channels brought to one size, in place of what the recipe says.",
        show_default=False,
    ),
]
BatchOption = Annotated[
    int,
    typer.Option(
        "--batch",
        min=0,
        help="Samples a run where the model leaves the batch axis open; 0 as they come.",
        rich_help_panel=RUN_PANEL,
    ),
]
ThreadsOption = Annotated[
    int,
    typer.Option(
        "--threads",
        min=0,
        max=MOST_THREADS,
        help="Threads to run with; 0 for one a core.",
        rich_help_panel=RUN_PANEL,
    ),
]
DeviceOption = Annotated[
    DeviceChoice,
    typer.Option(
        "--device",
        help="Where models run; auto: on a GPU if one works and has room.",
        rich_help_panel=RUN_PANEL,
    ),
]
KeepOption = Annotated[
    bool,
    typer.Option("--keep-existing", help="If the model is quantized in part: keep that, quantize the rest."),
]
RequantizeOption = Annotated[
    bool, typer.Option("--requantize", help="Of a quantized model: take its quantizers out first.")
]
CustomOpsOption = Annotated[
    list[Path] | None,
    typer.Option(
        "--custom-ops",
        metavar="LIB",
        help="A library of operators that the model has and ONNX Runtime has not; may be given again.",
        show_default=False,
        callback=lambda libraries: use_libraries(libraries),
    ),
]
RuntimeOption = Annotated[
    str | None,
    typer.Option(
        "--runtime",
        metavar="onnxruntime==X",
        help="Keep opset and IR version at what that release reads, or refuse.",
        show_default=False,
    ),
]
GivenOption = Annotated[
    Path | None,
    typer.Option(
        "--encodings",
        metavar="FILE",
        help="Scales of another tool, taken exactly: TensorRT's calibration cache, AIMET's encodings, "
        "onnxruntime's TensorQuantOverrides or calibration.json.",
        show_default=False,
    ),
]
MissingOption = Annotated[
    Missing,
    typer.Option(
        "--missing",
        help="Activations that the file of --encodings lacks, without data: stop, or leave them in float.",
    ),
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON instead of text.")]
QuietOption = Annotated[bool, typer.Option("--quiet", "-q", help="Print errors only.")]

BATCH = DEFAULT_BATCH

DIFFERENT = 3
"""Exit code of `diff` and `compare` when something differs: 1 is an error, 2 wrong usage."""
ShapeOption = Annotated[
    list[str] | None,
    typer.Option(
        "--shape",
        metavar="NAME:1x3x224x224",
        help="The shape to build for of an input with open dimensions.",
        show_default=False,
    ),
]


def asked_recipe(
    recipe: str, keep_existing: bool, requantize: bool, equalize: Equalize | None = None
) -> Recipe:
    """Return the recipe with what the options say of quantized models and of equalizing channels."""
    if keep_existing and requantize:
        raise typer.BadParameter("--keep-existing and --requantize exclude each other; give one")
    chosen = load_recipe(recipe)
    asked = "keep" if keep_existing else "requantize" if requantize else chosen.existing
    chosen = chosen if equalize is None else chosen.with_equalize(equalize)
    return chosen.model_copy(update={"existing": asked})


def use_libraries(libraries: list[Path] | None) -> list[Path] | None:
    """Register the libraries of --custom-ops."""
    for library in libraries or []:
        use_custom_ops(library)
    return libraries


def shape_option(text: str) -> tuple[str, tuple[int, ...]]:
    """Return input name and shape of `NAME:1x3x224x224`; a name may hold colons."""
    name, _, sizes = text.rpartition(":")
    if not name or not all(size.isdecimal() for size in sizes.split("x")):
        raise typer.BadParameter(f"--shape wants NAME:1x3x224x224, got {text!r}")
    return name, tuple(int(size) for size in sizes.split("x"))
