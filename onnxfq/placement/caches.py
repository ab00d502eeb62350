"""Placement on caches: keys and values that a decoder hands on from token to token.

A cache is a Concat of an input of the model with new numbers that is an output too, or the cache inside a
GroupQueryAttention, which quantizes the keys and values that it reads.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator

import onnx_graphsurgeon as gs

from onnxfq.documents.plan import Placement
from onnxfq.documents.recipe import Recipe
from onnxfq.errors import RecipeError
from onnxfq.graph.names import Use
from onnxfq.graph.patterns.fed_back import CACHES
from onnxfq.graph.queries import float_type
from onnxfq.numerics.granularity import PER_TENSOR, Granularity
from onnxfq.placement.operators import uses_of
from onnxfq.placement.weighted_ops import activation_placement

ATTENTION = "GroupQueryAttention"
PASTS, SCALES = CACHES[ATTENTION], {1: 12, 2: 13}
"""Inputs of GroupQueryAttention: the cache of new keys and values and its scale; outputs have their order."""


def place_caches(graph: gs.Graph, recipe: Recipe) -> Iterator[Placement]:
    """Yield the placements of all caches of `graph`, if the recipe quantizes caches.

    Raises RecipeError without a cache, and for an attention whose cache cannot be quantized: all caches of
    a model have one type in runtimes.
    """
    if recipe.cache is None:
        return
    outputs = {id(tensor) for tensor in graph.outputs}
    count = 0
    for node in graph.nodes:
        if node.op == ATTENTION:
            _check_attention(node, outputs)
            for slot in PASTS:
                yield _place(node.inputs[slot], recipe, 2, (Use(node.name, slot),), f"cache of {ATTENTION}")
                count += 1
        elif _is_grown(node, outputs):
            cache = node.outputs[0]
            yield _place(cache, recipe, -1, tuple(uses_of(cache, graph.outputs)), "cache of a Concat")
            count += 1
    if not count:
        for node in graph.nodes:
            if node.op == "MultiHeadAttention" and any(id(output) in outputs for output in node.outputs[1:]):
                raise RecipeError(
                    f"node {node.name!r}: MultiHeadAttention has a cache of floats; leave out --kv"
                )
        raise RecipeError(
            f"recipe {recipe.name} quantizes caches, and the model has none: no output joins an "
            "input with new numbers; export the decoder with its cache, or leave out --kv"
        )


def _is_grown(node: gs.Node, outputs: Collection[int]) -> bool:
    """Tell whether `node` appends to an input of the model and returns an output of it."""
    if node.op != "Concat" or id(node.outputs[0]) not in outputs:
        return False
    past = node.inputs[0]
    return isinstance(past, gs.Variable) and not past.inputs and float_type(past) is not None


def _check_attention(node: gs.Node, outputs: Collection[int]) -> None:
    why = ""
    if node.inputs[1].is_empty() or node.attrs.get("do_rotary", 0):
        why = "only recipes of GenAI observe its keys, and not if it normalizes them or has an open width"
    for slot, past in PASTS.items():
        if node.inputs[past].is_empty() or node.inputs[past].inputs or id(node.outputs[slot]) not in outputs:
            why = "its cache is not an input and an output of the model"
        elif float_type(node.inputs[past]) != "float32":
            why = "its keys and values are not float32, which ONNX Runtime needs for a quantized cache"
    if why:
        raise RecipeError(f"node {node.name!r}: {why}; leave out --kv, or export the decoder again")


def _place(tensor: gs.Tensor, recipe: Recipe, axis: int, uses: tuple[Use, ...], why: str) -> Placement:
    scheme = recipe.cache
    assert scheme is not None
    rank = len(tensor.shape or ())
    if scheme.granularity == "per_tensor":
        granularity = PER_TENSOR
    elif rank and isinstance(tensor.shape[axis], int):
        granularity = Granularity(axis % rank)
    else:
        raise RecipeError(
            f"cache {tensor.name!r}: the number of its channels is unknown; use --kv-granularity tensor"
        )
    placed = activation_placement(tensor, scheme, granularity, uses, why)
    return placed.model_copy(update={"stored": True})
