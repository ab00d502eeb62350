"""Prices in bytes: the gain of few bits and the cost of kernels on a GPU, for convolutions and products.

A GPU does about 100 multiply-adds in half while it reads a byte: 82 to 202 by the data sheets of RTX 4090,
RTX 4060, H100 and L4. Half as many bits take half of it. A launch takes 2.5 us, in which a GPU of 400 GB/s
reads 1 MB: `Recipe.entry_bytes`.

Engines of TensorRT for RTX 1.7.1 join a product in half with the pointwise operators behind it, pairs too. A
product in float8 or NVFP4 writes its sums, and these operators are another kernel: one more, unless they
have one in any case with what follows, as a LayerNormalization or a Transpose. A convolution in 8 bits
writes its sums in float32, for a kernel more in nearly all engines. No time was measured.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

import onnx_graphsurgeon as gs

from onnxfq.graph.ops import CONVOLUTIONS, RESHAPES, find_summed_axis, is_weighted

OPEN_SIZE = 64
"""Size that an open axis counts as; an open first axis, of samples, counts as one."""

MULTIPLIES = 100
"""Multiply-adds in half in the time of a byte."""

SUMS = {"Conv": 8, "Gemm": 4, "MatMul": 4}
"""Operator -> bytes that the sums of one number take to be written and read: two float32, or two halves."""

_POINTWISE = RESHAPES | set(
    "Abs Add BatchNormalization Cast Celu Clip Div Elu Erf Exp Gelu HardSigmoid HardSwish LeakyRelu Max Min "
    "Mish Mul Neg PRelu Pow Reciprocal Relu Selu Sigmoid Softplus Softsign Sqrt Sub Swish Tanh Where".split()
)


def count_multiplies(node: gs.Node) -> int:
    """Return the multiply-adds of a sample in a weighted node; 0 for unknown ranks."""
    left, right = node.inputs[:2]
    if left.shape is None or right.shape is None:
        return 0
    if node.op in CONVOLUTIONS:
        moved = left if node.op == "ConvTranspose" else node.outputs[0]
        return count_numbers(moved) * prod(_sizes(right.shape)[1:])
    axis = find_summed_axis(node, 0, len(left.shape))
    return count_numbers(node.outputs[0]) * (1 if axis is None else _sizes(left.shape)[axis])


def count_numbers(tensor: gs.Tensor) -> int:
    """Return the number of elements of a sample; 0 for an unknown rank."""
    return 0 if tensor.shape is None else prod(_sizes(tensor.shape))


def _sizes(shape: Sequence[int | str]) -> list[int]:
    return [size if isinstance(size, int) else OPEN_SIZE if axis else 1 for axis, size in enumerate(shape)]


def save_products(node: gs.Node, bits: int) -> float:
    """Return the bytes whose time numbers of `bits` save in the multiply-adds of `node`, next to half."""
    return count_multiplies(node) * (1 - bits / 16) / MULTIPLIES


def price_sums(node: gs.Node, kernel: int) -> int:
    """Return the bytes of the kernel behind a product of few bits; 0 if half has it too.

    Args:
        node: a Conv, Gemm or MatMul.
        kernel: bytes that a launch counts as.
    """
    tensors, seen = [] if node.op in CONVOLUTIONS else list(node.outputs[:1]), set[int]()
    while tensors:
        tensor = tensors.pop()
        ends = not tensor.outputs or any(is_weighted(reader) for reader in tensor.outputs)
        if any(reader.op not in _POINTWISE and not is_weighted(reader) for reader in tensor.outputs):
            return 0
        if not ends and id(tensor) not in seen:
            tensors += [made for reader in tensor.outputs for made in reader.outputs]
        seen.add(id(tensor))
    return kernel + SUMS[node.op] * count_numbers(node.outputs[0])
