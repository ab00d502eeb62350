"""NVIDIA's document, pytorch-quantization: `QuantDescriptor`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from onnxfq.numerics.qtypes import QType, qtype_of_integers


@dataclass(frozen=True)
class QuantDescriptor:
    """Settings of a `TensorQuantizer`, with pytorch-quantization's names and defaults."""

    num_bits: int = 8
    name: str | None = None
    fake_quant: bool = True
    axis: int | tuple[int, ...] | None = None
    amax: Any = None
    learn_amax: bool = False
    scale_amax: float | None = None
    calib_method: str = "max"
    unsigned: bool = False
    narrow_range: bool = False

    @property
    def grid(self) -> QType:
        """Integers of the tensor."""
        top = (1 << (self.num_bits - (not self.unsigned))) - 1
        return qtype_of_integers(0 if self.unsigned else -top - (not self.narrow_range), top)
