"""Sizes of the channels of activations on a few samples: one large channel takes the grid from the others."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import closing
from typing import Any

import numpy as np
from numpy.typing import NDArray

from onnxfq.choices import MOMENTS_MEMORY
from onnxfq.data import Feed
from onnxfq.documents.layers import ChannelSizes
from onnxfq.execution.float_runs import FloatRuns
from onnxfq.graph.index import GraphIndex
from onnxfq.graph.model import Model
from onnxfq.graph.ops import CONVOLUTIONS


def measure_channels(
    model: Model, feeds: Sequence[Feed], tensors: Iterable[str], threads: int = 0
) -> dict[str, ChannelSizes]:
    """Return the largest channels of activations of the float model, pooled over `feeds`.

    Tensors of bodies have no entry, nor do those without an axis of channels, or with an open one.

    Args:
        model: the float model.
        feeds: the data, few of it.
        tensors: names of computed tensors and of inputs.
        threads: cores to use, 0 for all.
    """
    index = GraphIndex(model.proto.graph)
    known = index.makers.keys() | {value.name for value in model.proto.graph.input}
    names = [name for name in dict.fromkeys(tensors) if name in known]
    rows: dict[str, list[NDArray[np.float64]]] = {name: [] for name in names}
    with closing(FloatRuns(model, names, threads, MOMENTS_MEMORY)) as runs:
        for values, _ in runs.over(feeds if names else ()):
            for name, row in rows.items():
                row.append(channel_magnitudes(values[name], _channel_axis(index, name, values[name].ndim)))
    pooled = {
        name: ChannelSizes.of(np.max(row, axis=0), len(row))
        for name, row in rows.items()
        if len({one.shape for one in row}) == 1  # none without samples
    }
    return {name: sizes for name, sizes in pooled.items() if sizes is not None}


def _channel_axis(index: GraphIndex, tensor: str, rank: int) -> int:
    """Return the axis of channels: next to a convolution 1, of a product the summed one, else the last."""
    readers = index.readers.get(tensor, [])
    around = [*readers, *([index.makers[tensor]] if tensor in index.makers else [])]
    if any(node.op_type in CONVOLUTIONS for node in around):
        return 1
    if any(node.op_type == "MatMul" and node.input[1] == tensor for node in readers):
        return max(rank - 2, 0)
    is_multiplied = any(node.op_type in ("MatMul", "Gemm") for node in around)
    return 1 if rank == 4 and not is_multiplied else rank - 1


def channel_magnitudes(values: NDArray[Any], axis: int) -> NDArray[np.float64]:
    """Return the largest magnitude of each channel; [] of a tensor without axes or values."""
    if values.ndim < 2 or not values.size:
        return np.zeros(0)
    others = tuple(at for at in range(values.ndim) if at != axis)
    return np.asarray(np.abs(values).max(axis=others), np.float64)
