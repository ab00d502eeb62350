"""Noise along the graph: the error of tensors of the running fake-quant model, and the size of channels."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import closing
from dataclasses import replace

import numpy as np
import onnx
from numpy.typing import NDArray

from onnxfq.choices import MOMENTS_MEMORY
from onnxfq.data import Feed
from onnxfq.execution.float_runs import FloatRuns
from onnxfq.graph.index import GraphIndex
from onnxfq.graph.model import Model
from onnxfq.graph.ops import CONVOLUTIONS
from onnxfq.numerics.metrics import ErrorSums

_PART = 256
"""Tensors of a run; their values are in memory at once."""


def measure_noise(
    model: Model, simulation: onnx.ModelProto, feeds: Sequence[Feed], tensors: Iterable[str], threads: int = 0
) -> tuple[dict[str, float], dict[str, NDArray[np.float64]]]:
    """Return the SQNR in dB of `tensors` in the running fake-quant model, and the magnitudes of channels.

    The SQNR is pooled over `feeds`. A tensor has the errors of all layers before it, and not yet the one of
    its own quantizer. The second result has the largest magnitude of each channel in the float model. Tensors
    of bodies have no entry, and tensors whose size depends on the values have no SQNR.

    Args:
        model: the float model.
        simulation: the same with FakeQuantize nodes.
        feeds: the data, few of it.
        tensors: names of computed tensors and of inputs.
        threads: cores to use, 0 for all.
    """
    index, given = GraphIndex(model.proto.graph), {value.name for value in model.proto.graph.input}
    both = index.makers.keys() & GraphIndex(simulation.graph).makers.keys() | given
    names = [name for name in dict.fromkeys(tensors) if name in both]
    sums: dict[str, ErrorSums] = {}
    sizes: dict[str, NDArray[np.float64]] = {}
    odd: set[str] = set()
    for start in range(0, len(names) if feeds else 0, _PART):
        part = set(names[start : start + _PART])
        with (
            closing(FloatRuns(model, part, threads, MOMENTS_MEMORY)) as floats,
            closing(FloatRuns(replace(model, proto=simulation), part, threads, MOMENTS_MEMORY)) as quantized,
        ):
            for (want, _), (have, _) in zip(floats.over(feeds), quantized.over(feeds), strict=True):
                for name in part:
                    largest = _channel_magnitudes(want[name], _channel_axis(index, name, want[name].ndim))
                    known = sizes.get(name, largest)
                    sizes[name] = np.maximum(known, largest) if known.shape == largest.shape else np.zeros(0)
                    if want[name].shape == have[name].shape:
                        error = ErrorSums.from_arrays(want[name], have[name])
                        sums[name] = sums.get(name, ErrorSums()) + error
                    else:
                        odd.add(name)
    noise = {name: sums[name].sqnr_db for name in names if name in sums and name not in odd}
    return noise, sizes


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


def _channel_magnitudes(values: NDArray[np.float32], axis: int) -> NDArray[np.float64]:
    """Return the largest magnitude of each channel; [] of a tensor without axes or values."""
    if values.ndim < 2 or not values.size or axis >= values.ndim:
        return np.zeros(0)
    others = tuple(at for at in range(values.ndim) if at != axis)
    return np.abs(values).max(axis=others).astype(np.float64)
