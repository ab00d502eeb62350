"""Options and arguments shared by subcommands."""

from __future__ import annotations

import re
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, get_args

from onnxfq.choices import (
    DEFAULT_RECIPE,
    FLOAT,
    REPAIR_AUTO,
    WEIGHTS,
    BiasCorrectionChoice,
    CacheGranularity,
    Equalize,
    RepairWord,
    Rotate,
    WeightForm,
)
from onnxfq.cli.option import ACCURACY, KNOWN, RECIPE, RUNNING, argument, flag, option, refuse
from onnxfq.cli.option_groups import OptionGroup
from onnxfq.errors import DataError

if TYPE_CHECKING:
    from onnxfq.documents.recipe import Recipe
    from onnxfq.judging.accuracy_target import AccuracyTarget


ModelArgument = Annotated[Path, argument("MODEL", "The ONNX model.")]
OutputOption = Annotated[Path, option("OUT", "Write this file.", "--output", "-o")]
PageOption = Annotated[Path | None, option("FILE.html", "Write an HTML page of the result.")]
_PLAN = option("FILE", "Use this plan of `onnxfq plan`.", "--plan")
PlanOption = Annotated[Path, _PLAN]
OptionalPlanOption = Annotated[Path | None, _PLAN]
StatisticsOption = Annotated[
    Path | None, option("FILE", "Use these statistics of `onnxfq observe`.", "--statistics", panel=KNOWN)
]
MomentsOption = Annotated[
    Path | None,
    option("FILE", "Round weights by these moments of `onnxfq observe --moments`.", panel=KNOWN),
]
GivenOption = Annotated[
    Path | None,
    option(
        "FILE",
        "Use scales of another tool, unchanged: TensorRT's calibration cache, AIMET's encodings, "
        "onnxruntime's TensorQuantOverrides or calibration.json.",
        "--encodings",
        panel=KNOWN,
    ),
]
PythonOption = Annotated[
    str | None,
    option("PYTHON", "Make GenAI's folder of a checkpoint by the builder in this Python.", panel=RUNNING),
]
RayOption = Annotated[
    str | None,
    option("ADDRESS|local", "Distribute the work over a Ray cluster.", "--ray", panel=RUNNING),
]
_RECIPE = "Use this recipe of `onnxfq recipes`, or this YAML file"
RecipeOption = Annotated[str, option("NAME|FILE", f"{_RECIPE}.", "--recipe", kind="recipes")]
RecipesOption = Annotated[
    list[str] | None,
    option(
        "NAME|FILE",
        f"{_RECIPE} (repeatable: OUT is a folder then).",
        "--recipe",
        kind="recipes",
        show_default=DEFAULT_RECIPE,
    ),
]
CalibratorOption = Annotated[
    str | None,
    option(
        "NAME",
        "Override the recipe's calibrator of activations: {calibrators}.",
        "--calibrator",
        panel=RECIPE,
    ),
]
CustomOpsOption = Annotated[
    list[Path] | None,
    option(
        "LIB",
        "Load a custom-operator library that the model needs (repeatable).",
        "--custom-ops",
        panel=RUNNING,
        callback=lambda libraries: use_libraries(libraries),
    ),
]

_ROUNDING = option("NAME", "Override the recipe's rounding of weights: {roundings}.", panel=RECIPE)
_EQUALIZE = option(
    "NAME",
    f"Equalize channel ranges: {', '.join(get_args(Equalize))}; overrides the recipe.",
    panel=RECIPE,
)
_SMOOTH = option(
    "none|auto|0.7",
    "Move differences between channels into weights, by this share; overrides the recipe.",
    panel=RECIPE,
)
_ROTATE = option(
    None,
    "Turn channels by orthogonal matrices where the float model stays the same; overrides the recipe.",
    panel=RECIPE,
)
_BIAS_CORRECTION = option(
    None, "Let biases make up for the mean error of rounded weights; overrides the recipe.", panel=RECIPE
)
_KV = option(
    "int8|int4|float8e4m3fn",
    "Store the keys and values that a decoder hands on in this format.",
    panel=RECIPE,
)
_KV_GRANULARITY = option(
    None, "Give them one scale, or one for each channel; overrides the recipe.", panel=RECIPE
)
_WEIGHT_FORM = option(
    "FORM",
    f"Write the weights of a recipe of GenAI in this form: {', '.join(get_args(WeightForm))}.",
    panel=RECIPE,
)
_PAYS = option(
    "TABLE",
    "Leave products in float that few bits do not make faster by this table of scripts/gpu_times.py.",
    panel=RECIPE,
)
_KEEP = flag("Keep the quantized part of the model and quantize the rest.", "--keep-existing", panel=RECIPE)
_REQUANTIZE = flag("Remove the quantizers of a quantized model first.", "--requantize", panel=RECIPE)


