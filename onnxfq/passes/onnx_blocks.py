"""N-D blocks as blocks along one axis, the only ones that ONNX has: `one_axis`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from onnxfq.documents.encodings import Encoding
from onnxfq.errors import PlanError
from onnxfq.numerics.granularity import PER_TENSOR, Granularity
from onnxfq.numerics.layout import Layout


@dataclass(frozen=True)
class OnnxParams:
    """Scale, zero point and attributes as ONNX's QuantizeLinear and DequantizeLinear take them."""

    scale: NDArray[np.float32]
    zero_point: NDArray[np.int32]
    granularity: Granularity


def needs_blocks(encoding: Encoding) -> bool:
    """Tell whether ONNX needs its blocks, of opset 21, to say `encoding`."""
    granularity = encoding.spec.granularity
    if granularity.block_shape is None:
        return granularity.block_size is not None
    return sum(count > 1 for count in encoding.param_shape) > 1


def one_axis(encoding: Encoding, shape: Sequence[Any] | None) -> OnnxParams:
    """Return the parameters of `encoding` for a tensor of `shape` in ONNX's granularities.

    N-D blocks that change along one axis only become a scale for each index of that axis, any others blocks
    along the axis that leaves the fewest scales; along the others each scale is repeated for every index of
    its block. Every element keeps its own scale, so nothing changes in value.
    Raises PlanError when a dimension along which scales must be repeated is not fixed.
    """
    granularity = encoding.spec.granularity
    scale, zero_point = encoding.scale_array, encoding.zero_point_array
    if granularity.block_shape is None:
        return OnnxParams(scale, zero_point, granularity)
    varying = [axis for axis, count in enumerate(scale.shape) if count > 1]
    if not varying:
        return OnnxParams(scale.reshape(()), zero_point.reshape(()), PER_TENSOR)
    if not needs_blocks(encoding):
        (axis,) = varying
        (size,) = _fixed(encoding.tensor, [None if shape is None else shape[axis]])
        channels = Layout(Granularity(0, granularity.block_shape[axis]), (size,))
        scale, zero_point = (channels.expand(one.ravel()) for one in (scale, zero_point))
        return OnnxParams(scale, zero_point, Granularity(axis))
    sizes = _fixed(encoding.tensor, shape)
    axis = max(range(len(sizes)), key=lambda d: sizes[d] / scale.shape[d])
    block = Layout(granularity, sizes).block_sizes[axis]
    # Along the axis there stays one scale for each block.
    others = [1 if d == axis else size for d, size in enumerate(granularity.block_shape)]
    sizes[axis] = scale.shape[axis]
    repeated = Layout(Granularity(block_shape=tuple(others)), sizes)
    return OnnxParams(repeated.expand(scale), repeated.expand(zero_point), Granularity(axis, block))


def _fixed(tensor: str, shape: Sequence[Any] | None) -> list[int]:
    if shape is None or not all(isinstance(size, int) for size in shape):
        raise PlanError(
            f"tensor {tensor!r}: ONNX has blocks along one axis only, and N-D blocks become those where the "
            f"shape is fixed, got {shape}; insert fake-quant nodes instead"
        )
    return [int(size) for size in shape]
