"""`Recipe`: target, activation and weight schemes, overrides."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

import pydantic

from onnxfq.calibration.calibrators import DEFAULT_CALIBRATOR, MINMAX, MSE, Calibrator
from onnxfq.calibration.calibrators.fixed import KNOWN_RANGES
from onnxfq.choices import DEFAULT_RECIPE as DEFAULT_RECIPE
from onnxfq.choices import BiasCorrectionChoice, Equalize
from onnxfq.documents.override import Override as Override
from onnxfq.documents.override import match_name
from onnxfq.documents.rounding import AUTO, RecipeRounding, Simulation
from onnxfq.errors import RecipeError, SpecError, nearest
from onnxfq.graph.model import Existing
from onnxfq.numerics.granularity import Granularity
from onnxfq.numerics.qtypes import BIAS_QTYPE
from onnxfq.numerics.spec import NumberFormat, check_dynamic, refuse_as_value_error
from onnxfq.support.reasons import Reason
from onnxfq.support.records import Record, parse, read_document

ActivationGranularity = Literal["per_tensor", "per_axis", "per_row", "blocked", "block_shape"]
WeightGranularity = Literal["per_tensor", "per_axis", "blocked", "block_shape"]
SmallShapes = Literal["quantize", "convolutions", "float"]
Choice = Literal["quantize", "float"]
Smooth = Literal["none", "auto"] | Annotated[float, pydantic.Field(ge=0.0, le=1.0)]


class ChannelMethods(NamedTuple):
    """Which channels may get factors before a model is quantized.

    Attributes:
        cross_layer: channels that weights make.
        smooth: channels that a normalization or a product makes, or a new Mul scales.
        alpha: share of the difference between channels that weights take over in smoothing; None for the
            share of the least expected error.
        confirmed: those of these methods that have to raise the SQNR of the outputs.
    """

    cross_layer: bool = False
    smooth: bool = False
    alpha: float | None = None
    confirmed: frozenset[str] = frozenset()

    def only(self, names: Collection[str]) -> ChannelMethods:
        """Return the same with only these methods."""
        return self._replace(
            cross_layer=self.cross_layer and "cross_layer" in names, smooth=self.smooth and "smooth" in names
        )


def _parse_calibrator(value: Any) -> Calibrator:
    try:
        return Calibrator.parse(value)
    except SpecError as error:
        raise ValueError(str(error)) from None


RegisteredCalibrator = Annotated[Calibrator, pydantic.PlainValidator(_parse_calibrator)]


def _check_operators(op_types: tuple[str, ...]) -> tuple[str, ...]:
    for op_type in op_types:
        if op_type not in KNOWN_RANGES:
            raise ValueError(f"no range is known for outputs of {op_type!r}{nearest(op_type, KNOWN_RANGES)}")
    return op_types


class Scheme(NumberFormat):
    """Common fields of activations and weights: number format and default block sizes.

    Attributes:
        block_shape: one size for each axis as the operator reads it, -1 for the whole axis.
    """

    fault = RecipeError

    granularity: str
    block_size: int | None = pydantic.Field(default=None, ge=1)
    block_shape: tuple[int, ...] | None = None
    calibrator: RegisteredCalibrator = MINMAX

    @pydantic.model_validator(mode="before")
    @classmethod
    def _usual_block_size(cls, fields: Any) -> Any:
        if isinstance(fields, dict) and fields.get("granularity") == "blocked":
            usual = _USUAL_BLOCKS.get(fields.get("scale_type", ""))
            if usual is not None and fields.get("block_size") is None:
                return fields | {"block_size": usual}
        return fields

    @pydantic.model_validator(mode="after")
    def _no_bias(self) -> Scheme:
        if self.qtype == BIAS_QTYPE:
            raise ValueError(f"qtype {self.qtype} is for biases, which targets decide on; use int8")
        if not self.qtype.has_kernel:
            raise ValueError(
                f"qtype {self.qtype} is for torch modules only; use limits that hold 0, of up to 16 bits"
            )
        return self

    @pydantic.model_validator(mode="after")
    def _blocks_have_a_size(self) -> Scheme:
        if (self.granularity == "blocked") != (self.block_size is not None):
            raise ValueError("granularity blocked and block_size go together; give both or neither")
        if (self.granularity == "block_shape") != (self.block_shape is not None):
            raise ValueError("granularity block_shape and block_shape go together; give both or neither")
        with refuse_as_value_error():
            Granularity(block_shape=self.block_shape)
        return self


# Block sizes of OCP MX and NVFP4.
_USUAL_BLOCKS = {"e8m0": 32, "e4m3": 16}


class ActivationScheme(Scheme):
    """Scheme for activations.

    Attributes:
        dynamic: the running model computes the scales from its own values; the calibrator has no effect.
        granularity: per_tensor; per_axis, a scale for each index of the axis that an output element sums
            over, for a convolution its input channels; blocked along that axis; block_shape; for dynamic
            scales also per_row, one scale for all elements that an output element sums over. Groups of static
            ones are pooled over all other axes, including samples.
        known_ranges: op types whose outputs get their mathematical range, whatever the calibrator.
        equalize: depthwise gives inputs of depthwise convolutions a scale per channel instead of one scale,
            whatever the calibrator. The scales differ by powers of two; a Mul before the pair and the weight
            scales compensate, so that each channel uses the whole grid. It has no effect on inputs with
            several scales or dynamic ones. cross_layer first equalizes channels between operators with
            weights, in the weights themselves, in the whole model; auto does so if it raises the SQNR of the
            outputs on some samples.
    """

    granularity: ActivationGranularity = "per_tensor"
    calibrator: RegisteredCalibrator = Calibrator(name=DEFAULT_CALIBRATOR)
    dynamic: bool = False
    known_ranges: tuple[str, ...] = ()
    equalize: Equalize = "none"

    _known_ranges = pydantic.field_validator("known_ranges")(_check_operators)

    @pydantic.model_validator(mode="after")
    def _consistent(self) -> ActivationScheme:
        check_dynamic(self, self.dynamic)
        if self.dynamic and self.granularity in ("per_axis", "block_shape"):
            raise ValueError(
                f"granularity {self.granularity} of activations needs dynamic: false; dynamic scales are "
                "per_tensor, per_row or blocked"
            )
        if self.dynamic:
            return self
        if self.granularity == "per_row":
            raise ValueError(
                "granularity per_row of activations needs dynamic: true, because every sample has other "
                "rows; or use per_axis or per_tensor"
            )
        if self.scale_type != "float32":
            raise ValueError(
                f"scale_type {self.scale_type} of activations needs dynamic: true; or use float32, with "
                "power_of_two for powers of two"
            )
        return self


class WeightScheme(Scheme):
    """Scheme for weights.

    Attributes:
        granularity: per_axis: a scale per output channel; blocked: along the summed axis.
        rounding: nearest; gptq, by second moments of the layers' inputs; qronos, by those of the float and of
            the quantized model, one layer after the other; auto: nearest, or gptq if `quantize` measures that
            weights make half of the noise of an output, and gptq reduces it. Without data all weights are
            rounded to nearest.
        other_block_sizes: tried in order if block_size does not cut the summed axis into two or more equal
            blocks.
    """

    granularity: WeightGranularity = "per_axis"
    other_block_sizes: tuple[Annotated[int, pydantic.Field(ge=1)], ...] = ()
    rounding: RecipeRounding = AUTO

    @pydantic.model_validator(mode="after")
    def _consistent(self) -> WeightScheme:
        if self.scale_type != "float32" and self.calibrator not in (MINMAX, MSE):
            raise ValueError(
                f"scale_type {self.scale_type} takes scales by the largest magnitude or the least error; use "
                "calibrator minmax or mse"
            )
        return self


class Recipe(Record):
    """Target, schemes and overrides. Later overrides win over earlier ones.

    Attributes:
        target: name of a registered target, looked up by planning; simulation accepts everything, but
            supports only fake-quant models.
        activations: None for weight-only; an override may still give some activations a scheme.
        small_shapes: whether nodes too small to gain from low precision are still quantized; convolutions
            leaves only convolutions in float.
        depthwise: whether depthwise convolutions are quantized.
        log_spectra: whether products of a spectrum whose logarithm is taken are quantized to integers of 8
            bits or less.
        conv_transpose: whether ConvTranspose is quantized for a target that may run it in float nevertheless,
            as TensorRT for RTX does; pairs then only add noise.
        smooth: whether differences between channels of activations move into the weights that read them, as
            SmoothQuant does: a share of 0 to 1, or auto for the share of the least expected error, if that
            raises the SQNR of the outputs on some samples.
        bias_correction: whether biases make up for the mean error of rounded weights (Nagel et al., 2019);
            auto if that raises the SQNR of the outputs on some samples.
        simulation: rounding mode and arithmetic of fake-quant models and torch modules; a recipe that changes
            them writes no Q/DQ model.
        existing: for a partly quantized model, keep its quantizers and quantize the rest, or remove them
            first (requantize).
    """

    fault = RecipeError

    name: str
    target: str
    activations: ActivationScheme | None
    weights: WeightScheme
    small_shapes: SmallShapes = "quantize"
    depthwise: Choice = "quantize"
    log_spectra: Choice = "float"
    conv_transpose: Choice = "float"
    smooth: Smooth = "none"
    bias_correction: BiasCorrectionChoice = "none"
    simulation: Simulation = Simulation()
    overrides: tuple[Override, ...] = ()
    existing: Existing = "refuse"

    @property
    def channel_methods(self) -> ChannelMethods:
        """Which channels get factors before the model is quantized."""
        equalize = "none" if self.activations is None else self.activations.equalize
        asked = {"cross_layer": equalize, "smooth": self.smooth}
        return ChannelMethods(
            equalize in ("cross_layer", "auto"),
            self.smooth != "none",
            self.smooth if isinstance(self.smooth, float) else None,
            frozenset(name for name, value in asked.items() if value == "auto"),
        )

    def activation_for(self, node: str, op_type: str, tensor: str) -> ActivationScheme | None:
        """Return the activation scheme for input `tensor` of `node`, overrides applied; None: float."""
        overrides = list(self._match_overrides(node, op_type, tensor))
        if not overrides:
            return self.activations
        scheme = None if self.activations is None else self.activations.model_dump()
        for override in overrides:
            scheme = _apply_changes(scheme, override.activations)
        return None if scheme is None else parse(scheme, ActivationScheme, RecipeError, self.name)

    def weight_for(self, node: str, op_type: str, tensor: str) -> WeightScheme:
        """Return the weight scheme for constant input `tensor` of `node`, overrides applied."""
        overrides = list(self._match_overrides(node, op_type, tensor))
        if not overrides:
            return self.weights
        scheme = self.weights.model_dump()
        for override in overrides:
            scheme |= override.weights
        return parse(scheme, WeightScheme, RecipeError, self.name)

    def explain_float(self, node: str, op_type: str, tensor: str) -> Reason:
        """Return why an override leaves input `tensor` of `node` in float; empty if none does."""
        matching = self._match_overrides(node, op_type, tensor)
        first = next((override for override in matching if override.keep_float), None)
        usual = f"kept in float by an override of recipe {self.name}"
        return Reason("override", "" if first is None else first.why or usual)

    def check_names(self, nodes: dict[str, str], tensors: set[str]) -> None:
        """Raise RecipeError for the first override pattern that matches nothing, with nearest names.

        Args:
            nodes: op type by node name.
            tensors: all tensor names.
        """
        for override in self.overrides:
            for label, patterns, known, match in (
                ("tensor", override.tensors, tensors, match_name),
                ("node", override.nodes, set(nodes), match_name),
                ("op type", override.op_types, set(nodes.values()), str.__eq__),
            ):
                for pattern in patterns:
                    if pattern not in known and not any(match(pattern, name) for name in known):
                        raise RecipeError(
                            f"recipe {self.name}: override names {label} {pattern!r}, which the model lacks"
                            f"{nearest(pattern, known)}"
                        )

    def for_modules(self, paths: Mapping[str, str]) -> Recipe:
        """Return this recipe with the modules of overrides replaced by their nodes.

        Args:
            paths: path of the module by node name, for nodes that have one.

        Raises RecipeError for a module that no node comes from, with the nearest.
        """
        return self.model_copy(
            update={
                "overrides": tuple(
                    one.model_copy(update={"nodes": (*one.nodes, *self._nodes_of(one, paths)), "modules": ()})
                    if one.modules
                    else one
                    for one in self.overrides
                )
            }
        )

    def _nodes_of(self, override: Override, paths: Mapping[str, str]) -> Iterator[str]:
        """Yield the nodes in the modules of `override`."""
        around = {node: list(_with_outer(path)) for node, path in paths.items()}
        for pattern in override.modules:
            found = [node for node, outer in around.items() if any(match_name(pattern, one) for one in outer)]
            if not found:
                known = {one for outer in around.values() for one in outer}
                untold = "" if known else "; its nodes have no module paths, which torch's exporter notes"
                raise RecipeError(
                    f"recipe {self.name}: override names module {pattern!r}, which the model lacks"
                    f"{nearest(pattern, known)}{untold}"
                )
            yield from found

    def with_calibrator(self, name: str) -> Recipe:
        """Return this recipe with another calibrator for activations. Raises SpecError if unknown."""
        calibrator = Calibrator.parse(name)
        if self.activations is None:
            raise RecipeError(f"recipe {self.name} is weight-only: no activation needs calibrator {name!r}")
        if self.activations.dynamic:
            raise RecipeError(
                f"recipe {self.name} has dynamic scales for activations: none needs calibrator {name!r}"
            )
        return self.model_copy(
            update={"activations": self.activations.model_copy(update={"calibrator": calibrator})}
        )

    def with_equalize(self, which: Equalize) -> Recipe:
        """Return this recipe with other inputs equalized. Raises RecipeError if no input can be."""
        scheme = self.activations
        if scheme is None or scheme.dynamic or scheme.granularity != "per_tensor":
            raise RecipeError(
                f"recipe {self.name} has no activations with one constant scale, and only these can be "
                "equalized; omit --equalize"
            )
        return self.model_copy(update={"activations": scheme.model_copy(update={"equalize": which})})

    def with_rounding(self, name: str) -> Recipe:
        """Return this recipe with another rounding of all weights. Raises RecipeError if it is unknown."""
        fields = self.model_dump() | {"weights": self.weights.model_dump() | {"rounding": name}}
        made = parse(fields, Recipe, RecipeError, self.name)
        plain = tuple(
            one.model_copy(update={"weights": {k: v for k, v in one.weights.items() if k != "rounding"}})
            for one in self.overrides
        )
        return made.model_copy(update={"overrides": plain})

    def with_auto_rounding(self, name: str) -> Recipe:
        """Return this recipe with rounding `name` where it is auto."""

        def choose(fields: dict[str, Any]) -> dict[str, Any]:
            return fields | {"rounding": name} if fields.get("rounding") == AUTO else fields

        weights = choose({"rounding": self.weights.rounding})
        overrides = tuple(one.model_copy(update={"weights": choose(one.weights)}) for one in self.overrides)
        return self.model_copy(
            update={"weights": self.weights.model_copy(update=weights), "overrides": overrides}
        )

    def with_smooth(self, share: str) -> Recipe:
        """Return this recipe with another share for smoothing. Raises RecipeError for another word."""
        content = self.model_dump() | {"smooth": share if share in ("none", "auto") else _number(share)}
        return parse(content, Recipe, RecipeError, self.name)

    def _match_overrides(self, node: str, op_type: str, tensor: str) -> Iterator[Override]:
        return (override for override in self.overrides if override.matches(node, op_type, tensor))


def _with_outer(path: str) -> Iterator[str]:
    """Yield `path` and the paths of the modules around it."""
    while path:
        yield path
        path = path.rpartition(".")[0]


def _number(text: str) -> float | str:
    try:
        return float(text)
    except ValueError:
        return text


def _make_builtin(
    name: str,
    activations: dict[str, Any] | None,
    weights: dict[str, Any] | None = None,
    **choices: str,
) -> Recipe:
    return Recipe.model_validate(
        choices
        | {
            "name": name,
            "target": name.partition("-")[0] if "-" in name else "simulation",
            "activations": activations,
            "weights": weights or {"qtype": "int8"},
        }
    )


def _make_block_recipe(name: str, qtype: str, scale_type: str) -> Recipe:
    """Return a recipe of OCP MX or NVFP4: weights and activations in blocks, each with a small scale.

    Scales of MX are the formula's. NVFP4 weights take the scales of least squared error, and all weights of 4
    bits are rounded by moments, as in `tensorrt-int4`.
    """
    scheme = {"qtype": qtype, "scale_type": scale_type, "granularity": "blocked"}
    weights = {"calibrator": "mse"} if scale_type == "e4m3" else {}
    weights |= {"rounding": "gptq"} if qtype == "float4e2m1" else {}
    return _make_builtin(name, scheme | {"dynamic": True}, scheme | weights)


# TensorRT takes symmetric int8 only (zero points must be 0); ONNX Runtime's CPU kernels are fastest
# with uint8 activations and int8 weights, and take a zero point. The calibrators lost least accuracy on the
# real networks of docs/results.md: a symmetric grid is coarser and must not lose the many small values, which
# squared error weighs by size and `auto` by count.
RECIPES: dict[str, Recipe] = {
    recipe.name: recipe
    for recipe in (
        _make_builtin("tensorrt-int8", {"qtype": "int8", "equalize": "depthwise"}),
        _make_builtin(
            "onnxruntime-int8",
            {"qtype": "uint8", "symmetric": False, "calibrator": "mse", "equalize": "depthwise"},
        ),
        # SM89 and later. NVIDIA calibrates float8 by the maximum. TensorRT's float8 attention requires
        # scale 1/448 for the Softmax, which its mathematical range gives. A float8 has four digits: the
        # layers that gain nothing stay in float.
        _make_builtin(
            "tensorrt-fp8",
            {"qtype": "float8e4m3fn", "calibrator": "minmax", "known_ranges": ("Softmax",)},
            {"qtype": "float8e4m3fn"},
            small_shapes="convolutions",
            depthwise="float",
        ),
        # Weights only, SM80 and later: 64 and 128 are the block sizes that TensorRT documents.
        # Calibrator and rounding lost least on the language models and encoders of docs/llm.md.
        _make_builtin(
            "tensorrt-int4",
            None,
            {
                "qtype": "int4",
                "granularity": "blocked",
                "block_size": 128,
                "other_block_sizes": (64, 32),
                "calibrator": "mse",
                "rounding": "gptq",
            },
        ),
        # Weights only, in the one form that TensorRT keeps in int8: a constant, DequantizeLinear, MatMul.
        _make_builtin("tensorrt-int8-weights", None, {"qtype": "int8"}),
        _make_block_recipe("tensorrt-mxfp8", "float8e4m3fn", "e8m0"),
        _make_block_recipe("tensorrt-nvfp4", "float4e2m1", "e4m3"),
        _make_builtin("onnxruntime-uint8-dynamic", {"qtype": "uint8", "symmetric": False, "dynamic": True}),
        _make_block_recipe("mxfp8", "float8e4m3fn", "e8m0"),
        # OCP MX also defines float6e3m2; e2m3 has finer steps, and a block needs no wide range.
        _make_block_recipe("mxfp6", "float6e2m3", "e8m0"),
        _make_block_recipe("mxfp4", "float4e2m1", "e8m0"),
        _make_block_recipe("mxint8", "int8", "e8m0"),
        _make_block_recipe("nvfp4", "float4e2m1", "e4m3"),
    )
}


def load_recipe(recipe: str | Path | Recipe) -> Recipe:
    """Return a recipe by name, from a YAML or JSON file, or as given.

    A name without a target, such as `int8`, means `tensorrt-int8` unless a recipe has that name.
    A file has the fields of `Recipe`; with `base: NAME` it starts from that recipe and lists only the
    differences. Raises RecipeError in one line: unknown name (with the nearest), bad field, bad YAML.
    """
    if isinstance(recipe, Recipe):
        return recipe
    for name in (str(recipe), f"tensorrt-{recipe}"):
        if name in RECIPES:
            return RECIPES[name]
    path = Path(recipe)
    if path.suffix in (".yaml", ".yml", ".json"):
        return _from_file(path)
    hint = nearest(str(recipe), RECIPES) or f"; known: {', '.join(sorted(RECIPES))}"
    raise RecipeError(f"unknown recipe {str(recipe)!r}: give a built-in name or a .yaml file{hint}")


class _Document(Record):
    """A recipe file: like `Recipe` with optional fields and a base."""

    base: str = DEFAULT_RECIPE
    name: str | None = None
    target: str | None = None
    activations: dict[str, Any] | None = {}
    weights: dict[str, Any] = {}
    small_shapes: SmallShapes | None = None
    depthwise: Choice | None = None
    log_spectra: Choice | None = None
    conv_transpose: Choice | None = None
    smooth: Smooth | None = None
    bias_correction: BiasCorrectionChoice | None = None
    simulation: Simulation = Simulation()
    overrides: list[Override] = []
    existing: Existing = "refuse"


def _from_file(path: Path) -> Recipe:
    document = read_document(path, _Document, RecipeError)
    if document.base not in RECIPES:
        raise RecipeError(f"{path}: unknown base {document.base!r}{nearest(document.base, RECIPES)}")
    base = RECIPES[document.base].model_dump()
    given = {name: value for name, value in document if name != "base" and value not in (None, "")}
    content = base | {"name": path.stem} | given
    content["activations"] = _apply_changes(base["activations"], document.activations)
    content["weights"] = base["weights"] | document.weights
    recipe = parse(content, Recipe, RecipeError, str(path))
    for number, override in enumerate(recipe.overrides):
        source = f"{path}: overrides.{number}"
        activations = _apply_changes(content["activations"], override.activations)
        if activations:
            parse(activations, ActivationScheme, RecipeError, f"{source}.activations")
        parse(content["weights"] | override.weights, WeightScheme, RecipeError, f"{source}.weights")
    return recipe


def _apply_changes(base: dict[str, Any] | None, changes: dict[str, Any] | None) -> dict[str, Any] | None:
    """Return `base` with `changes`; None, weight-only, if `changes` is None or both are empty."""
    if changes is None or (base is None and not changes):
        return None
    return {**(base or {}), **changes}
