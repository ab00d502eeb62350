"""`Given`: what a file of another tool says of the tensors of a model, whatever its format."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from onnxfq.errors import PlanError
from onnxfq.numerics.qtypes import QType


@dataclass(frozen=True)
class GivenTensor:
    """The scales of one tensor, or its range.

    where: its place in the file, for messages. qtype: None where the plan's is meant. symmetric: None where
    scale and zero point tell it, or the plan. scale, zero_point: float32 and float64 of one shape: []
    per tensor, [C] per channel, x's rank when blocked; blocks without an axis are flat, output channels
    before blocks. limits: (rmin, rmax), each [] or [C], in place of them; neither where only the format is
    given. axis: of the channels or blocks; None where the file leaves it to the operator: that of the output
    channels. global_scale: the factor that scales of scale_type e4m3 share.
    """

    tensor: str
    where: str
    qtype: QType | None = None
    scale: NDArray[np.float32] | None = None
    zero_point: NDArray[np.float64] | None = None
    axis: int | None = None
    block_size: int | None = None
    limits: tuple[NDArray[np.float64], NDArray[np.float64]] | None = None
    symmetric: bool | None = None
    global_scale: float | None = None

    @property
    def has_values(self) -> bool:
        """Tell whether there is a scale or a range, and not the format alone."""
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
        """Return the zero points of the same grid on `qtype`; None when that is another grid.

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
class Given:
    """All that one file says.

    source: its path. kind: what it is, as `TensorRT calibration cache (TRT-8501-EntropyCalibration2)`.
    tensors: by name. in_float: names that the file leaves in float. unusable: name -> why its entry is not
    used; such a tensor counts as one that the file lacks.
    """

    source: str
    kind: str
    tensors: dict[str, GivenTensor]
    in_float: tuple[str, ...] = ()
    unusable: dict[str, str] = field(default_factory=dict)


class Reading:
    """Collects the tensors of a file; every fault is one PlanError that names file and place."""

    def __init__(self, source: str) -> None:
        """source: the path, for messages."""
        self.source = source
        self.tensors: dict[str, GivenTensor] = {}
        self.in_float: list[str] = []
        self.unusable: dict[str, str] = {}

    def fault(self, where: str, what: str) -> PlanError:
        """Return the error for the place `where`."""
        return PlanError(f"{self.source}: {where}: {what}")

    def scales(self, where: str, name: str, values: object) -> NDArray[np.float32] | None:
        """Return finite positive float32 scales; None, and the tensor is unusable, if one is 0 or not finite.

        A tool writes such for what was never anything but 0. Raises PlanError for what are no numbers.
        """
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

    def add(self, tensor: GivenTensor) -> None:
        """Take one tensor. Raises PlanError for zero points beyond the type, and for a second entry."""
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
        if known is not None and not _same(known, tensor):
            raise self.fault(
                tensor.where,
                f"tensor {tensor.tensor!r} stands in {known.where} with other values; keep one of the two",
            )
        self.tensors[tensor.tensor] = tensor

    def given(self, kind: str) -> Given:
        """Return what was collected. Raises PlanError when that is nothing."""
        if not (self.tensors or self.unusable):
            raise PlanError(f"{self.source}: {kind} without a tensor; write the file again")
        return Given(self.source, kind, self.tensors, tuple(self.in_float), self.unusable)


_DEEPEST = 16


def _numeric(values: object, depth: int = 0) -> bool:
    """Tell whether `values` are numbers in lists no deeper than a tensor has axes."""
    if isinstance(values, (list, tuple)):
        return depth < _DEEPEST and all(_numeric(value, depth + 1) for value in values)
    return isinstance(values, (int, float)) and not isinstance(values, bool)


def _same(one: GivenTensor, other: GivenTensor) -> bool:
    names = [name for name in GivenTensor.__dataclass_fields__ if name != "where"]
    return all(_equal(getattr(one, name), getattr(other, name)) for name in names)


def _equal(one: Any, other: Any) -> bool:
    if isinstance(one, np.ndarray) and isinstance(other, np.ndarray):
        return np.array_equal(one, other)
    if isinstance(one, tuple) and isinstance(other, tuple):
        return all(map(_equal, one, other))
    return bool(one is other or (type(one) is type(other) and one == other))
