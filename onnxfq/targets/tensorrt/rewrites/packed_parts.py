"""Parts of a packed projection: [.., 3 * heads * size] reshaped to [.., 3, heads, size] and taken apart.

Vision transformers have it: Reshape, Transpose, then Gather of one index for each part, or Slice or Split
with a Squeeze. Only the outermost of the new axes makes parts of consecutive channels.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

import onnx_graphsurgeon as gs

from onnxfq.graph.constant_integers import evaluate_integers, read_slice


@dataclass(frozen=True, eq=False)
class Packed:
    """A projection that is taken apart along an axis that a Reshape makes.

    Attributes:
        reshape: the node that makes the axis.
        transpose: the node behind it, if there is one.
        axis: the axis behind `reshape`.
        count: its size, the number of parts.
        makers: the node that makes each part, by its number.
    """

    reshape: gs.Node
    transpose: gs.Node | None
    axis: int
    count: int
    makers: dict[int, gs.Node]


def match_packed(whole: gs.Tensor, channels: int, outputs: set[int]) -> Packed | None:
    """Return how `whole`, whose last axis has `channels`, is taken apart; None if in another way.

    Args:
        whole: the projection.
        channels: size of its last axis.
        outputs: ids of the tensors that the graph gives; none of them may lie on the way.
    """
    reshape = _only_reader(whole, outputs)
    if reshape is None or reshape.op != "Reshape" or reshape.inputs[0] is not whole:
        return None
    sizes = evaluate_integers(reshape.inputs[1]) or []
    inner = next((n for n in range(len(sizes) + 1) if _ends_in(sizes, n, channels)), None)
    if inner is None or inner < 2:
        return None
    rank, axis = len(sizes), len(sizes) - inner
    tensor, place = reshape.outputs[0], axis
    transpose = _only_reader(tensor, outputs)
    if transpose is not None and transpose.op == "Transpose":
        order = transpose.attrs.get("perm", [*range(rank)][::-1])
        tensor, place = transpose.outputs[0], list(order).index(axis)
    else:
        transpose = None
    if id(tensor) in outputs:
        return None
    found: list[tuple[int, gs.Node]] = []
    for reader in tensor.outputs:
        taken = _take(reader, tensor, place, rank, outputs)
        if not taken:
            return None
        found += taken
    makers = dict(found)
    count = sizes[axis] or 0
    if not 2 <= len(makers) == len(found) or not all(0 <= number < count for number in makers):
        return None
    return Packed(reshape, transpose, axis, count, makers)


def _ends_in(sizes: list[int | None], number: int, channels: int) -> bool:
    """Tell whether the last `number` sizes are known and hold `channels`."""
    last = [size or 0 for size in sizes[len(sizes) - number :]]
    return number > 0 and all(size > 0 for size in last) and prod(last) == channels and last[0] > 1


def _only_reader(tensor: gs.Tensor, outputs: set[int]) -> gs.Node | None:
    return tensor.outputs[0] if len(tensor.outputs) == 1 and id(tensor) not in outputs else None


def _take(
    node: gs.Node, tensor: gs.Tensor, axis: int, rank: int, outputs: set[int]
) -> list[tuple[int, gs.Node]]:
    """Return the parts that `node` takes from `tensor`: number, and the node that makes it; [] if none."""
    if node.inputs[0] is not tensor:
        return []
    if node.op == "Gather" and node.attrs.get("axis", 0) % rank == axis:
        number = evaluate_integers(node.inputs[1])
        scalar = node.inputs[1].shape is not None and len(node.inputs[1].shape) == 0
        return [(number[0], node)] if scalar and number and number[0] is not None else []
    if node.op == "Slice":
        start, end, place = read_slice(node) or (0, 0, 0)
        if end != start + 1 or place % rank != axis:
            return []
        squeeze = _squeezed(node.outputs[0], axis, rank, outputs)
        return [] if squeeze is None else [(start, squeeze)]
    if node.op == "Split" and node.attrs.get("axis", 0) % rank == axis:
        pieces = enumerate(_squeezed(one, axis, rank, outputs) for one in node.outputs)
        found = [(number, piece) for number, piece in pieces if piece is not None]
        return found if len(found) == len(node.outputs) else []
    return []


def _squeezed(tensor: gs.Tensor, axis: int, rank: int, outputs: set[int]) -> gs.Node | None:
    """Return the Squeeze of `axis` alone that alone reads `tensor`."""
    node = _only_reader(tensor, outputs)
    if node is None or node.op != "Squeeze":
        return None
    axes = evaluate_integers(node.inputs[1]) if len(node.inputs) > 1 else node.attrs.get("axes")
    only = axes is not None and len(axes) == 1 and axes[0] is not None and axes[0] % rank == axis
    return node if only else None