@dataclass(frozen=True)
class RecipeChoice:
    """A recipe, and the options that override it."""

    recipe: RecipeOption = DEFAULT_RECIPE
    calibrator: CalibratorOption = None
    rounding: Annotated[str | None, _ROUNDING] = None
    equalize: Annotated[Equalize | None, _EQUALIZE] = None
    smooth: Annotated[str | None, _SMOOTH] = None
    rotate: Annotated[Rotate | None, _ROTATE] = None
    bias_correction: Annotated[BiasCorrectionChoice | None, _BIAS_CORRECTION] = None
    kv: Annotated[str | None, _KV] = None
    kv_granularity: Annotated[CacheGranularity | None, _KV_GRANULARITY] = None
    weight_form: Annotated[WeightForm | None, _WEIGHT_FORM] = None
    pays: Annotated[str | None, _PAYS] = None
    keep_existing: Annotated[bool, _KEEP] = False
    requantize: Annotated[bool, _REQUANTIZE] = False

    def load(self) -> Recipe:
        """Return the recipe with the overrides."""
        from onnxfq.targets.genai.weight_forms import with_weight_form
        from onnxfq.targets.recipes import load_recipe

        refuse(
            self.keep_existing and self.requantize,
            "--keep-existing and --requantize exclude each other; give one",
        )
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
        if self.rotate is not None:
            chosen = chosen.override(rotate=self.rotate)
        cache = {"qtype": self.kv} if self.kv is not None else {}
        if self.kv_granularity is not None:
            refuse(self.kv is None and chosen.cache is None, "--kv-granularity needs --kv; add it")
            cache["granularity"] = {"tensor": "per_tensor", "channel": "per_axis"}[self.kv_granularity]
        if cache:
            chosen = chosen.override(cache=cache)
        if self.weight_form is not None:
            chosen = with_weight_form(chosen, self.weight_form)
        bias_correction, pays = self.bias_correction or chosen.bias_correction, self.pays or chosen.pays
        return chosen.model_copy(update={"existing": asked, "bias_correction": bias_correction, "pays": pays})


PlannedRecipe = Annotated[
    RecipeChoice,
    OptionGroup(RecipeChoice, calibrator=None, rounding=None, smooth=None, rotate=None, bias_correction=None),
]
RoundedRecipe = Annotated[
    RecipeChoice,
    OptionGroup(
        RecipeChoice,
        **dict.fromkeys(("calibrator", "equalize", "smooth", "rotate", "bias_correction", "pays")),
    ),
]
RecipeChanges = Annotated[RecipeChoice, OptionGroup(RecipeChoice, recipe=DEFAULT_RECIPE)]
"""The options that override each of several recipes."""

_MIN_SQNR = option("DB", "Promise this SQNR of the outputs: the fewest layers stay in float.")
_MAX_DROP = option("X", "Promise at most this drop: in points of top-1 with --labels, or of --metric.")
_LABELS = option("FILE", "Class numbers of --data, one per row: .npy, .npz or text.")
MetricOption = Annotated[
    str | None,
    option(
        "NAME|MODULE:FUNCTION",
        "Measure this on the outputs of each sample, and labels or samples: {metrics}; or a function.",
        panel=ACCURACY,
    ),
]
_WEIGHT_BITS = option(
    "BITS",
    "Promise this average of bits: the layers that gain most get the format of --fallback.",
    panel=ACCURACY,
)
_MAX_BYTES = option(
    "BYTES",
    "Promise this size of the file: the layers that gain most get the formats of --fallback.",
    panel=ACCURACY,
)
_FALLBACK = option(
    "float|weights|QTYPE|RECIPE",
    "Give these layers no quantizers, quantized weights only, or wider formats or recipes.",
    panel=ACCURACY,
)


@dataclass(frozen=True)
class Accuracy:
    """A promised accuracy, and how the task is measured."""

    min_sqnr: Annotated[float | None, _MIN_SQNR] = None
    max_drop: Annotated[float | None, _MAX_DROP] = None
    labels: Annotated[Path | None, _LABELS] = None
    metric: MetricOption = None
    weight_bits: Annotated[float | None, _WEIGHT_BITS] = None
    max_bytes: Annotated[int | None, _MAX_BYTES] = None
    fallback: Annotated[str, _FALLBACK] = FLOAT

    @property
    def is_promised(self) -> bool:
        """Whether any option of a promise is given."""
        options = (self.min_sqnr, self.max_drop, self.labels, self.metric, self.weight_bits, self.max_bytes)
        return any(one is not None for one in options)

    def to_target(self, repair: float | RepairWord | None = REPAIR_AUTO) -> AccuracyTarget:
        """Return the same for the library. Raises DataError for options that do not go together."""
        from onnxfq.judging.accuracy_target import AccuracyTarget

        refuse(
            self.fallback == WEIGHTS and not self.is_promised,
            "--fallback has no effect without a promise; give --min-sqnr, --max-drop, --weight-bits or "
            "--max-bytes too",
        )
        try:
            return AccuracyTarget(**vars(self), repair=repair)
        except DataError as fault:  # its words are the parameters of Python
            names = "|".join(one.name for one in fields(self) if "_" in one.name)
            asked = r"(?<=give )(?:labels|fallback)|(?<=with )labels"
            words = re.sub(
                rf"\b(?:{names})\b|{asked}", lambda name: f"--{name[0].replace('_', '-')}", str(fault)
            )
            raise DataError(words) from None


PromiseOptions = Annotated[Accuracy, OptionGroup(Accuracy)]
AccuracyOptions = Annotated[Accuracy, OptionGroup(Accuracy, weight_bits=None, max_bytes=None)]


def use_libraries(libraries: list[Path] | None) -> list[Path] | None:
    """Register the libraries of --custom-ops."""
    if libraries:
        from onnxfq.runtime.custom_ops import use_custom_ops

        for library in libraries:
            use_custom_ops(library)
    return libraries
