"""Moments of the channels that groups of factors scale."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing

from onnxfq.calibration.statistics.channel_moments import CHANNEL_MOMENTS, ChannelMoments
from onnxfq.calibration.statistics.input_kinds import ObservedInput
from onnxfq.calibration.statistics.input_view import InputView
from onnxfq.choices import MOMENTS_MEMORY
from onnxfq.data import Feed
from onnxfq.execution.float_runs import FloatRuns
from onnxfq.graph.channels import Carried, ChannelGroup
from onnxfq.graph.model import Model


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
    inputs = [ObservedInput(tensor, InputView("MatMul", axis)) for tensor, axis in axes.items()]
    if not inputs:
        return {}
    with closing(FloatRuns(model, axes, threads, MOMENTS_MEMORY)) as runs:
        moments = runs.observe(CHANNEL_MOMENTS, inputs, feeds)
    return {tensor: value for (tensor, _), value in moments.items()}
