"""AIMET's document, `aimet_torch.quantization.affine`, its encoding analyzers, LPBQ and float quantizers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from onnxfq.errors import SpecError, StatisticsError
from onnxfq.numerics.qtypes import float_qtype
from onnxfq.torch.compat.aimet_quantizer import (
    AffineQuantizer,
    EncodingAnalyzer,
    MinMaxEncodingAnalyzer,
    PercentileEncodingAnalyzer,
    SqnrEncodingAnalyzer,
)
from onnxfq.torch.compat.aimet_tensor import AffineEncoding, DequantizedTensor, QuantizedTensor, plain
from onnxfq.torch.onnx_node import is_exporting
from onnxfq.torch.qat_gradients import fake_quantize

__all__ = [
    "AffineEncoding",
    "Dequantize",
    "DequantizedTensor",
    "EncodingAnalyzer",
    "FloatQuantizeDequantize",
    "GroupedBlockQuantizeDequantize",
    "MinMaxEncodingAnalyzer",
    "PercentileEncodingAnalyzer",
    "Quantize",
    "QuantizeDequantize",
    "QuantizedTensor",
    "SqnrEncodingAnalyzer",
]


def check_blocks(shape: Sequence[int], block_size: Sequence[int] | None, given: Sequence[int]) -> None:
    """Raise SpecError unless blocks of `block_size`, or of one element without it, make up the input.

    Args:
        shape: shape of the ranges.
        block_size: elements of a block; -1 fits any.
        given: shape of the input; the last axes count.
    """
    sizes = block_size or tuple(1 if parts > 1 else -1 for parts in shape)
    for n, parts, size in zip(tuple(given)[len(given) - len(shape) :], shape, sizes, strict=False):
        if size not in (-1, n // parts):
            raise SpecError(
                f"{parts} blocks of {size} do not make up an axis of {n}, of input {list(given)}; "
                "give another shape or block_size"
            )


class QuantizeDequantize(AffineQuantizer):
    """Rounding to the grid of the parameters `min` and `max`."""

    def forward(self, input: Tensor) -> Tensor:
        """Return a DequantizedTensor; during an export, and before a range is known, a plain tensor."""
        if not is_exporting():
            check_blocks(self.shape, self.block_size, input.shape)
        y: Tensor = self.quantizer(plain(input))
        encoding = None if is_exporting() else self.get_encodings()
        return y if encoding is None else DequantizedTensor.of(y, encoding)


class Quantize(QuantizeDequantize):
    """Rounding to integers, which are floats."""

    def forward(self, input: Tensor) -> Tensor:
        """Return a QuantizedTensor, where `QuantizeDequantize` returns a DequantizedTensor."""
        y = super().forward(input)
        return y.quantize() if isinstance(y, DequantizedTensor) else y


class Dequantize(AffineQuantizer):
    """Values of the integers of a `Quantize` with the same range."""

    def forward(self, input: Tensor) -> Tensor:
        """Return a DequantizedTensor. Raises StatisticsError without a range."""
        encoding = self.get_encodings()
        if encoding is None:
            raise StatisticsError("Dequantize has no range; call set_range with the range of its Quantize")
        made: Tensor = QuantizedTensor.of(plain(input), encoding).dequantize()
        return made


class GroupedBlockQuantizeDequantize(QuantizeDequantize):
    """LPBQ: scales of blocks are small integers times one scale for each group of blocks.

    The integers lie in [1, 2^(decompressed_bw - bitwidth)]; the group's scale fits its largest block.
    """

    def __init__(
        self,
        shape: Sequence[int],
        bitwidth: int,
        symmetric: bool,
        decompressed_bw: int,
        encoding_analyzer: Any = None,
        block_size: Sequence[int] | None = None,
        block_grouping: Sequence[int] | None = None,
    ) -> None:
        """Make a quantizer; `block_grouping` has the blocks of a group along each axis, -1 for all."""
        self._groups = (1 << (decompressed_bw - bitwidth), block_grouping or (1,) * len(shape))
        super().__init__(shape, bitwidth, symmetric, encoding_analyzer, block_size)

    def _build(self, qmin: int, qmax: int, symmetric: bool) -> None:
        super()._build(qmin, qmax, symmetric)
        self.quantizer.scale_groups = self._groups


class FloatQuantizeDequantize(torch.nn.Module):
    """Rounding to floats of any widths, with infinities and NaN like IEEE's, by scale 1."""

    def __init__(self, exponent_bits: int, mantissa_bits: int) -> None:
        """Make a quantizer of 1 + exponent_bits + mantissa_bits bits."""
        super().__init__()
        self.qtype = float_qtype(exponent_bits, mantissa_bits)

    def forward(self, input: Tensor) -> Tensor:
        """Return the rounded input; larger values saturate."""
        return fake_quantize(input, 1.0, qtype=self.qtype)
