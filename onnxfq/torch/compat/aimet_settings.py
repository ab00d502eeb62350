"""AIMET's document: reading and setting an affine quantizer."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from onnxfq.torch.compat.aimet_encoding import AffineEncoding
from onnxfq.torch.compat.aimet_module import AffineModule


class AffineQuantizer(AffineModule):
    """Getters and setters of a quantizer."""

    def is_initialized(self) -> bool:
        """Tell whether the range is known."""
        return self.quantizer.is_initialized

    def get_scale(self) -> Tensor | None:
        """Return the scale in the quantizer's shape; None without a range."""
        return self.quantizer._params()[0].reshape(self.shape) if self.is_initialized() else None

    def get_offset(self) -> Tensor | None:
        """Return minus the zero point."""
        if not self.is_initialized():
            return None
        zeros = self.quantizer._params()[1] + self.zero_point_shift
        return -(zeros + self._centre).reshape(self.shape)

    def get_min(self) -> Tensor | None:
        """Return the least number of the grid."""
        return self._value_of(self.quantizer.quant_min)

    def get_max(self) -> Tensor | None:
        """Return the largest number of the grid."""
        return self._value_of(self.quantizer.quant_max)

    def _value_of(self, integer: int) -> Tensor | None:
        if not self.is_initialized():
            return None
        scale, zeros = self.quantizer._params()
        return ((integer - zeros) * scale).reshape(self.shape)

    def get_encodings(self) -> AffineEncoding | None:
        """Return the encoding; None without a range."""
        scale, offset = self.get_scale(), self.get_offset()
        if scale is None or offset is None:
            return None
        return AffineEncoding(scale, offset, self.bitwidth, self.symmetric, self.quantizer, self._centre)

    def set_range(self, min: Tensor | float | None, max: Tensor | float | None) -> None:
        """Set the parameters; None keeps one."""
        for name, value in (("min", min), ("max", max)):
            if value is not None:
                self._set_end(name, torch.as_tensor(value))

    def _end(self, name: str) -> Tensor:
        end: Tensor = getattr(self.quantizer, "r" + name)
        return end if end.shape == self.shape else end.reshape(self.shape)

    def _set_end(self, name: str, value: Tensor) -> None:
        inner, own = self.quantizer, getattr(self.quantizer, "r" + name)
        target = own.shape
        data = value.detach().to(own).expand(self.shape).reshape(target).clone()
        if isinstance(value, nn.Parameter):
            value.data = data
            setattr(inner, "r" + name, value)
        else:
            own.data = data
        self._ends.add(name)
        if len(self._ends) == 2 and not inner.is_initialized:
            inner.scale = torch.ones(target)
            inner.zero_point = torch.zeros(target, dtype=torch.int32)
