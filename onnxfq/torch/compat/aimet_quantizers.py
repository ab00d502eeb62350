"""AIMET's document: the modules QuantizeDequantize, Quantize and Dequantize."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from torch import Tensor

from onnxfq.errors import StatisticsError
from onnxfq.torch import contexts
from onnxfq.torch.compat.aimet_blocks import check_blocks
from onnxfq.torch.compat.aimet_properties import AffineQuantizerBase
from onnxfq.torch.compat.aimet_tensor import DequantizedTensor, QuantizedTensor, plain
from onnxfq.torch.onnx_node import is_exporting


class Calibrated(AffineQuantizerBase):
    """Quantizer whose range comes from data."""

    @contextlib.contextmanager
    def compute_encodings(self) -> Iterator[None]:
        """Observe inside the block, and pass on what is quantized by each batch's own range."""
        with contexts.compute_encodings(self.quantizer, quantized=True):
            yield


class QuantizeDequantize(Calibrated):
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


class Dequantize(Calibrated):
    """Values of the integers of a `Quantize` with the same range."""

    def forward(self, input: Tensor) -> Tensor:
        """Return a DequantizedTensor. Raises StatisticsError without a range."""
        encoding = self.get_encodings()
        if encoding is None:
            raise StatisticsError("Dequantize has no range; call set_range with the range of its Quantize")
        made: Tensor = QuantizedTensor.of(plain(input), encoding).dequantize()
        return made
