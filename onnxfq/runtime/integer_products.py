"""Exact products of matrices of bytes, by the MatMulInteger kernel of ONNX Runtime."""

from __future__ import annotations

from functools import cache

import numpy as np
from numpy.typing import NDArray
from onnx import parser

from onnxfq.calibration.statistics.moments import MultiplyBytes, Rows, multiply_floats
from onnxfq.runtime.ort import onnxruntime

_OFFSET = 128


@cache
def find_byte_products() -> MultiplyBytes:
    """Return the fastest exact product of bytes on this processor.

    With the VNNI instructions a product of uint8 and int8 takes a quarter of the time of float32. Without
    them a processor adds pairs of products in 16 bits, which saturate; a product of the largest values
    shows it.
    """
    session = _open_session()

    def multiply(left: Rows, right: Rows) -> NDArray[np.int32]:
        # Bytes in two's complement with the sign bit flipped are 128 more; the node subtracts that.
        shifted = np.ascontiguousarray(left).view(np.uint8) ^ np.uint8(_OFFSET)
        feed = {"left": shifted, "right": np.ascontiguousarray(right)}
        product: NDArray[np.int32] = session.run(None, feed)[0]
        return product

    return multiply if _is_exact(multiply) else multiply_floats


def _is_exact(multiply: MultiplyBytes) -> bool:
    """Tell whether the products of the extreme values are right, in several shapes."""
    sizes = (1, 37, 70)
    for m, k, n in ((m, k, n) for m in sizes for k in sizes for n in sizes):
        left = np.full((2, m, k), 127, np.int8)
        left[:, ::3] = -128
        right = np.full((2, k, n), 127, np.int8)
        right[:, :, ::2] = -128
        wanted = np.matmul(left.astype(np.int64), right.astype(np.int64))
        if not np.array_equal(multiply(left, right), wanted):
            return False
    return True


def _open_session() -> onnxruntime.InferenceSession:
    model = parser.parse_model(
        f"""<ir_version: 8, opset_import: ["" : 13]>
        byte_products (uint8[a, m, k] left, int8[a, k, n] right) => (int32[a, m, n] product)
        <uint8 offset = {{{_OFFSET}}}> {{ product = MatMulInteger(left, right, offset) }}"""
    )
    options = onnxruntime.SessionOptions()
    options.enable_cpu_mem_arena = False  # it would keep the largest product
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    return onnxruntime.InferenceSession(
        model.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )
