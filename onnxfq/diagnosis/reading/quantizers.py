"""`SwitchedForm`: the quantizers of a file and its float form, in which each of them has a switch."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import onnx
from numpy.typing import NDArray

from onnxfq.graph.stored_grid import StoredGrid
from onnxfq.numerics.qtypes import QType, qtype_by_name, qtype_of_integers
from onnxfq.quantized.number_grids import NumberGrid

Limit = tuple[float, float]
"""The ends to which a tensor is limited by the range of its quantizer, on or off."""

PREFIX = "diagnosed"
"""Begin of the names that the float form adds."""


@dataclass(frozen=True)
class ActivationQuantizer:
    """One quantizer of a computed tensor.

    Attributes:
        number: its place in the order of computation.
        tensor: by its name in the file: what a QuantizeLinear reads, or what an integer operator computes.
        node: that quantizes.
        op_type: of that node.
        scale: name of the scale in the file.
        zero_point: name of the zero point in the file; empty without one.
        grid: scale, zero point and type.
        plain: the tensor in front of it in the float form.
        can_limit: whether values may lie outside of its range, which then may do the work of a Relu.
        is_symmetric: whether its range is the same on both sides of 0, as most of its type are.
    """

    number: int
    tensor: str
    node: str
    op_type: str
    scale: str
    zero_point: str
    grid: NumberGrid
    plain: str
    can_limit: bool
    is_symmetric: bool = False

    def name(self, part: str) -> str:
        """Return the name of a part of it in the form; the part `on` is its switch."""
        return f"{PREFIX}/{self.node}/{part}"

    @property
    def output(self) -> str:
        """Tensor of the form that its readers read."""
        return self.name("out")

    @property
    def qtype(self) -> QType:
        """The type of its numbers, with their limits."""
        kind = self.grid.kind.name
        if "int" in kind:
            return qtype_of_integers(*map(int, self.grid.codes))
        return qtype_by_name(kind.replace("_", ""))

    @property
    def is_centered(self) -> bool:
        """Whether 0 is in the middle of its numbers."""
        low, high = self.grid.codes
        return abs(self.grid.zero - (low + high) / 2) <= 0.5

    @property
    def starts_at_zero(self) -> bool:
        """Whether it has no number below 0."""
        return self.grid.zero == self.grid.codes[0]


@dataclass(frozen=True)
class StoredConstant:
    """One constant that the file stores in integers.

    Attributes:
        constant: its name in the float form.
        codes: the smallest and the largest number that it may have.
        data: name of the integers, or of the floats that a QuantizeLinear rounds.
        scale: name of the scale.
        zero_point: name of the zero point; empty without one.
        grid: its numbers.
        kind: name of its integer type.
        floats: values in front of its QuantizeLinear; None if only integers are stored.
        is_editable: whether a pair or a QLinear operator holds it, which a repair can change.
    """

    constant: str
    codes: tuple[float, float]
    data: str
    scale: str
    zero_point: str
    grid: StoredGrid
    kind: str
    floats: NDArray[np.float32] | None
    is_editable: bool = True

    @property
    def is_bias(self) -> bool:
        """Whether it is a bias of 32 bits."""
        return self.kind == "int32"


@dataclass
class SwitchedForm:
    """The float form with its switches.

    Attributes:
        proto: the form; every quantizer is on by default.
        activations: in the order of computation.
        constants: in the order of the file.
        shifted: nodes whose numbers are read on another grid than they were given.
        passed_over: quantizers that stay as they are, by what they are.
    """

    proto: onnx.ModelProto
    activations: list[ActivationQuantizer] = field(default_factory=list)
    constants: list[StoredConstant] = field(default_factory=list)
    shifted: list[tuple[str, str]] = field(default_factory=list)
    passed_over: list[str] = field(default_factory=list)
