"""AIMET's document: the encoding that a tensor carries."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from onnxfq.torch.quantizer import FakeQuantize


@dataclass(frozen=True)
class AffineEncoding:
    """Encoding of a tensor.

    Attributes:
        scale: float32, in the quantizer's shape.
        offset: minus the zero point.
        bitwidth: width of the integers.
        symmetric: whether the offset is fixed.
        quantizer: the quantizer that made the tensor.
        centre: what is added to its integers; not 0 for unsigned symmetric ones.
    """

    scale: Tensor
    offset: Tensor
    bitwidth: int
    symmetric: bool
    quantizer: FakeQuantize
    centre: int = 0
