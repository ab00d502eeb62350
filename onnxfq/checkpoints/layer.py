"""`QuantizedLayer`: the weight of a linear module as a checkpoint stores it, and the format of its input."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from onnxfq.errors import ModelError
from onnxfq.numerics.block_scales import ScaleType
from onnxfq.numerics.float_types import FloatType
from onnxfq.numerics.granularity import PER_TENSOR, Granularity
from onnxfq.numerics.layout import expand_params
from onnxfq.numerics.qtypes import QTYPES, QType


@dataclass(frozen=True)
class InputFormat:
    """How the input of a layer is quantized.

    Attributes:
        qtype: number format.
        scale: of a static input, one for the tensor; for NVFP4 the factor that its block scales share; None
            where the running model computes all of it.
        zero_point: of a static input.
        block_size: of dynamic blocks along the last axis; 0 for one scale for each token.
        scale_type: of these blocks.
    """

    qtype: QType
    scale: float | None = None
    zero_point: int = 0
    block_size: int = 0
    scale_type: ScaleType = "float32"

    @property
    def is_static(self) -> bool:
        """Tell whether the scale of the whole tensor is a constant."""
        return self.scale is not None and self.scale_type == "float32"

    def __str__(self) -> str:
        """Return the text for messages."""
        if self.is_static:
            return f"{self.qtype} with one scale"
        groups = f"blocks of {self.block_size}" if self.block_size else "for each token"
        return f"{self.qtype} with dynamic scales, {groups}"


@dataclass(frozen=True, eq=False)
class QuantizedLayer:
    """A weight [N, K] in the numbers of a checkpoint: value = (number - zero point) * scale.

    Attributes:
        module: its path.
        numbers: [N, K]: integers of the limits of `qtype`, or the small floats themselves.
        qtype: number format.
        scale: float32: [] for the tensor, [N] for output channels, [N, K / block_size] for blocks. With a
            global scale it is included.
        zero_point: int32, of the shape of `scale`.
        block_size: numbers along K that share a scale; None for no blocks.
        scale_type: float32, e8m0 (MXFP8) or e4m3 (NVFP4).
        global_scale: the factor that scales of type e4m3 share.
        float_type: of the values that its own reader makes.
        input: how its input is quantized; None for float.
        notes: what became of it, for the user.
    """

    module: str
    numbers: NDArray[Any]
    qtype: QType
    scale: NDArray[np.float32]
    zero_point: NDArray[np.int32]
    block_size: int | None = None
    scale_type: ScaleType = "float32"
    global_scale: float | None = None
    float_type: FloatType = "float32"
    input: InputFormat | None = None
    notes: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        """Raise ModelError if the parameters do not fit the numbers."""
        check_shapes(self.module, self.numbers, self.scale, self.zero_point, self.block_size)
        if not (np.isfinite(self.scale) & (self.scale > 0)).all():
            raise ModelError(
                f"layer {self.module!r} has scale {self.scale[~(self.scale > 0)].flat[:1]}, and scales are "
                "finite and positive; download it again"
            )

    @property
    def granularity(self) -> Granularity:
        """Which numbers share a scale."""
        if not self.scale.ndim:
            return PER_TENSOR
        return Granularity(0) if self.block_size is None else Granularity(1, self.block_size)

    @property
    def is_symmetric(self) -> bool:
        """Tell whether every zero point is 0."""
        return not self.zero_point.any()

    @property
    def values(self) -> NDArray[np.float32]:
        """The real numbers, float32; the checkpoint's own reader rounds them to `float_type`."""
        steps = self.numbers.astype(np.float32)
        if not self.is_symmetric:
            steps -= expand_params(self.zero_point, steps.shape, self.granularity).astype(np.float32)
        return np.asarray(steps * expand_params(self.scale, steps.shape, self.granularity), np.float32)

    def rows(self, first: int, last: int) -> QuantizedLayer:
        """Return the part with the output channels from `first` on, up to `last`."""
        scale, zero = self.scale, self.zero_point
        if scale.ndim:
            scale, zero = scale[first:last], zero[first:last]
        return replace(self, numbers=self.numbers[first:last], scale=scale, zero_point=zero)


@dataclass(frozen=True, eq=False)
class FloatLayer:
    """A weight [N, K] whose form encodings do not have, as the float32 values that its reader makes.

    Attributes:
        module: its path.
        values: the real numbers.
        why: what the encodings cannot hold.
        float_type: of the values that its own reader makes.
    """

    module: str
    values: NDArray[np.float32]
    why: str
    float_type: FloatType = "float32"

    def rows(self, first: int, last: int) -> FloatLayer:
        """Return the part with the output channels from `first` on, up to `last`."""
        return replace(self, values=self.values[first:last])


Layer = QuantizedLayer | FloatLayer


_TURNED = "some scales are negative: the numbers there are turned, and their values stay"
_DEAD = "some scales are 0: the numbers there become the zero point, and their scale 1"


