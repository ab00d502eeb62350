"""Options and arguments shared by subcommands."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, get_args

import typer

from onnxfq.choices import DEFAULT_RECIPE, FLOAT, WEIGHTS, BiasCorrectionChoice, CacheGranularity, Equalize
from onnxfq.cli.basic_options import DIFFERENT as DIFFERENT
from onnxfq.cli.basic_options import ModelArgument as ModelArgument
from onnxfq.cli.option_groups import OptionGroup

if TYPE_CHECKING:
    from onnxfq.documents.recipe import Recipe
    from onnxfq.remedies.accuracy_target import AccuracyTarget
    from onnxfq.targets.target import BuildOptions

ACCURACY_PANEL = "Accuracy"
"""Panel of `--help` for the options of promised accuracy."""

OutputOption = Annotated[Path, typer.Option("--output", "-o", metavar="OUT", help="Write this file.")]
_PLAN = typer.Option("--plan", metavar="FILE", help="Use this plan of `onnxfq plan`.")
PlanOption = Annotated[Path, _PLAN]
OptionalPlanOption = Annotated[Path | None, _PLAN]
StatisticsOption = Annotated[
    Path | None,
    typer.Option("--statistics", metavar="FILE", help="Use these statistics of `onnxfq observe`."),
]
MomentsOption = Annotated[
    Path | None,
    typer.Option(
        "--moments", metavar="FILE", help="Round weights by these moments of `onnxfq observe --moments`."
    ),
]
RayOption = Annotated[
    str | None,
    typer.Option("--ray", metavar="ADDRESS|local", help="Distribute the work over a Ray cluster."),
]
RecipeOption = Annotated[
    str,
    typer.Option(
        "--recipe", metavar="NAME|FILE", help="Use this recipe of `onnxfq recipes`, or this YAML file."
    ),
]
RecipesOption = Annotated[
    list[str] | None,
    typer.Option(
        "--recipe",
        metavar="NAME|FILE",
        help="Use this recipe of `onnxfq recipes`, or this YAML file (repeatable: OUT is a folder then).",
        show_default=DEFAULT_RECIPE,
    ),
]
CalibratorOption = Annotated[
    str | None,
    typer.Option(
        "--calibrator",
        metavar="NAME",
        help="Override the recipe's calibrator of activations: {calibrators}.",
    ),
]
CustomOpsOption = Annotated[
    list[Path] | None,
    typer.Option(
        "--custom-ops",
        metavar="LIB",
        help="Load a custom-operator library that the model needs (repeatable).",
        callback=lambda libraries: use_libraries(libraries),
    ),
]
GivenOption = Annotated[
    Path | None,
    typer.Option(
        "--encodings",
        metavar="FILE",
        help="Use scales of another tool, unchanged: TensorRT's calibration cache, AIMET's encodings, "
        "onnxruntime's TensorQuantOverrides or calibration.json.",
    ),
]
GpuOption = Annotated[
    list[str] | None,
    typer.Option(
        metavar="NAME|SM",
        help="Keep to the formats of this GPU, such as l4, orin, rtx50, dla or SM89 (repeatable: of all of "
        "them). A recipe that does not run there is refused.",
    ),
]
TimeOption = Annotated[
    bool,
    typer.Option(
        "--time",
        help="Also time the models in turn on one sample, in the runtime of their target.",
    ),
]


@dataclass(frozen=True)
class RecipeChoice:
    """A recipe, and the options that override it."""

    recipe: RecipeOption = DEFAULT_RECIPE
    calibrator: CalibratorOption = None
    rounding: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="Override the recipe's rounding of weights: {roundings}."),
    ] = None
    equalize: Annotated[
        Equalize | None,
        typer.Option(
            metavar="NAME",
            help=f"Equalize channel ranges: {', '.join(get_args(Equalize))}; overrides the recipe.",
        ),
    ] = None
    smooth: Annotated[
        str | None,
        typer.Option(
            metavar="none|auto|0.7",
            help="Move differences between channels into weights, by this share; overrides the recipe.",
        ),
    ] = None
    bias_correction: Annotated[
        BiasCorrectionChoice | None,
        typer.Option(help="Let biases make up for the mean error of rounded weights; overrides the recipe."),
    ] = None
    kv: Annotated[
        str | None,
        typer.Option(
            metavar="int8|int4|float8e4m3fn",
            help="Store the keys and values that a decoder hands on in this format.",
        ),
    ] = None
    kv_granularity: Annotated[
        CacheGranularity | None,
        typer.Option(help="Give them one scale, or one for each channel; overrides the recipe."),
    ] = None
    keep_existing: Annotated[
        bool,
        typer.Option("--keep-existing", help="Keep the quantized part of the model and quantize the rest."),
    ] = False
    requantize: Annotated[
        bool, typer.Option("--requantize", help="Remove the quantizers of a quantized model first.")
    ] = False

    def load(self) -> Recipe:
        """Return the recipe with the overrides."""
        from onnxfq.targets.recipes import load_recipe

        if self.keep_existing and self.requantize:
            raise typer.BadParameter("--keep-existing and --requantize exclude each other; give one")
        chosen = load_recipe(self.recipe)
        asked = "keep" if self.keep_existing else "requantize" if self.requantize else chosen.existing
        if self.calibrator is not None:
            chosen = chosen.override(activations={"calibrator": self.calibrator})
        if self.rounding is not None:
            chosen = chosen.override(weights={"rounding": self.rounding})
        if self.equalize is not None:
            chosen = chosen.override(activations={"equalize": self.equalize})
        if self.smooth is not None:
            chosen = chosen.override(smooth=self.smooth)
        cache = {"qtype": self.kv} if self.kv is not None else {}
        if self.kv_granularity is not None:
            if self.kv is None and chosen.cache is None:
                raise typer.BadParameter("--kv-granularity needs --kv; add it")
            cache["granularity"] = {"tensor": "per_tensor", "channel": "per_axis"}[self.kv_granularity]
        if cache:
            chosen = chosen.override(cache=cache)
        bias_correction = self.bias_correction or chosen.bias_correction
        return chosen.model_copy(update={"existing": asked, "bias_correction": bias_correction})


ChosenRecipe = Annotated[RecipeChoice, OptionGroup(RecipeChoice)]
PlannedRecipe = Annotated[
    RecipeChoice, OptionGroup(RecipeChoice, calibrator=None, rounding=None, smooth=None, bias_correction=None)
]
RecipeChanges = Annotated[RecipeChoice, OptionGroup(RecipeChoice, recipe=DEFAULT_RECIPE)]
"""The options that override each of several recipes."""

RoundedRecipe = Annotated[
    RecipeChoice, OptionGroup(RecipeChoice, calibrator=None, equalize=None, smooth=None, bias_correction=None)
]


def _promise(*names: str, **given: Any) -> Any:
    return typer.Option(*names, rich_help_panel=ACCURACY_PANEL, **given)


@dataclass(frozen=True)
class Accuracy:
    """A promised accuracy, and how the task is measured."""

    min_sqnr: Annotated[
        float | None,
        _promise(metavar="DB", help="Promise this SQNR of the outputs: the fewest layers stay in float."),
    ] = None
    max_drop: Annotated[
        float | None,
        _promise(
            metavar="X", help="Promise at most this drop: in points of top-1 with --labels, or of --metric."
        ),
    ] = None
    labels: Annotated[
        Path | None,
        _promise(metavar="FILE", help="Class numbers of --data, one per row: .npy, .npz or text."),
    ] = None
    metric: Annotated[
        str | None,
        _promise(
            metavar="perplexity|MODULE:FUNCTION",
            help="Call this with the outputs of each sample, and labels or samples; higher is better.",
        ),
    ] = None
    weight_bits: Annotated[
        float | None,
        _promise(
            metavar="BITS",
            help="Promise this average of bits: the layers that gain most get the format of --fallback.",
        ),
    ] = None
    fallback: Annotated[
        str,
        _promise(
            metavar="float|weights|QTYPE|RECIPE",
            help="Give these layers no quantizers, quantized weights only, or a wider format or recipe.",
        ),
    ] = FLOAT

    @property
    def is_promised(self) -> bool:
        """Whether any option of a promise is given."""
        options = (self.min_sqnr, self.max_drop, self.labels, self.metric, self.weight_bits)
        return any(one is not None for one in options)

    @property
    def promise(self) -> AccuracyTarget | None:
        """The promise; None without one. Raises DataError for options that do not go together."""
        from onnxfq.remedies.accuracy_target import AccuracyTarget

        if not self.is_promised:
            if self.fallback != FLOAT:
                raise typer.BadParameter(
                    "--fallback has no effect without a promise; give --min-sqnr, --max-drop or "
                    "--weight-bits too"
                )
            return None
        return AccuracyTarget(
            self.min_sqnr, self.max_drop, self.labels, self.metric, self.fallback, self.weight_bits
        )


def _read_promise(
    accuracy: Annotated[Accuracy, OptionGroup(Accuracy)],
    gpu: GpuOption = None,
) -> AccuracyTarget:
    from onnxfq.remedies.accuracy_target import AccuracyTarget

    if accuracy.fallback == WEIGHTS and not accuracy.is_promised:
        raise typer.BadParameter(
            "--fallback has no effect without a promise; give --min-sqnr, --max-drop or --weight-bits too"
        )
    promise = accuracy.promise if accuracy.is_promised else AccuracyTarget(fallback=accuracy.fallback)
    assert promise is not None
    return replace(promise, gpu=tuple(gpu) if gpu else None)


PromiseOptions = Annotated["AccuracyTarget", OptionGroup(_read_promise)]
AccuracyOptions = Annotated[Accuracy, OptionGroup(Accuracy, weight_bits=None)]


_VALUES = re.compile(r"[^:]+=-?\d{1,18}(x-?\d{1,18})*", re.ASCII)
"""Values of a shape input: NAME=1x-1x64."""


@dataclass(frozen=True)
class Build:
    """Whether to build the model, and the shapes to build it for."""

    build: Annotated[
        bool,
        typer.Option(
            "--build",
            help="Also open the model in the target's runtime and count what runs in low precision: TensorRT "
            "for RTX (extra tensorrt; no GPU needed), OpenVINO (extra openvino), QNN (package "
            "onnxruntime-qnn) or ONNX Runtime.",
        ),
    ] = False
    shape: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME:1x3x224x224",
            help="Build for this shape of an input with open dimensions; 1-8 is a range, NAME=2x3 the values "
            "of a shape input (repeatable).",
        ),
    ] = None

    @property
    def options(self) -> BuildOptions | None:
        """The options of the build; None without one."""
        from onnxfq.targets.target import BuildOptions

        values = [text for text in self.shape or () if _VALUES.fullmatch(text)]
        shapes = [text for text in self.shape or () if text not in values]
        numbers = {
            text.rpartition("=")[0]: [int(n) for n in text.rpartition("=")[2].split("x")] for text in values
        }
        return BuildOptions(read_shapes(shapes, ranges=True), values=numbers) if self.build else None


BuildChoice = Annotated[Build, OptionGroup(Build)]


def describe_gpus(gpus: Sequence[str] | None) -> list[str]:
    """Return a line for each GPU with the formats that run there; none without GPUs."""
    from onnxfq.targets.target import DEFAULT_TARGET, target_by_name

    hardware = target_by_name(DEFAULT_TARGET).hardware
    return [] if not gpus or hardware is None else [f"gpu        {line}" for line in hardware.describe(gpus)]


def use_libraries(libraries: list[Path] | None) -> list[Path] | None:
    """Register the libraries of --custom-ops."""
    if libraries:
        from onnxfq.runtime.custom_ops import use_custom_ops

        for library in libraries:
            use_custom_ops(library)
    return libraries


def read_shapes(texts: Sequence[str] | None, ranges: bool = False) -> dict[str, tuple[Any, ...]]:
    """Return shape by input name of `NAME:1x3x224x224`, also joined by commas; a name may hold colons.

    With `ranges` a size may be two, `1-8`.
    """
    shapes: dict[str, tuple[Any, ...]] = {}
    size = r"\d{1,9}(-\d{1,9})?" if ranges else r"\d{1,9}"
    for text in (one for given in texts or () for one in re.split(r"(?<=\d),", given)):
        name, _, sizes = text.rpartition(":")
        if not name or not all(re.fullmatch(size, one, re.ASCII) for one in sizes.split("x")):
            raise typer.BadParameter(f"a shape is NAME:1x3x224x224, got {text!r:.80}")
        shapes[name] = tuple(_read_size(one) for one in sizes.split("x"))
    return shapes


def _read_size(text: str) -> int | tuple[int, int]:
    low, dash, high = text.partition("-")
    if dash and int(low) > int(high):
        raise typer.BadParameter(f"a range of sizes begins with the smaller one, got {text!r}")
    return (int(low), int(high)) if dash else int(low)
