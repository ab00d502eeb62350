"""`LayerTable`: layers and tensors of a result with their noise, and the graph around them."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from onnxfq.documents.plan import Role
from onnxfq.support.records import Amount, Count, Record, Share

Range = tuple[float, float]


_TOP = 5
"""Channels that are named."""

WIDE = 16.0
"""Size of a channel over the median one's from which it is named: the median one loses half of 8 bits."""


class ChannelSizes(Record):
    """The largest channels of an activation, and the median one.

    Attributes:
        samples: in which they were seen.
        count: of all channels.
        median: largest magnitude in the median channel.
        largest: numbers of the largest channels with the largest magnitude in each, the largest first.
    """

    samples: Count
    count: Count
    median: Amount
    largest: tuple[tuple[Count, Amount], ...]

    @staticmethod
    def of(magnitudes: NDArray[np.float64], samples: int) -> ChannelSizes | None:
        """Return the sizes by the largest magnitude of each channel; None for fewer than three channels."""
        if magnitudes.size < 3 or not np.isfinite(magnitudes).all():
            return None
        order = np.argsort(-magnitudes, kind="stable")[:_TOP]
        return ChannelSizes(
            samples=samples,
            count=magnitudes.size,
            median=float(f"{np.median(magnitudes):.4g}"),
            largest=tuple((int(at), float(f"{magnitudes[at]:.4g}")) for at in order),
        )

    @property
    def ratio(self) -> float:
        """The largest channel over the median one; inf where only the median is 0."""
        size = self.largest[0][1]
        return size / self.median if self.median else size and float("inf")

    def __str__(self) -> str:
        """Return `channel 3 of 24 reaches 2113, the median one 1.06, in 2 samples`."""
        channel, size = self.largest[0]
        samples = f"in {self.samples} sample{'s' * (self.samples > 1)}"
        return (
            f"channel {channel} of {self.count} reaches {size:g}, the median one {self.median:g}, {samples}"
        )


def describe_channels(sizes: Mapping[str, ChannelSizes]) -> list[str]:
    """Return a line for each tensor whose largest channel takes the grid from the others, the worst first."""
    wide = {name: one for name, one in sizes.items() if one.ratio >= WIDE}
    worst = sorted(wide.items(), key=lambda item: -item[1].ratio)[:_TOP]
    return [f"channels   {name!r}: {one}" for name, one in worst]


class TensorRow(Record):
    """One quantized tensor, or an activation in float.

    Attributes:
        role: activation, weight or bias.
        format: number format and granularity; `float` for an activation that is not quantized.
        bits: of an element.
        calibrator: as the plan names it; `best_error` is followed by the method that it took.
        why: the reason for its place in the plan.
        sqnr_db: its own rounding error: exact for weights, estimated from the histogram for activations; None
            for dynamic scales, and for tensors that were not observed.
        middle_db: the same for the values between the first and third quartile of the magnitudes.
        observed: smallest and largest value.
        grid: smallest and largest number on the grid.
        edges: ends of the histogram.
        counts: values in bins of equal width between `edges`.
        thresholds: range by calibrator, where the data decides.
        channels: largest magnitude of each channel, or of runs of channels, where it was recorded.
        equalized_channels: the same after equalization.
        equalization: what equalization did to the tensor; empty if nothing.
        sizes: the largest channels as they were seen; None for weights, and without an axis of channels.
    """

    tensor: str
    role: Role
    format: str
    bits: Count
    calibrator: str
    why: str
    sqnr_db: float | None = None
    middle_db: float | None = None
    observed: Range | None = None
    grid: Range | None = None
    edges: Range | None = None
    counts: tuple[Count, ...] = ()
    thresholds: dict[str, Range] = {}
    channels: tuple[Amount, ...] = ()
    equalized_channels: tuple[Amount, ...] = ()
    equalization: str = ""
    sizes: ChannelSizes | None = None


class LayerRow(Record):
    """One operator that is quantized, or could be.

    Attributes:
        node: its name.
        output: name of its first output.
        module: path of its torch module; empty if the model has none.
        position: place in the graph, from 0.
        quantized: whether it runs in low precision.
        why: the reason for float, empty otherwise.
        tensors: the quantized tensors that it reads, then its activations in float.
        input_db: SQNR of its inputs in the running model, before their own rounding; the lowest of them.
        output_db: SQNR of its output in the running model.
        alone_db: SQNR of the outputs of the model with only its group of layers quantized.
        noise_share: its group's share of the noise of all groups, each alone.
        rest_db: the same with all groups but this one quantized.
        multiplies: share of the multiply-adds of the model, 0 to 1.
        ran: precision in an engine that was built, as `EngineNode` has it; empty if none is known.
        engine_ms: its time there in milliseconds.
    """

    node: str
    op_type: str
    output: str = ""
    module: str = ""
    position: Count
    quantized: bool
    why: str = ""
    tensors: tuple[str, ...] = ()
    input_db: float | None = None
    output_db: float | None = None
    alone_db: float | None = None
    noise_share: Share | None = None
    rest_db: float | None = None
    multiplies: Amount | None = None
    ran: str = ""
    engine_ms: Amount | None = None


class GraphNode(Record):
    """One node of the graph that reports draw around a layer.

    Attributes:
        output_db: SQNR of its first output in the running model; None where it was not measured.
        reads: places in the list of the nodes that it reads from.
        pairs: those of them whose tensor has a quantizer in between.
    """

    node: str
    op_type: str
    output_db: float | None = None
    reads: tuple[Count, ...] = ()
    pairs: tuple[Count, ...] = ()


class LayerTable(Record):
    """All layers of a result, the one that costs most first, and their tensors in the order of the plan.

    Attributes:
        graph: all nodes in the order of the graph.
        multiplies: share of the multiply-adds in low precision, 0 to 1; None if nothing was run.
        weight_bytes: share of the bytes of constants that is quantized.
        samples: on which layers were run.
        chosen_by: samples that have the figures of layers that repair left in float; 0 for no such layer.
    """

    layers: tuple[LayerRow, ...]
    tensors: tuple[TensorRow, ...]
    graph: tuple[GraphNode, ...] = ()
    multiplies: Amount | None = None
    weight_bytes: Amount = 0.0
    samples: Count = 0
    chosen_by: Count = 0
