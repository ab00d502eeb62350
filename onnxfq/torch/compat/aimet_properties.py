"""AIMET's document: properties of an affine quantizer."""

from __future__ import annotations

from torch import Tensor

from onnxfq.torch.compat.aimet_settings import AffineQuantizer


class AffineQuantizerBase(AffineQuantizer):
    """Properties of a quantizer; a new width or symmetry keeps min and max."""

    @property
    def min(self) -> Tensor:
        """Parameter from which scale and offset follow, as `max`."""
        return self._end("min")

    @min.setter
    def min(self, value: Tensor) -> None:
        self._set_end("min", value)

    @property
    def max(self) -> Tensor:
        """Parameter from which scale and offset follow, as `min`."""
        return self._end("max")

    @max.setter
    def max(self, value: Tensor) -> None:
        self._set_end("max", value)

    @property
    def qmin(self) -> int:
        """Least integer."""
        return self.quantizer.quant_min + self._centre

    @property
    def qmax(self) -> int:
        """Largest integer."""
        return self.quantizer.quant_max + self._centre

    @property
    def bitwidth(self) -> int:
        """Width of the integers."""
        return (self.qmax - self.qmin).bit_length()

    @bitwidth.setter
    def bitwidth(self, bits: int) -> None:
        low = -(1 << (bits - 1)) if self.signed else 0
        self._build(low, low + (1 << bits) - 1, self.symmetric)

    @property
    def symmetric(self) -> bool:
        """Whether the offset is fixed."""
        return self.quantizer.spec.symmetric

    @symmetric.setter
    def symmetric(self, value: bool) -> None:
        self._build(self.qmin, self.qmax, value)

    @property
    def signed(self) -> bool:
        """Whether the integers may be negative."""
        return self.qmin < 0

    @signed.setter
    def signed(self, value: bool) -> None:
        shift = (1 << (self.bitwidth - 1)) * (int(self.signed) - int(value))
        self._build(self.qmin + shift, self.qmax + shift, self.symmetric)

    def allow_overwrite(self, mode: bool) -> None:
        """Say whether `compute_encodings` may replace the range."""
        self.quantizer.allow_overwrite(mode)
