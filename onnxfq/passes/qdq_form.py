"""Forms of Q/DQ: a target's own operators (`QdqForm`), ONNX's blocks, and weights rounded in chunks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import onnx
import onnx_graphsurgeon as gs
from numpy.typing import NDArray

from onnxfq.documents.encodings import Encoding
from onnxfq.documents.plan import Placement
from onnxfq.errors import PlanError
from onnxfq.graph.edit import Editor
from onnxfq.numerics.affine import quantize
from onnxfq.numerics.granularity import PER_TENSOR, Granularity
from onnxfq.numerics.layout import Layout
from onnxfq.numerics.qtypes import QType

Writer = Callable[[Editor, Placement, gs.Tensor, Encoding], None]
"""Inserts the operators of an encoding between a placed tensor and its placed readers."""


@dataclass(frozen=True)
class QdqForm:
    """Differences of a target from ONNX's own form.

    Attributes:
        writer: the writer of a placed tensor with a form specific to the target; None for all others.
        edit: changes the graph after all pairs are inserted, in place.
        finish: returns the exported model with the target's additions.
        sets_apart: whether the runtime fuses an operator with the pairs around it, so that one that stays in
            float needs another operator between.
        zero_points: whether Q and DQ without blocks have zero points as input, also 0 at opsets that can do
            without: ONNX Runtime fuses a Gemm with no other pairs.
    """

    writer: Callable[[Placement], Writer | None] = lambda placement: None
    edit: Callable[[Editor], object] | None = None
    finish: Callable[[onnx.ModelProto], onnx.ModelProto] | None = None
    sets_apart: bool = False
    zero_points: bool = False


PLAIN = QdqForm()
"""ONNX's own operators and nothing else."""


@dataclass(frozen=True)
class OnnxParams:
    """Scale, zero point and attributes for ONNX's QuantizeLinear and DequantizeLinear."""

    scale: NDArray[np.float32]
    zero_point: NDArray[np.int32]
    granularity: Granularity


def needs_blocks(encoding: Encoding) -> bool:
    """Tell whether `encoding` needs ONNX's blocks, of opset 21."""
    granularity = encoding.spec.granularity
    if granularity.block_shape is None:
        return granularity.block_size is not None
    return sum(count > 1 for count in encoding.param_shape) > 1


def expand_to_one_axis(encoding: Encoding, shape: Sequence[Any] | None) -> OnnxParams:
    """Return the parameters of `encoding` for a tensor of `shape` in ONNX's granularities.

    N-D blocks that vary along one axis only become one scale for each index of that axis. All others become
    blocks along the axis that leaves the fewest scales; along the other axes each scale is repeated for every
    index of its block. Every element keeps its own scale, so values do not change. Raises PlanError when a
    dimension along which scales must be repeated is not fixed.
    """
    granularity = encoding.spec.granularity
    scale, zero_point = encoding.scale, encoding.zero_point
    if granularity.block_shape is None:
        return OnnxParams(scale, zero_point, granularity)
    varying = [axis for axis, count in enumerate(scale.shape) if count > 1]
    if not varying:
        return OnnxParams(scale.reshape(()), zero_point.reshape(()), PER_TENSOR)
    if not needs_blocks(encoding):
        (axis,) = varying
        (size,) = _convert_sizes(encoding.tensor, [None if shape is None else shape[axis]])
        channels = Layout(Granularity(0, granularity.block_shape[axis]), (size,))
        scale, zero_point = (channels.expand(one.ravel()) for one in (scale, zero_point))
        return OnnxParams(scale, zero_point, Granularity(axis))
    sizes = _convert_sizes(encoding.tensor, shape)
    axis = max(range(len(sizes)), key=lambda d: sizes[d] / scale.shape[d])
    block = Layout(granularity, sizes).block_sizes[axis]
    # One scale for each block remains along the axis.
    others = [1 if d == axis else size for d, size in enumerate(granularity.block_shape)]
    sizes[axis] = scale.shape[axis]
    repeated = Layout(Granularity(block_shape=tuple(others)), sizes)
    return OnnxParams(repeated.expand(scale), repeated.expand(zero_point), Granularity(axis, block))


def _convert_sizes(tensor: str, shape: Sequence[Any] | None) -> list[int]:
    if shape is None or not all(isinstance(size, int) for size in shape):
        raise PlanError(
            f"tensor {tensor!r}: ONNX has blocks along one axis only, and N-D blocks become those if the "
            f"shape is fixed, got {shape}; insert fake-quant nodes instead"
        )
    return [int(size) for size in shape]


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
