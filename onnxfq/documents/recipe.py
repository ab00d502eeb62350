"""`Recipe`: target, schemes of activations and weights, and overrides."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from itertools import accumulate
from typing import Annotated, Any, Literal, NamedTuple

import pydantic

from onnxfq.choices import BiasCorrectionChoice, Rotate
from onnxfq.documents.override import Override, apply_changes, match_name
from onnxfq.documents.rounding import Simulation
from onnxfq.documents.schemes import ActivationScheme, CacheScheme, WeightScheme
from onnxfq.errors import RecipeError, nearest
from onnxfq.graph.model import Existing
from onnxfq.support.reasons import Reason
from onnxfq.support.records import Record, parse

SmallShapes = Literal["quantize", "bytes", "convolutions", "float"]
SMALL_RULES = frozenset({"small-shape", "bytes", "kernels", "times"})
"""Codes of the reasons that nothing pays for; `small_shapes: quantize` disables all but the last."""

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


class Recipe(Record):
    """Target, schemes and overrides. Later overrides win over earlier ones.

    Attributes:
        target: name of a registered target, looked up by planning; simulation accepts everything, but
            supports only fake-quant models.
        activations: None for weight-only; an override may still give some activations a scheme.
        cache: keys and values that a decoder hands on from token to token; None leaves them in float.
        small_shapes: whether nodes too small to gain from low precision are still quantized. If not, what
            saves fewer bytes than its kernels cost stays in float too, and what gives an engine over 1.05
            times the kernels of half, but for bytes; bytes and convolutions leave small convolutions in
            float, float also small products.
        pays: a table of measured times, its `.json` file or the name of a shipped one: products that few bits
            do not make faster there stay in float; empty for none.
        entry_bytes: bytes that each kernel counts as that quantized nodes add.
        depthwise: whether depthwise convolutions are quantized.
        embeddings: whether tables of words are stored in the format of weights, in blocks along their rows;
            GenAI's decoders can.
        log_spectra: whether products of a spectrum whose logarithm is taken are quantized to integers of 8
            bits or less; for QNN, whether all its operators are quantized.
        conv_transpose: whether ConvTranspose is quantized for a target that may run it in float nevertheless,
            as TensorRT for RTX does; pairs then only add noise.
        unfused_attention: whether an attention is quantized that the target fuses in a half type only.
        smooth: whether differences between channels of activations move into the weights that read them, as
            SmoothQuant does: a share of 0 to 1, or auto for the share of the least expected error, if that
            raises the SQNR of the outputs on some samples.
        rotate: whether orthogonal matrices turn channels where the float model stays the same, as in QuaRot;
            auto if that raises the SQNR of the outputs on some samples.
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
    cache: CacheScheme | None = None
    small_shapes: SmallShapes = "quantize"
    pays: str = ""
    entry_bytes: Annotated[int, pydantic.Field(ge=0)] = 1 << 20
    depthwise: Choice = "quantize"
    embeddings: Choice = "float"
    log_spectra: Choice = "float"
    conv_transpose: Choice = "float"
    unfused_attention: Choice = "float"
    smooth: Smooth = "none"
    rotate: Rotate = "none"
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
            scheme = apply_changes(scheme, override.activations)
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

        def name_nodes(one: Override) -> Override:
            if not one.modules:
                return one
            return one.model_copy(update={"nodes": (*one.nodes, *self._nodes_of(one, paths)), "modules": ()})

        return self.model_copy(update={"overrides": tuple(map(name_nodes, self.overrides))})

    def _nodes_of(self, override: Override, paths: Mapping[str, str]) -> Iterator[str]:
        """Yield the nodes in the modules of `override`."""
        # Each node with the paths of all modules around it, such as stem and stem.0.
        around = {
            node: [*accumulate(path.split("."), "{}.{}".format)] for node, path in paths.items() if path
        }
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

    def with_overrides(self, more: Iterable[Override]) -> Recipe:
        """Return this recipe with `more` overrides behind its own."""
        return self.model_copy(update={"overrides": (*self.overrides, *more)})

    def override(self, **fields: Any) -> Recipe:
        """Return this recipe with other `fields`, spelled as in a recipe file.

        Args:
            fields: `activations` and `weights` have only the fields that change. A rounding of weights also
                replaces that of the overrides, unless these are given too.

        Raises RecipeError for a wrong field, and for a change that has no effect.
        """
        self._check_effect(fields.get("activations") or {})
        content = merge_fields(self, fields)
        if "rounding" in fields.get("weights", ()) and "overrides" not in fields:
            content["overrides"] = tuple(override.without_rounding() for override in self.overrides)
        return parse(content, Recipe, RecipeError, self.name)

    def _check_effect(self, changes: Mapping[str, Any]) -> None:
        """Raise RecipeError for a calibrator or an equalization that no activation can have."""
        scheme = self.activations
        if changes.keys() == {"calibrator"} and (scheme is None or scheme.dynamic):
            what = "is weight-only: no activation"
            if scheme is not None:
                what = "has dynamic scales for activations: none"
            raise RecipeError(f"recipe {self.name} {what} needs calibrator {str(changes['calibrator'])!r}")
        plain = scheme is not None and not scheme.dynamic and scheme.granularity == "per_tensor"
        if changes.keys() == {"equalize"} and not plain:
            raise RecipeError(
                f"recipe {self.name} has no activations with one constant scale, and only these can be "
                "equalized; omit --equalize"
            )

    def _match_overrides(self, node: str, op_type: str, tensor: str) -> Iterator[Override]:
        return (override for override in self.overrides if override.matches(node, op_type, tensor))


def merge_fields(base: Recipe, changes: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of `base` with `changes`, in which a scheme has only the fields that change."""
    content: dict[str, Any] = {**dict(base), **changes}
    for name in ("activations", "weights", "cache"):
        scheme, change = getattr(base, name), changes.get(name, {})
        if isinstance(change, dict):
            content[name] = apply_changes(scheme and scheme.model_dump(), change)
    return content
