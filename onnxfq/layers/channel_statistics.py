"""Moments of the channels that groups of factors scale, and the largest channels of any activation."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import closing

from onnxfq.calibration.statistics.channel_moments import CHANNEL_MOMENTS, ChannelMoments
from onnxfq.calibration.statistics.input_kinds import ObservedInput
from onnxfq.calibration.statistics.input_view import InputView
from onnxfq.choices import MOMENTS_MEMORY
from onnxfq.data import Feed
from onnxfq.documents.layers import ChannelSizes
from onnxfq.execution.float_runs import FloatRuns
from onnxfq.graph.channels import Carried, ChannelGroup
from onnxfq.graph.index import GraphIndex
from onnxfq.graph.model import Model
from onnxfq.graph.ops import CONVOLUTIONS


def observe_channels(
    model: Model,
    groups: Sequence[ChannelGroup],
    feeds: Sequence[Feed],
    threads: int,
    carried: Sequence[Carried] = (),
) -> dict[str, ChannelMoments]:
    """Return the moments of channels by tensor: those that weights are summed over, and the carried ones."""
    axes = {one.tensor: one.axis for one in carried}
    axes |= {fold.summed: fold.axis for g in groups for fold in (*g.readers, *g.writers) if fold.summed}
    return _observe(model, axes, feeds, threads)


_PART = 256
"""Tensors of a run; their values are in memory at once."""


def measure_channels(
    model: Model, feeds: Sequence[Feed], tensors: Iterable[str], threads: int = 0
) -> dict[str, ChannelSizes]:
    """Return the largest channels of activations of the float model, pooled over `feeds`.

    Tensors of bodies have no entry, nor do those without an axis of channels of a known size.

    Args:
        model: the float model.
        feeds: the data, few of it.
        tensors: names of computed tensors and of inputs.
        threads: cores to use, 0 for all.
    """
    index = GraphIndex(model.proto.graph)
    known = [name for name in dict.fromkeys(tensors) if name in index.values] if feeds else []
    axes = {name: axis for name in known if (axis := _channel_axis(index, name)) is not None}
    moments: dict[str, ChannelMoments] = {}
    for start in range(0, len(axes), _PART):
        moments |= _observe(model, dict(list(axes.items())[start : start + _PART]), feeds, threads)
    sizes = {name: ChannelSizes.of(one.amax, len(feeds)) for name, one in moments.items()}
    return {name: one for name, one in sizes.items() if one is not None}


def _channel_axis(index: GraphIndex, tensor: str) -> int | None:
    """Return the axis of channels: next to a convolution 1, of a product the summed one, else the last.

    None for a tensor with fewer than two axes, and where the size of the axis is open.
    """
    shape, readers = index.shape(tensor) or (), index.readers.get(tensor, [])
    around = [*readers, *([index.makers[tensor]] if tensor in index.makers else [])]
    axis = len(shape) - 1
    if any(node.op_type in CONVOLUTIONS for node in around):
        axis = 1
    elif any(node.op_type == "MatMul" and node.input[1] == tensor for node in readers):
        axis = len(shape) - 2
    elif len(shape) == 4 and not any(node.op_type in ("MatMul", "Gemm") for node in around):
        axis = 1
    return axis if len(shape) > 1 and axis < len(shape) and shape[axis] is not None else None


def _observe(
    model: Model, axes: Mapping[str, int], feeds: Sequence[Feed], threads: int
) -> dict[str, ChannelMoments]:
    """Return the moments of the channels along `axes`, by tensor."""
    if not axes:
        return {}
    inputs = [ObservedInput(tensor, InputView("MatMul", axis)) for tensor, axis in axes.items()]
    with closing(FloatRuns(model, axes, threads, MOMENTS_MEMORY)) as runs:
        moments = runs.observe(CHANNEL_MOMENTS, inputs, feeds)
    return {tensor: value for (tensor, _), value in moments.items()}
