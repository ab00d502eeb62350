"""Number formats a tensor can be quantized to: `QType` values in the dict `QTYPES`."""

from __future__ import annotations

from dataclasses import dataclass

import ml_dtypes
import numpy as np
from onnx import TensorProto

from onnxfq.errors import SpecError, nearest


@dataclass(frozen=True)
class QType:
    """An integer grid as ONNX spells it.

    name: ONNX's lower-case type name, `int8`. bits: width. signed: two's complement or not.
    """

    name: str
    bits: int
    signed: bool

    @property
    def qmin(self) -> int:
        """Smallest integer of the full range."""
        return -(1 << (self.bits - 1)) if self.signed else 0

    @property
    def qmax(self) -> int:
        """Largest integer of the full range."""
        return (1 << (self.bits - 1)) - 1 if self.signed else (1 << self.bits) - 1

    @property
    def onnx_type(self) -> int:
        """The `TensorProto.DataType` of quantized values."""
        return int(getattr(TensorProto, self.name.upper()))

    @property
    def dtype(self) -> np.dtype[np.generic]:
        """The NumPy dtype of quantized values, one element per item (ml_dtypes for 4 bits)."""
        return np.dtype(getattr(ml_dtypes, self.name) if self.bits < 8 else self.name)

    @property
    def min_opset(self) -> int:
        """Lowest ai.onnx opset whose QuantizeLinear and DequantizeLinear have this type.

        Source: ONNX operator changelog; 8 bit per axis since 13, 16 and 4 bit since 21.
        """
        return 13 if self.bits == 8 else 21

    def __str__(self) -> str:
        """Return the name."""
        return self.name


_ALL = (
    QType("int4", 4, True),
    QType("uint4", 4, False),
    QType("int8", 8, True),
    QType("uint8", 8, False),
    QType("int16", 16, True),
    QType("uint16", 16, False),
)

QTYPES: dict[str, QType] = {q.name: q for q in _ALL}


def qtype_by_name(name: str) -> QType:
    """Return the `QType` called `name`. Raises SpecError that lists the nearest names."""
    try:
        return QTYPES[name]
    except KeyError:
        raise SpecError(f"unknown qtype {name!r}{nearest(name, QTYPES)}") from None
