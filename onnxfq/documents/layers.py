"""Layers and quantized tensors of a result, with the noise that each has and adds: rows of reports."""

from __future__ import annotations

from onnxfq.documents.plan import Role
from onnxfq.support.records import Amount, Count, Record

Range = tuple[float, float]


class TensorRow(Record):
    """One quantized tensor.

    Attributes:
        role: activation, weight or bias.
        format: number format and granularity.
        bits: of an element.
        calibrator: as the plan names it; `auto` is followed by the method that it took.
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


class LayerRow(Record):
    """One operator that is quantized, or could be.

    Attributes:
        node: its name.
        output: name of its first output.
        module: path of its torch module; empty if the model has none.
        position: place in the graph, from 0.
        quantized: whether it runs in low precision.
        why: the reason for float, empty otherwise.
        tensors: the quantized tensors that it reads.
        input_db: SQNR of its inputs in the running model, before their own rounding; the lowest of them.
        output_db: SQNR of its output in the running model.
        added_db: SQNR of its output if only the noise between inputs and output were there.
        alone_db: SQNR of the outputs of the model with only its group of layers quantized.
        rest_db: the same with all groups but this one quantized.
        multiplies: share of the multiply-adds of the model, 0 to 1.
        before: nearest layers that it reads from.
        after: nearest layers that read from it.
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
    added_db: float | None = None
    alone_db: float | None = None
    rest_db: float | None = None
    multiplies: Amount | None = None
    before: tuple[str, ...] = ()
    after: tuple[str, ...] = ()

    @property
    def impact_db(self) -> float | None:
        """Cost of the layer in dB: at the outputs if that was measured, else at its own output."""
        return self.added_db if self.alone_db is None else self.alone_db


class LayerTable(Record):
    """All layers of a result, the one that costs most first, and their tensors in the order of the plan.

    Attributes:
        multiplies: share of the multiply-adds in low precision, 0 to 1; None if nothing was run.
        weight_bytes: share of the bytes of constants that is quantized.
    """

    layers: tuple[LayerRow, ...]
    tensors: tuple[TensorRow, ...]
    multiplies: Amount | None = None
    weight_bytes: Amount = 0.0
