"""N-D blocks as blocks along one axis, the only ones that ONNX has: `one_axis`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from onnxfq.documents.encodings import Encoding
from onnxfq.errors import PlanError
from onnxfq.numerics.affine import repeat_blocks


@dataclass(frozen=True)
class OnnxParams:
    """Scale, zero point and attributes as ONNX's QuantizeLinear and DequantizeLinear take them."""

    scale: NDArray[np.float32]
    zero_point: NDArray[np.int32]
    axis: int | None
    block_size: int | None

    @property
    def attributes(self) -> dict[str, int]:
        """The node attributes; none per tensor."""
        given = {"axis": self.axis, "block_size": self.block_size}
        return {name: value for name, value in given.items() if value is not None}


def needs_blocks(encoding: Encoding) -> bool:
    """Tell whether ONNX needs its blocks, of opset 21, to say `encoding`."""
    spec, params = encoding.spec, encoding.param_shape
    if spec.block_shape is None:
        return spec.block_size is not None
    return sum(count > 1 for count in params) > 1


def one_axis(encoding: Encoding, shape: Sequence[Any] | None) -> OnnxParams:
    """Return the parameters of `encoding` for a tensor of `shape` in ONNX's granularities.

    N-D blocks that change along one axis only become a scale for each index of that axis, any others blocks
    along the axis that leaves the fewest scales; along the others each scale is repeated for every index of
    its block. Every element keeps its own scale, so nothing changes in value.
    Raises PlanError when a dimension along which scales must be repeated is not fixed.
    """
    spec = encoding.spec
    scale, zero_point = encoding.scale_array, encoding.zero_point_array
    if spec.block_shape is None:
        return OnnxParams(scale, zero_point, spec.axis, spec.block_size)
    varying = [axis for axis, count in enumerate(scale.shape) if count > 1]
    if not varying:
        return OnnxParams(scale.reshape(()), zero_point.reshape(()), None, None)
    if not needs_blocks(encoding):
        (axis,) = varying
        size = None if shape is None else shape[axis]
        (size,) = _fixed(encoding.tensor, [size])
        block = spec.block_shape[axis]
        return OnnxParams(
            repeat_blocks(scale.ravel(), block, 0, size),
            repeat_blocks(zero_point.ravel(), block, 0, size),
            axis,
            None,
        )
    sizes = _fixed(encoding.tensor, shape)
    blocks = [size if b == -1 else b for b, size in zip(spec.block_shape, sizes, strict=True)]
    axis = max(range(len(sizes)), key=lambda d: sizes[d] / scale.shape[d])
    for d, block in enumerate(blocks):
        if d != axis:
            scale = repeat_blocks(scale, block, d, sizes[d])
            zero_point = repeat_blocks(zero_point, block, d, sizes[d])
    return OnnxParams(scale, zero_point, axis, blocks[axis])


def _fixed(tensor: str, shape: Sequence[Any] | None) -> list[int]:
    if shape is None or not all(isinstance(size, int) for size in shape):
        raise PlanError(
            f"tensor {tensor!r}: ONNX has blocks along one axis only, and N-D blocks become those where the "
            f"shape is fixed, got {shape}; insert fake-quant nodes instead"
        )
    return [int(size) for size in shape]
