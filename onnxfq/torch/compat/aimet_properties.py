"""AIMET's document: properties of an affine quantizer."""

from __future__ import annotations

from onnxfq.torch.compat.aimet_settings import AffineQuantizer


def _end_property(name: str, other: str) -> property:
    return property(
        lambda self: self._end(name),
        lambda self, value: self._set_end(name, value),
        doc=f"Parameter from which scale and offset follow, as `{other}`.",
    )


class AffineQuantizerBase(AffineQuantizer):
    """Properties of a quantizer; a new width or symmetry keeps min and max."""

    min, max = _end_property("min", "max"), _end_property("max", "min")

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
