"""Prices in bytes: the gain of few bits and the cost of kernels on a GPU, for convolutions and products.

A GPU does about 100 multiply-adds in half while it reads a byte: 82 to 202 by the data sheets of RTX 4090,
RTX 4060, H100 and L4. Half as many bits take half of it. A launch takes 2.5 us, in which a GPU of 400 GB/s
reads 1 MB: `Recipe.entry_bytes`.

Engines of TensorRT for RTX 1.7.1 join a product in half with the pointwise operators behind it, pairs too. A
product in float8 or NVFP4 writes its sums, and these operators are another kernel: one more, unless they
have one in any case with what follows, as a LayerNormalization or a Transpose. A convolution in 8 bits
writes its sums in float32, for a kernel more in nearly all engines. Formats with dynamic scales give each
input of a product two kernels, which read it in float32, compute its scales and order them: engines of 20
networks in NVFP4 have 2,131 layers, and 1,158 in half. A static pair is part of the kernel in front.
Behind a convolution or a pooling in half it is a kernel alone. An attention over other tokens quantizes its
keys and values in one. No time was measured.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from math import prod

import onnx_graphsurgeon as gs

from onnxfq.graph.follow import follow, readers_of
from onnxfq.graph.ops import CONVOLUTIONS, MOVES, RESHAPES, TRANSPOSES, find_summed_axis, is_weighted
from onnxfq.graph.queries import weight_source

OPEN_SIZE = 64
"""Size that an open axis counts as; an open first axis, of samples, counts as one."""

MULTIPLIES = 100
"""Multiply-adds in half in the time of a byte."""

ENTRY = 2
"""Bytes of the kernel of a pair for each number: two are read and one is written, and read instead of two."""

SUMS = 4
"""Bytes that the sum of a number takes to be written and read, as two halves; of a Conv as two float32."""

POOLINGS = frozenset({"AveragePool", "LRN", "MaxPool"})
"""Operators that have a kernel alone."""

POINTWISE = RESHAPES | set(
    "Abs Add BatchNormalization Cast Celu Clip Div Dropout Elu Erf Exp Gelu HardSigmoid HardSwish LeakyRelu "
    "Max Min Mish Mul Neg PRelu Pow Reciprocal Relu Selu Sigmoid Softplus Softsign Sqrt Sub Swish "
    "Tanh Where".split()
)
"""Operators that compute each number alone, or none: kernels of products take them."""


def count_multiplies(node: gs.Node) -> int:
    """Return the multiply-adds of a sample in a weighted node; 0 for unknown ranks."""
    left, right = node.inputs[:2]
    if left.shape is None or right.shape is None:
        return 0
    if node.op in CONVOLUTIONS:
        moved = left if node.op == "ConvTranspose" else node.outputs[0]
        return count_numbers(moved) * prod(sizes_of(right.shape)[1:])
    axis = find_summed_axis(node, 0, len(left.shape))
    return count_numbers(node.outputs[0]) * (1 if axis is None else sizes_of(left.shape)[axis])


def count_numbers(tensor: gs.Tensor) -> int:
    """Return the number of elements of a sample; 0 for an unknown rank."""
    return 0 if tensor.shape is None else prod(sizes_of(tensor.shape))


def sizes_of(shape: Sequence[int | str]) -> list[int]:
    """Return the sizes of a shape, with OPEN_SIZE or 1 for open axes."""
    return [size if isinstance(size, int) else OPEN_SIZE if axis else 1 for axis, size in enumerate(shape)]


def save_products(node: gs.Node, bits: int) -> float:
    """Return the bytes whose time numbers of `bits` save in the multiply-adds of `node`, next to half."""
    return count_multiplies(node) * (1 - bits / 16) / MULTIPLIES


def split_operands(node: gs.Node, fixed: Collection[str]) -> tuple[list[gs.Tensor], list[gs.Tensor]]:
    """Return the weights of a node, and the activations that it multiplies, or computes with.

    A weight is a constant, or computed from constants alone: a builder stores it with few bits too.

    Args:
        node: of a weighted one two inputs are looked at.
        fixed: names of the nodes that compute constants from constants.
    """
    sides: tuple[list[gs.Tensor], list[gs.Tensor]] = [], []
    for slot, tensor in enumerate(node.inputs[:2] if is_weighted(node) else node.inputs):
        source = weight_source(node, slot)
        stored = source is not None or any(maker.name in fixed for maker in tensor.inputs)
        sides[not stored].append(tensor if source is None else source.tensor)
    return sides


def adds_kernel(node: gs.Node, alone: bool = True) -> bool:
    """Tell whether a product of few bits has a kernel behind it, and in half has none.

    Half moves what an attention reads as a part of that kernel. It joins several products of one tensor in
    one kernel, and has another for each bias.

    Args:
        node: a weighted operator.
        alone: whether no other product of few bits reads what it reads.
    """
    readers = () if node.op in CONVOLUTIONS else readers_of(node.outputs[0])
    behind = [reached for reader in readers for reached, *_ in follow(*reader, passes=_joins)]
    ends = [reached for reached in behind if is_weighted(reached)]
    ops = {reached.op for reached in behind if not is_weighted(reached)}
    into_attention = bool(ends) and all(weight_source(end, slot) is None for end in ends for slot in (0, 1))
    moved = "Transpose" in ops and not (into_attention and (alone or ops <= MOVES))
    return ops <= POINTWISE | TRANSPOSES and not moved


def _joins(node: gs.Node, slot: int, whole: bool) -> bool:
    """Tell whether a kernel that reads `node`'s input computes it too; a pair for a product ends it."""
    return node.op in POINTWISE | TRANSPOSES and not any(map(is_weighted, node.inputs[slot].outputs))
