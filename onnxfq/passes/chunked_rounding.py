"""Weights rounded a part at a time: the arithmetic makes several arrays of the size of what it is given."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from onnxfq.numerics.qtypes import QType
from onnxfq.passes.onnx_blocks import OnnxParams

PART = 1 << 22
"""Elements rounded at a time."""


def by_rows(
    apply: Callable[..., NDArray[Any]],
    values: NDArray[Any],
    params: OnnxParams,
    qtype: QType,
    dtype: np.dtype[Any],
) -> NDArray[Any]:
    """Return `apply(values, scale, zero_point, qtype=, axis=, block_size=)` as `dtype`, made part by part.

    apply: `numerics.quantize` or `numerics.fake_quantize`. Each element keeps its own scale, so the parts
    change nothing.
    """
    keywords = {"qtype": qtype, "axis": params.axis, "block_size": params.block_size}
    if values.size <= PART or values.ndim < 2:
        return apply(values, params.scale, params.zero_point, **keywords).astype(dtype)
    block = params.block_size if params.axis in (0, -values.ndim) and params.block_size else 1
    step = max(1, PART * values.shape[0] // values.size // block) * block
    made = np.empty(values.shape, dtype)
    for start in range(0, values.shape[0], step):
        stop = min(start + step, values.shape[0])
        scale, zero_point = (
            _rows(one, params, start, stop, values.ndim) for one in (params.scale, params.zero_point)
        )
        made[start:stop] = apply(values[start:stop], scale, zero_point, **keywords).astype(dtype)
    return made


def _rows(param: NDArray[Any], params: OnnxParams, start: int, stop: int, rank: int) -> NDArray[Any]:
    """Return what rows [start, stop) of the tensor have of a scale or zero point."""
    if params.axis is None:
        return param
    along_rows = params.axis in (0, -rank)
    if params.block_size is None:
        return param[start:stop] if along_rows else param
    if not along_rows:
        return param[start:stop]
    return param[start // params.block_size : -(-stop // params.block_size)]
