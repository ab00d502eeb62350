"""AIMET's document: LPBQ and floats of any widths."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from onnxfq.numerics.qtypes import float_qtype
from onnxfq.torch.compat.aimet_quantizers import QuantizeDequantize
from onnxfq.torch.functions import fake_quantize


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
