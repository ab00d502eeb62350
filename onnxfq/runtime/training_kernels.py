"""The C++ kernels of training, on addresses: fake quantization with its mask, and what its gradients need.

The GIL is released while a kernel runs. Arrays are C-contiguous; nobody checks an address.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass

from onnxfq.numerics.float_types import FLOATS, FloatType
from onnxfq.runtime.c_api import call
from onnxfq.runtime.c_arguments import c_blocks, c_elements, c_shape


@dataclass(frozen=True)
class Step:
    """A tensor x, its scales and its grid, as the kernels take them.

    x: address of elements of `element_type`. shape: of x; scale_shape: of rank 0, or of the rank of x with
    sizes that divide it into equal blocks. scale, zero_point: addresses of float32; 0 for zero points of 0.
    threads: how many may work.
    """

    x: int
    shape: Sequence[int]
    element_type: FloatType
    scale: int
    zero_point: int
    scale_shape: Sequence[int]
    qtype: str
    arithmetic: str
    saturate: bool
    threads: int

    def fake_quantize(self, y: int, inside: int) -> None:
        """Write the fake-quantized x to y, and to `inside`, unless it is 0, a byte for each: in the grid?"""
        self._call(y, inside, derivative=False)

    def derivative_by_scale(self, y: int) -> None:
        """Write to y, for each element, the derivative of its rounded value by the scale, as LSQ has it."""
        self._call(y, 0, derivative=True)

    def _call(self, y: int, inside: int, derivative: bool) -> None:
        call(
            "onnxfq_fake_quantize_step",
            c_elements(self.x, y, self.shape, list(FLOATS).index(self.element_type)),
            ctypes.c_void_p(inside),
            ctypes.c_int32(derivative),
            ctypes.c_int32(self.threads),
            ctypes.c_void_p(self.scale),
            ctypes.c_void_p(self.zero_point),
            *c_shape(self.scale_shape),
            self.qtype.encode(),
            c_blocks(),
            self.arithmetic.encode(),
            ctypes.c_int64(self.saturate),
        )


def mask_gradient(gradient: int, inside: int, y: int, count: int, threads: int) -> None:
    """Write to y gradient * inside: `count` float32 at each of gradient and y, bytes of 0 or 1 at inside."""
    pointers = (ctypes.c_void_p(address) for address in (gradient, inside, y))
    call("onnxfq_mask_gradient", *pointers, ctypes.c_int64(count), ctypes.c_int32(threads))
