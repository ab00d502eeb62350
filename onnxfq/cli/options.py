"""Options and arguments shared by subcommands."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from onnxfq.calibration.calibrators import spellings
from onnxfq.cli.basic_options import DIFFERENT as DIFFERENT
from onnxfq.cli.basic_options import JsonOption as JsonOption
from onnxfq.cli.basic_options import ModelArgument as ModelArgument
from onnxfq.cli.basic_options import QuietOption as QuietOption
from onnxfq.data import DEFAULT_BATCH
from onnxfq.documents.recipe import RECIPES, BiasCorrectionChoice, Equalize, Recipe, load_recipe
from onnxfq.documents.rounding import ROUNDINGS
from onnxfq.documents.sensitivity import FLOAT
from onnxfq.runtime.custom_ops import use_custom_ops
from onnxfq.runtime.device_choice import DeviceChoice
from onnxfq.stages.encoding_sources import Missing
from onnxfq.stages.options import MOST_THREADS
from onnxfq.stages.promise import Promise

DATA_PANEL, RUN_PANEL, ACCURACY_PANEL = "Data", "Running", "Accuracy"
"""Panels of `--help` for the options of data, of runs and of promised accuracy."""

_DATA = typer.Option(
    "--data",
    metavar="DATA",
    help="Read an .npz keyed by input name, an .npy, a folder of these or of images, or module:function.",
    show_default=False,
    rich_help_panel=DATA_PANEL,
)
DataOption = Annotated[str, _DATA]
OptionalDataOption = Annotated[str | None, _DATA]
OutputOption = Annotated[
    Path, typer.Option("--output", "-o", metavar="OUT", help="Write this file.", show_default=False)
]
_PLAN = typer.Option("--plan", metavar="FILE", help="Use this plan of `onnxfq plan`.", show_default=False)
PlanOption = Annotated[Path, _PLAN]
OptionalPlanOption = Annotated[Path | None, _PLAN]
StatisticsOption = Annotated[
    Path | None,
    typer.Option(
        "--statistics", metavar="FILE", help="Use these statistics of `onnxfq observe`.", show_default=False
    ),
]
RecipeOption = Annotated[
    str,
    typer.Option(
        "--recipe", metavar="NAME|FILE", help=f"Use this recipe: {', '.join(RECIPES)}, or a YAML file."
    ),
]
CalibratorOption = Annotated[
    str | None,
    typer.Option(
        "--calibrator",
        metavar="NAME",
        help=f"Override the recipe's calibrator of activations: {', '.join(spellings())}.",
        show_default=False,
    ),
]
RoundingOption = Annotated[
    str | None,
    typer.Option(
        "--rounding",
        metavar="NAME",
        help=f"Override the recipe's rounding of weights: {', '.join(ROUNDINGS)}.",
        show_default=False,
    ),
]
EqualizeOption = Annotated[
    Equalize | None,
    typer.Option(
        "--equalize",
        help="Equalize channel ranges: of depthwise inputs, or across layers; overrides the recipe.",
        show_default=False,
    ),
]
SmoothOption = Annotated[
    str | None,
    typer.Option(
        "--smooth",
        metavar="none|auto|0.7",
        help="Move differences between channels into weights, by this share; overrides the recipe.",
        show_default=False,
    ),
]
BiasCorrectionOption = Annotated[
    BiasCorrectionChoice | None,
    typer.Option(
        "--bias-correction",
        help="Let biases make up for the mean error of rounded weights; overrides the recipe.",
        show_default=False,
    ),
]
BatchOption = Annotated[
    int,
    typer.Option(
        "--batch",
        min=0,
        help="Run this many samples at once if the batch axis is open; 0 keeps the batches of the data.",
        rich_help_panel=RUN_PANEL,
    ),
]
ThreadsOption = Annotated[
    int,
    typer.Option(
        "--threads",
        min=0,
        max=MOST_THREADS,
        help="Use this many threads; 0 for one per core.",
        rich_help_panel=RUN_PANEL,
    ),
]
DeviceOption = Annotated[
    DeviceChoice,
    typer.Option(
        "--device",
        help="Run models on this device; auto: on a GPU if one works and has room.",
        rich_help_panel=RUN_PANEL,
    ),
]
ExactOption = Annotated[
    bool,
    typer.Option(
        "--exact",
        help="Compare without graph optimisation, bit for bit: slower; quantize compares both forms.",
        rich_help_panel=RUN_PANEL,
    ),
]
KeepOption = Annotated[
    bool,
    typer.Option("--keep-existing", help="Keep the quantized part of the model and quantize the rest."),
]
RequantizeOption = Annotated[
    bool, typer.Option("--requantize", help="Remove the quantizers of a quantized model first.")
]
CustomOpsOption = Annotated[
    list[Path] | None,
    typer.Option(
        "--custom-ops",
        metavar="LIB",
        help="Load a custom-operator library that the model needs (repeatable).",
        show_default=False,
        callback=lambda libraries: use_libraries(libraries),
    ),
]
RuntimeOption = Annotated[
    str | None,
    typer.Option(
        "--runtime",
        metavar="onnxruntime==X",
        help="Write opset and IR version for this release, or fail.",
        show_default=False,
    ),
]
GivenOption = Annotated[
    Path | None,
    typer.Option(
        "--encodings",
        metavar="FILE",
        help="Use scales of another tool, unchanged: TensorRT's calibration cache, AIMET's encodings, "
        "onnxruntime's TensorQuantOverrides or calibration.json.",
        show_default=False,
    ),
]
MissingOption = Annotated[
    Missing,
    typer.Option(
        "--missing",
        help="Without data, stop at activations that --encodings lacks, or keep them in float.",
    ),
]
MinSqnrOption = Annotated[
    float | None,
    typer.Option(
        "--min-sqnr",
        metavar="DB",
        help="Promise this SQNR of the outputs: the fewest layers stay in float.",
        show_default=False,
        rich_help_panel=ACCURACY_PANEL,
    ),
]
MaxDropOption = Annotated[
    float | None,
    typer.Option(
        "--max-drop",
        metavar="X",
        help="Promise at most this drop: in points of top-1 with --labels, or of --metric.",
        show_default=False,
        rich_help_panel=ACCURACY_PANEL,
    ),
]
LabelsOption = Annotated[
    Path | None,
    typer.Option(
        "--labels",
        metavar="FILE",
        help="Class numbers of --data, one per row: .npy, .npz or text.",
        show_default=False,
        rich_help_panel=ACCURACY_PANEL,
    ),
]
MetricOption = Annotated[
    str | None,
    typer.Option(
        "--metric",
        metavar="MODULE:FUNCTION",
        help="Call this with the outputs of each feed, and labels or feeds; higher is better.",
        show_default=False,
        rich_help_panel=ACCURACY_PANEL,
    ),
]
WeightBitsOption = Annotated[
    float | None,
    typer.Option(
        "--weight-bits",
        metavar="BITS",
        help="Promise this average of bits: the layers that gain most get the format of --fallback.",
        show_default=False,
        rich_help_panel=ACCURACY_PANEL,
    ),
]
FallbackOption = Annotated[
    str,
    typer.Option(
        "--fallback",
        metavar="float|weights|QTYPE|RECIPE",
        help="Give these layers no quantizers, quantized weights only, or a wider format or recipe.",
        rich_help_panel=ACCURACY_PANEL,
    ),
]

BATCH = DEFAULT_BATCH

BuildOption = Annotated[
    bool,
    typer.Option(
        "--build", help="Also build the model with TensorRT for RTX (extra tensorrt; no GPU needed)."
    ),
]
ShapeOption = Annotated[
    list[str] | None,
    typer.Option(
        "--shape",
        metavar="NAME:1x3x224x224",
        help="Build for this shape of an input with open dimensions (repeatable).",
        show_default=False,
    ),
]


def choose_recipe(
    recipe: str,
    keep_existing: bool,
    requantize: bool,
    equalize: Equalize | None = None,
    smooth: str | None = None,
) -> Recipe:
    """Return the recipe with the options for quantized models and equalized channels applied."""
    if keep_existing and requantize:
        raise typer.BadParameter("--keep-existing and --requantize exclude each other; give one")
    chosen = load_recipe(recipe)
    asked = "keep" if keep_existing else "requantize" if requantize else chosen.existing
    chosen = chosen if equalize is None else chosen.with_equalize(equalize)
    chosen = chosen if smooth is None else chosen.with_smooth(smooth)
    return chosen.model_copy(update={"existing": asked})


def read_promise(
    min_sqnr: float | None,
    max_drop: float | None,
    labels: Path | None,
    metric: str | None,
    fallback: str,
    weight_bits: float | None = None,
) -> Promise | None:
    """Return the promise of the options; None without one. Raises DataError if they do not go together."""
    if all(one is None for one in (min_sqnr, max_drop, labels, metric, weight_bits)):
        if fallback != FLOAT:
            raise typer.BadParameter(
                "--fallback has no effect without a promise; give --min-sqnr, --max-drop or --weight-bits too"
            )
        return None
    return Promise(min_sqnr, max_drop, labels, metric, fallback, weight_bits)


def use_libraries(libraries: list[Path] | None) -> list[Path] | None:
    """Register the libraries of --custom-ops."""
    for library in libraries or []:
        use_custom_ops(library)
    return libraries


def read_shapes(texts: Sequence[str] | None) -> dict[str, tuple[int, ...]]:
    """Return shape by input name of `NAME:1x3x224x224`, also joined by commas; a name may hold colons."""
    shapes = {}
    for text in (one for given in texts or () for one in re.split(r"(?<=\d),", given)):
        name, _, sizes = text.rpartition(":")
        if not name or not all(size.isdecimal() and len(size) < 10 for size in sizes.split("x")):
            raise typer.BadParameter(f"a shape is NAME:1x3x224x224, got {text!r:.80}")
        shapes[name] = tuple(int(size) for size in sizes.split("x"))
    return shapes
