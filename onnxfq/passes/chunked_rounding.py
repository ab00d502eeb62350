"""Weight rounding in chunks, with bounded memory."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from onnxfq.numerics.affine import quantize
from onnxfq.numerics.layout import Layout
from onnxfq.numerics.qtypes import QType
from onnxfq.passes.onnx_blocks import OnnxParams

PART = 1 << 18
"""Elements rounded at a time: the arithmetic makes several arrays of this size, which stay in the cache."""


def quantize_in_chunks(
    values: NDArray[Any], params: OnnxParams, qtype: QType, dtype: np.dtype[Any]
) -> NDArray[Any]:
    """Return what `numerics.quantize` returns, as `dtype`, computed in chunks.

    Each element keeps its own scale, so chunks do not change the result.

    Args:
        values: of the weight.
        params: scale, zero point and granularity.
        qtype: number format.
        dtype: of the result.
    """
    apply = partial(quantize, qtype=qtype, granularity=params.granularity)
    if values.size <= PART or values.ndim < 2:
        return apply(values, params.scale, params.zero_point).astype(dtype)
    layout = Layout(params.granularity, values.shape)
    step = max(1, PART * values.shape[0] // values.size // layout.rows_of_block) * layout.rows_of_block
    made = np.empty(values.shape, dtype)
    for start in range(0, values.shape[0], step):
        stop = min(start + step, values.shape[0])
        scale, zero_point = (layout.rows(one, start, stop) for one in (params.scale, params.zero_point))
        made[start:stop] = apply(values[start:stop], scale, zero_point).astype(dtype)
    return made
