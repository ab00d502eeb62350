"""Number formats of an external file as recipe overrides, and the tensors that inherit its numbers."""

from __future__ import annotations

import glob
from collections.abc import Sequence
from typing import Any

from onnxfq.documents.override import Override
from onnxfq.documents.recipe import Recipe
from onnxfq.documents.schemes import ActivationScheme, Scheme
from onnxfq.errors import RecipeError
from onnxfq.graph.model import Model, list_graphs
from onnxfq.graph.ops import DATA_MOVEMENT, STANDARD_DOMAINS
from onnxfq.interchange.external import ExternalEncodings, ExternalTensor
from onnxfq.numerics.qtypes import QTYPES, QType


def recipe_with(given: ExternalEncodings, recipe: Recipe, model: Model) -> Recipe:
    """Return `recipe` with the formats of `given` where its own formats differ.

    Tensors in float in the file stay in float. No input is equalized, because the file gives one scale per
    tensor. Raises RecipeError for a recipe with dynamic scales.
    """
    activations = recipe.activations
    if activations is not None and activations.dynamic:
        raise RecipeError(
            f"recipe {recipe.name} makes the scales of activations at run time, and {given.source} "
            "has constant ones; use another recipe"
        )
    if activations is not None:
        activations = activations.model_copy(update={"equalize": "none"})
    shapes = {name: tuple(tensor.dims) for name, tensor in model.index.constants.items()}
    known = tensor_names(model)
    grouped: dict[tuple[str, str], tuple[dict[str, Any], list[str]]] = {}
    turned = {node.input[1] for node in model.index.nodes if node.op_type == "ConvTranspose"}
    moves = find_inherited_tensors(given, model)
    named = given.tensors | {name: given.tensors[s] for name, s in moves.items() if s in given.tensors}
    for name, tensor in named.items():
        role = "weights" if name in shapes else "activations"
        scheme = recipe.weights if name in shapes else activations
        if name not in known or scheme is None:
            continue
        changes = _changes(tensor, scheme, shapes.get(name, ()), 0 if name in turned else 1)
        if changes:
            grouped.setdefault((role, repr(sorted(changes.items()))), (changes, []))[1].append(name)
    overrides = [
        Override.model_validate({"tensors": _exactly(names), role: changes})
        for (role, _), (changes, names) in grouped.items()
    ]
    in_float = set(given.in_float)
    kept = [*in_float & known, *(name for name, source in moves.items() if source in in_float)]
    if kept:
        overrides.append(Override(tensors=_exactly(sorted(kept)), keep_float=True))
    return recipe.model_copy(
        update={"activations": activations, "overrides": (*recipe.overrides, *overrides)}
    )


def tensor_names(model: Model) -> set[str]:
    """Return the names of all tensors of `model`, in bodies too."""
    inputs = {value.name for graph in list_graphs(model.proto.graph) for value in graph.input}
    return {*model.index.makers, *model.constants, *inputs}


def _exactly(names: Sequence[str]) -> tuple[str, ...]:
    """Return patterns that match only these names, which may contain glob characters."""
    return tuple(name if glob.escape(name) == name else glob.escape(name) for name in names)


def _changes(tensor: ExternalTensor, scheme: Scheme, shape: tuple[int, ...], inputs: int) -> dict[str, Any]:
    """Return the fields of `scheme` that must change to express `tensor`; none if it already can.

    Args:
        tensor: the entry of the file.
        scheme: of the recipe.
        shape: of a constant, [] of an activation.
        inputs: the axis of the input channels of a kernel.
    """
    wanted = _numbers(tensor, scheme)
    if tensor.has_values or tensor.axis is not None:
        wanted |= _granularity(tensor, scheme, shape, inputs)
    as_it_is = {name: getattr(scheme, name) for name in wanted} | {"qtype": scheme.qtype.name}
    return {name: value for name, value in wanted.items() if as_it_is[name] != value}