def check_shapes(
    module: str, numbers: NDArray[Any], scale: NDArray[Any], zero_point: NDArray[Any], block_size: int | None
) -> None:
    """Raise ModelError unless scales and zero points are for the tensor, for channels or for blocks."""
    rows, columns = numbers.shape if numbers.ndim == 2 else (0, 0)
    wanted: tuple[int, ...] = (rows,) if scale.ndim else ()
    if block_size is not None:
        wanted = rows, -(-columns // block_size)
    if numbers.ndim != 2 or scale.shape != wanted or zero_point.shape != wanted:
        raise ModelError(
            f"layer {module!r} has numbers of shape {list(numbers.shape)}, scales of {list(scale.shape)} and "
            f"zero points of {list(zero_point.shape)}, wanted are {list(wanted)} for both; write it again"
        )


def signed(qtype: QType, numbers: NDArray[Any], zero_point: NDArray[np.int32]) -> tuple[QType, Any, Any]:
    """Return unsigned integers whose zero point is the middle as the same grid of signed integers."""
    middle = 1 << (qtype.bits - 1)
    if qtype.signed or (zero_point != middle).any():
        return qtype, numbers, zero_point
    moved = (numbers.astype(np.int16) - middle).astype(np.int8)
    return QTYPES[f"int{qtype.bits}"], moved, np.zeros_like(zero_point)


def with_positive_scales(layer_scale: NDArray[np.float32], **fields: Any) -> QuantizedLayer:
    """Return a layer of integers with scales above 0, which stand for the same values.

    A negative scale, as AutoRound's symmetric rounding has it, becomes positive where all its numbers q are
    replaced by low + high - q, and the zero point too. A scale of 0 has values 0 only: its numbers become the
    zero point and its scale 1.
    """
    qtype, numbers, zero = fields["qtype"], fields["numbers"], fields["zero_point"]
    check_shapes(fields["module"], numbers, layer_scale, zero, fields.get("block_size"))
    notes: list[str] = []
    if not (layer_scale > 0).all():
        block = fields.get("block_size")
        granularity = PER_TENSOR if not layer_scale.ndim else Granularity.of(1 if block else 0, block)
        turned = expand_params(layer_scale < 0, numbers.shape, granularity)
        dead = expand_params(layer_scale == 0, numbers.shape, granularity)
        ends = int(qtype.qmin + qtype.qmax)
        wide = numbers.astype(np.int16)
        zero = np.where(layer_scale < 0, ends - zero, zero).astype(np.int32)
        wide = np.where(turned, ends - wide, wide)
        numbers = np.where(dead, expand_params(zero, wide.shape, granularity), wide).astype(numbers.dtype)
        notes += [_TURNED] if turned.any() else []
        notes += [_DEAD] if dead.any() else []
        layer_scale = np.where(layer_scale == 0, np.float32(1), np.abs(layer_scale))
    qtype, numbers, zero = signed(qtype, numbers, zero)
    fields |= {"qtype": qtype, "numbers": numbers, "zero_point": zero, "notes": tuple(notes)}
    return QuantizedLayer(scale=layer_scale, **fields)


def values_in_order(
    what: str,
    numbers: NDArray[Any],
    zeros: NDArray[np.int32],
    scale: NDArray[np.float32],
    order: NDArray[Any],
) -> NDArray[np.float32]:
    """Return the real numbers [N, K] where `order`, called `what` in messages, has the group of each input.

    Raises ModelError for a group that is not there.
    """
    groups = order.astype(np.int64)
    if ((groups < 0) | (groups >= scale.shape[1])).any():
        raise ModelError(f"{what} names a group beyond {scale.shape[1]}; download it again")
    return (numbers.astype(np.float32) - zeros[:, groups]) * scale[:, groups]


def join_rows(layers: Sequence[QuantizedLayer], module: str) -> QuantizedLayer:
    """Return one layer with the output channels of `layers` in order.

    One scale for each tensor becomes one for each channel, unless all are equal. NVFP4 with several global
    scales becomes float4 in blocks with float32 scales, of the same values. Raises ModelError for number
    formats that differ.
    """
    first = layers[0]
    kinds = {(p.qtype.name, p.block_size, p.scale.ndim, p.scale_type) for p in layers}
    if len(kinds) > 1 or len({p.numbers.shape[1] for p in layers}) > 1:
        listed = ", ".join(f"{p.module} {p.qtype} {p.granularity}" for p in layers)
        raise ModelError(
            f"{module!r} of the graph joins layers of several formats: {listed}; export the graph with "
            "separate projections"
        )
    scales, zeros = [p.scale for p in layers], [p.zero_point for p in layers]
    notes = tuple(dict.fromkeys(note for p in layers for note in p.notes))
    changes: dict[str, Any] = {}
    if not first.scale.ndim and len({(float(s), int(z)) for s, z in zip(scales, zeros, strict=True)}) > 1:
        sizes = [len(p.numbers) for p in layers]
        scales = [np.full(n, s) for n, s in zip(sizes, scales, strict=True)]
        zeros = [np.full(n, z) for n, z in zip(sizes, zeros, strict=True)]
    if len({p.global_scale for p in layers}) > 1:
        changes = {"scale_type": "float32", "global_scale": None}
        notes += ("the parts have several global scales: the blocks have float32 scales of the same values",)
    inputs = {p.input for p in layers}
    if len(inputs) > 1:
        changes["input"] = None
        notes += ("its parts quantize their common input in several ways; it stays in float",)
    return replace(
        first,
        module=module,
        numbers=np.concatenate([p.numbers for p in layers]),
        scale=np.concatenate(scales) if scales[0].ndim else scales[0],
        zero_point=np.concatenate(zeros) if zeros[0].ndim else zeros[0],
        notes=notes,
        **changes,
    )
