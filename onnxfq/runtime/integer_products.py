"""Exact products of matrices of bytes, by the MatMulInteger kernel of ONNX Runtime."""

from __future__ import annotations

from functools import cache
from itertools import product

import numpy as np
from numpy.typing import NDArray
from onnx import parser

from onnxfq.calibration.statistics.moments import MultiplyBytes, Rows, multiply_floats
from onnxfq.runtime.ort import onnxruntime, open_inference_session

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
        found: NDArray[np.int32] = session.run(None, feed)[0]
        return found

    return multiply if _is_exact(multiply) else multiply_floats


def _is_exact(multiply: MultiplyBytes) -> bool:
    """Tell whether products of extreme values and of random values are right in several shapes.

    The AMX kernel of ONNX Runtime 1.23.2 returns wrong elements for 32 rows and 120 columns.
    """
    random = np.random.default_rng(0)
    for a, m, k, n in product((1, 2), (1, 32, 37, 70), (1, 37, 70), (1, 37, 70, 120)):
        left, right = (random.integers(-128, 128, (a, rows, k)).astype(np.int8) for rows in (m, n))
        extreme = np.full_like(left, 127), np.full_like(right, 127)
        extreme[0][:, ::3] = -128
        extreme[1][:, ::2] = -128
        for one, other in ((left, right), extreme):
            wanted = np.matmul(one.astype(np.int64), other.swapaxes(1, 2).astype(np.int64))
            if not np.array_equal(multiply(one, other), wanted):
                return False
    return True


def _open_session() -> onnxruntime.InferenceSession:
    model = parser.parse_model(
        f"""<ir_version: 8, opset_import: ["" : 13]>
        byte_products (uint8[a, m, k] left, int8[a, n, k] right) => (int32[a, m, n] product)
        <uint8 offset = {{{_OFFSET}}}> {{
            columns = Transpose <perm = [0, 2, 1]> (right)
            product = MatMulInteger(left, columns, offset)
        }}"""
    )
    options = onnxruntime.SessionOptions()
    options.enable_cpu_mem_arena = False  # it would keep the largest product
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    return open_inference_session(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