def _numbers(tensor: ExternalTensor, scheme: Scheme) -> dict[str, Any]:
    """Return the fields of the number format: the scheme's own if it has the same grid."""
    if tensor.qtype is None:
        return {} if tensor.scale is None else {"power_of_two": False}
    fields: dict[str, Any] = {
        "power_of_two": False,
        "scale_type": "float32" if tensor.global_scale is None else "e4m3",
        "zero_point": "fractional" if tensor.fractional else "integer",
    }
    if tensor.scale is None:
        said = scheme.symmetric if tensor.symmetric is None else tensor.symmetric
        return fields | {"qtype": tensor.qtype.name, "symmetric": said}
    zero = tensor.zero_point_as(scheme.qtype)
    if zero is not None and not (scheme.symmetric and zero.any()):
        return fields
    own, symmetric = own_format(tensor)
    return fields | {"qtype": own.name, "symmetric": symmetric}


def own_format(tensor: ExternalTensor) -> tuple[QType, bool]:
    """Return the number format of the scale and zero point of `tensor`, and whether it is symmetric.

    Unsigned integers with their zero point in the middle are the symmetric grid of the signed ones.
    """
    qtype = tensor.qtype
    assert qtype is not None and tensor.zero_point is not None
    if qtype.name == f"uint{qtype.bits}":
        signed = QTYPES[f"int{qtype.bits}"]
        middle = tensor.zero_point_as(signed)
        return (qtype, False) if middle is None or middle.any() else (signed, True)
    return qtype, qtype.qmin < 0 and not tensor.zero_point.any()


def _granularity(
    tensor: ExternalTensor, scheme: Scheme, shape: tuple[int, ...], inputs: int
) -> dict[str, Any]:
    """Return the fields that set the number of scales."""
    if tensor.per_tensor:
        return {"granularity": "per_tensor", "block_size": None, "block_shape": None}
    if tensor.block_size is None or isinstance(scheme, ActivationScheme):
        return {"granularity": "per_axis", "block_size": None, "block_shape": None}
    if len(shape) == 2:
        return {"granularity": "blocked", "block_size": tensor.block_size, "block_shape": None}
    block = _block_shape(tensor, shape, inputs)
    return {"granularity": "block_shape", "block_size": None, "block_shape": block}


def _block_shape(tensor: ExternalTensor, shape: tuple[int, ...], inputs: int) -> tuple[int, ...]:
    """Return the block of a kernel: along the input channels, and the whole window if it has one scale."""
    size = tensor.block_size or 1
    assert tensor.scale is not None
    counts: Sequence[int] = tensor.scale.shape
    axis = inputs if tensor.axis is None else tensor.axis % len(shape)
    if len(counts) != len(shape):
        counts = tuple(1 if d > 1 else n for d, n in enumerate(shape))
    axes = enumerate(zip(counts, shape, strict=True))
    return tuple(size if d == axis else 1 if count == n else -1 for d, (count, n) in axes)


def find_inherited_tensors(given: ExternalEncodings, model: Model) -> dict[str, str]:
    """Return tensor -> the tensor named in the file whose numbers it holds.

    AIMET writes no entry for the output of a Reshape. The source has one scale, because data movement moves
    channels too, or stays in float.
    """
    named = {name for name, tensor in given.tensors.items() if tensor.per_tensor} | set(given.in_float)
    passed_over = set(given.tensors) | set(given.unusable)
    moved: dict[str, str] = {}
    for graph in list_graphs(model.proto.graph):
        for node in graph.node:  # in the order of computation, so that chains are followed
            if node.op_type not in DATA_MOVEMENT or node.domain not in STANDARD_DOMAINS or not node.input:
                continue
            source = moved.get(node.input[0], node.input[0])
            if source in named:
                new = (name for name in node.output if name and name not in named | passed_over)
                moved |= dict.fromkeys(new, source)
    return moved
