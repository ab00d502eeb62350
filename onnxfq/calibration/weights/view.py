"""`MatrixView`: a weight tensor as matrices [groups, outputs, inputs] and back."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class MatrixView:
    """How a layer multiplies a stored weight.

    Attributes:
        op_type: Conv, ConvTranspose, Gemm or MatMul.
        order: axis a of the layer's operand is axis order[a] of the stored weight.
        group: groups of a convolution.
        outputs_first: whether the outputs of a matrix come before its inputs.
    """

    op_type: str
    order: tuple[int, ...]
    group: int = 1
    outputs_first: bool = False

    def fold(self, stored: NDArray[Any]) -> NDArray[Any]:
        """Return `stored`, a weight or its parameters in its shape, as [groups, outputs, inputs]."""
        x = stored.transpose(self.order)
        if self.op_type == "Conv":
            return x.reshape(self.group, x.shape[0] // self.group, prod(x.shape[1:]))
        if self.op_type == "ConvTranspose":
            parts = x.reshape(self.group, x.shape[0] // self.group, prod(x.shape[1:]))
            return parts.swapaxes(1, 2)
        x = x.reshape(x.shape[0], -1)  # a vector is a matrix with one output
        return (x if self.outputs_first else x.T)[None]

    def unfold(self, matrices: NDArray[Any], shape: tuple[int, ...]) -> NDArray[Any]:
        """Return the inverse of `fold` for a stored weight of `shape`."""
        operand = tuple(shape[axis] for axis in self.order)
        if self.op_type == "ConvTranspose":
            matrices = matrices.swapaxes(1, 2)
        elif self.op_type != "Conv" and not self.outputs_first:
            matrices = matrices.swapaxes(1, 2)
        back = np.argsort(self.order)
        return np.ascontiguousarray(matrices.reshape(operand).transpose(back))
