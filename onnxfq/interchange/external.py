"""Encodings of other tools, independent of the file format: those read and those to write."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from onnxfq.documents.encodings import Encoding, Encodings
from onnxfq.documents.plan import Placement, Plan
from onnxfq.errors import PlanError
from onnxfq.numerics.qtypes import QType


@dataclass(frozen=True)
class ExternalTensor:
    """The scales of one tensor, or its range.

    `limits` replaces scale and zero point; a tensor with neither gives only the format.

    Attributes:
        tensor: its name.
        where: position in the file, for messages.
        qtype: number format; None for the plan's.
        scale: float32: [] per tensor, [C] per channel, x's rank when blocked; blocks without an axis are
            flat, output channels before blocks.
        zero_point: float64, of the shape of `scale`.
        axis: of the channels or blocks; None for the operator's output channels.
        block_size: of blocks along `axis`.
        limits: (rmin, rmax), each [] or [C].
        mirrored: whether symmetric limits count as the larger magnitude on both sides of 0.
        symmetric: None if scale and zero point, or the plan, determine it.
        global_scale: the factor that scales of scale_type e4m3 share.
    """

    tensor: str
    where: str
    qtype: QType | None = None
    scale: NDArray[np.float32] | None = None
    zero_point: NDArray[np.float64] | None = None
    axis: int | None = None
    block_size: int | None = None
    limits: tuple[NDArray[np.float64], NDArray[np.float64]] | None = None
    mirrored: bool = False
    symmetric: bool | None = None
    global_scale: float | None = None

    @property
    def has_values(self) -> bool:
        """Tell whether there is a scale or a range, not only the format."""
        return self.scale is not None or self.limits is not None

    @property
    def per_tensor(self) -> bool:
        """Tell whether it has one scale or one range."""
        values = self.scale if self.limits is None else self.limits[0]
        return self.block_size is None and self.axis is None and (values is None or values.ndim == 0)

    @property
    def fractional(self) -> bool:
        """Tell whether a zero point lies between two numbers of the grid."""
        zero = self.zero_point
        return zero is not None and bool((zero != np.rint(zero)).any())

    def zero_point_as(self, qtype: QType) -> NDArray[np.float64] | None:
        """Return the zero points of the same grid on `qtype`; None when `qtype` has another grid.

        The integers of n bits are the same grid signed and unsigned: the zero point moves by 2^(n-1).
        """
        if self.zero_point is None:
            return None
        if self.qtype is None or qtype.name == self.qtype.name:
            return self.zero_point
        whole = qtype.full_range and self.qtype.full_range and not qtype.is_float
        if not whole or qtype.bits != self.qtype.bits:
            return None
        return self.zero_point + (qtype.qmin - self.qtype.qmin)


@dataclass(frozen=True)
class ExternalEncodings:
    """All entries of one file.

    Attributes:
        source: its path.
        kind: its format, such as `TensorRT calibration cache (TRT-8501-EntropyCalibration2)`.
        tensors: by name.
        in_float: names that the file leaves in float.
        unusable: name -> reason why its entry is not used; such a tensor counts as missing.
    """

    source: str
    kind: str
    tensors: dict[str, ExternalTensor]
    in_float: tuple[str, ...] = ()
    unusable: dict[str, str] = field(default_factory=dict)


class EncodingsReader:
    """Collector of the tensors of a file; every fault is one PlanError that names file and place."""

    def __init__(self, source: str) -> None:
        """Start a file; `source` is its path, for messages."""
        self.source = source
        self.tensors: dict[str, ExternalTensor] = {}
        self.in_float: list[str] = []
        self.unusable: dict[str, str] = {}

    def fault(self, where: str, what: str) -> PlanError:
        """Return the error for the place `where`."""
        return PlanError(f"{self.source}: {where}: {what}")

    def scales(self, where: str, name: str, values: object) -> NDArray[np.float32] | None:
        """Return finite positive float32 scales; None, with the tensor unusable, if any is not."""
        exact = self.numbers(where, values)
        with np.errstate(over="ignore", under="ignore"):
            scale = exact.astype(np.float32)
        bad = ~(np.isfinite(scale) & (scale > 0))
        if bad.any():
            self.unusable[name] = f"{where} has scale {exact[bad][0]:g}, and scales are finite and positive"
            return None
        return scale

    def numbers(self, where: str, values: object) -> NDArray[np.float64]:
        """Return `values`, a number or nested lists of them, as float64. Raises PlanError otherwise."""
        if _numeric(values):
            try:
                return np.asarray(values, np.float64)
            except (ValueError, OverflowError):
                pass
        raise self.fault(
            where, f"must be a number or lists of numbers of one shape, got {values!r:.40}; write it again"
        )

    def add(self, tensor: ExternalTensor) -> None:
        """Add one tensor. Raises PlanError for zero points outside the type and for conflicting entries."""
        qtype, zero = tensor.qtype, tensor.zero_point
        if qtype is not None and zero is not None:
            beyond = ~((zero >= qtype.qmin) & (zero <= qtype.qmax))
            if beyond.any():
                raise self.fault(
                    tensor.where,
                    f"tensor {tensor.tensor!r}: zero point {zero[beyond][0]:g} is not in {qtype} "
                    f"[{qtype.qmin:g}, {qtype.qmax:g}]; write the file again",
                )
        known = self.tensors.get(tensor.tensor)
        if known is not None and not _compare_tensors(known, tensor):
            raise self.fault(
                tensor.where,
                f"tensor {tensor.tensor!r} is also in {known.where} with other values; keep one of the two",
            )
        self.tensors[tensor.tensor] = tensor

    def get_given(self, kind: str) -> ExternalEncodings:
        """Return the collected tensors. Raises PlanError if there are none."""
        if not (self.tensors or self.unusable):
            raise PlanError(f"{self.source}: {kind} without a tensor; write the file again")
        return ExternalEncodings(self.source, kind, self.tensors, tuple(self.in_float), self.unusable)


_DEEPEST = 16


def _numeric(values: object, depth: int = 0) -> bool:
    """Tell whether `values` are numbers in lists no deeper than a tensor has axes."""
    if isinstance(values, (list, tuple)):
        return depth < _DEEPEST and all(_numeric(value, depth + 1) for value in values)
    return isinstance(values, (int, float)) and not isinstance(values, bool)


def _compare_tensors(tensor: ExternalTensor, other: ExternalTensor) -> bool:
    names = [name for name in ExternalTensor.__dataclass_fields__ if name != "where"]
    return all(_equal(getattr(tensor, name), getattr(other, name)) for name in names)


def _equal(value: Any, other: Any) -> bool:
    if isinstance(value, np.ndarray) and isinstance(other, np.ndarray):
        return np.array_equal(value, other)
    if isinstance(value, tuple) and isinstance(other, tuple):
        return all(map(_equal, value, other))
    return bool(value is other or (type(value) is type(other) and value == other))


@dataclass(frozen=True)
class WrittenEncodings:
    """The text of a file.

    Attributes:
        text: the content.
        tensors: number of tensors in it.
        lost: tensor -> reason why the format cannot hold it.
    """

    text: str
    tensors: int
    lost: dict[str, str]

    def refuse_empty(self, kind: str) -> None:
        """Raise PlanError when the file holds no tensor."""
        if not self.tensors:
            first = next((f", as {name!r}: {why}" for name, why in self.lost.items()), "")
            raise PlanError(f"{kind} holds none of these encodings{first}; use a recipe in that format")


def select_held(
    encodings: Encodings, plan: Plan, explain_lost: Callable[[Placement, Encoding], str]
) -> tuple[list[tuple[Placement, Encoding]], dict[str, str]]:
    """Return the placements of `plan` with the encodings that a format holds, and tensor -> why it is lost.

    Args:
        encodings: of the plan.
        plan: the plan.
        explain_lost: returns why the format cannot hold an encoding; empty when it can.

    Raises PlanError when the two belong to different models, or one has no encoding though it had values.
    """
    if encodings.model_sha256 != plan.model_sha256:
        raise PlanError("the encodings and the plan belong to different models; give files of one model")
    part = plan.without((*encodings.without_values, *encodings.apart), "").without_bridges(
        encodings.unshared, ""
    )
    pairs = [(placement, encodings[placement.tensor]) for placement in part.placements]
    reasons = [explain_lost(*pair) for pair in pairs]
    lost = {encoding.tensor: why for (_, encoding), why in zip(pairs, reasons, strict=True) if why}
    return [pair for pair, why in zip(pairs, reasons, strict=True) if not why], lost
