"""NVIDIA's document, pytorch-quantization: `QuantDescriptor` and `TensorQuantizer`."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from onnxfq.errors import SpecError
from onnxfq.torch.compat.nvidia_descriptor import QuantDescriptor
from onnxfq.torch.compat.nvidia_switches import Switches
from onnxfq.torch.functions import fake_quantize
from onnxfq.torch.onnx_node import is_exporting

_LEAST = 2.0**-24
"""Largest amax whose tensor becomes all zero."""


class TensorQuantizer(Switches):
    """Quantization by amax: given, learned, calibrated, or of each batch until one is known."""

    def __init__(
        self, quant_desc: QuantDescriptor | None = None, disabled: bool = False, if_quant: bool = True,
        if_calib: bool = False,
    ) -> None:  # fmt: skip
        """Make a quantizer of these settings and switches."""
        desc = quant_desc or QuantDescriptor()
        super().__init__(desc)
        self.desc, self.disabled, self.if_quant, self.if_calib = desc, disabled, if_quant, if_calib
        if desc.amax is not None:
            self.amax = desc.amax
            if desc.learn_amax:
                self._amax = nn.Parameter(self._buffers.pop("_amax"))
        elif desc.learn_amax:
            raise SpecError("learn_amax needs a first value; give amax")

    def forward(self, inputs: Tensor) -> Tensor:
        """Return the input observed and quantized, as the switches say."""
        if self.disabled or inputs.numel() == 0:
            return inputs
        if self.if_calib:
            self._calibrator.collect(inputs)
        if not self.if_quant:
            return inputs
        if self.desc.unsigned and not is_exporting() and (inputs < 0).any():
            raise SpecError("negative values in unsigned quantization; use unsigned=False")
        amax = (self.amax_of(inputs) if self.amax is None else self.amax) * (self.desc.scale_amax or 1.0)
        return self._quantize(inputs, amax.to(torch.float32))

    def _quantize(self, x: Tensor, amax: Tensor) -> Tensor:
        grid = self.desc.grid
        scale = amax.clamp(min=_LEAST) / grid.qmax
        scale = (
            scale.reshape((1,) * (x.ndim - scale.ndim) + tuple(scale.shape)) if scale.numel() > 1 else scale
        )
        if is_exporting() and self.desc.fake_quant:
            axes = [d for d, n in enumerate(scale.shape) if n > 1]
            flat = scale.flatten() if axes else scale.reshape(())
            return fake_quantize(x, flat, qtype=grid, axis=axes[0] if axes else None)
        if self.desc.learn_amax:
            return torch.where(amax > _LEAST, fake_quantize(x, scale, qtype=grid), 0.0).to(x.dtype)
        factor = grid.qmax / amax.clamp(min=_LEAST)  # multiplied, as in the document
        steps = (x.detach() * factor).round().clamp(grid.qmin, grid.qmax)
        y = torch.where(amax > _LEAST, steps if not self.desc.fake_quant else steps / factor, 0.0).to(x.dtype)
        if not self.desc.fake_quant:
            return y
        clipped = x.clamp(-amax.to(x.dtype), amax.to(x.dtype))  # its gradient is 1 for |x| <= amax
        return y + (clipped - clipped.detach())
