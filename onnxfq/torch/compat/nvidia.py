"""NVIDIA's document, pytorch-quantization: layers, descriptor, calibrators, `initialize`."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from onnxfq.errors import ModelError, SpecError, nearest
from onnxfq.numerics.qtypes import QType, qtype_of_integers
from onnxfq.torch.compat.nvidia_calibrators import HistogramCalibrator, MaxCalibrator, largest_magnitude
from onnxfq.torch.compat.wrapper import Wrapper
from onnxfq.torch.layers import swap
from onnxfq.torch.onnx_node import is_exporting
from onnxfq.torch.qat_gradients import fake_quantize


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


_CALIBRATORS = {"max": MaxCalibrator, "histogram": HistogramCalibrator}
_LEAST = 2.0**-24
"""Largest amax whose tensor becomes all zero."""


def _setter(name: str, value: bool, text: str) -> Callable[[TensorQuantizer], None]:
    def change(self: TensorQuantizer) -> None:
        setattr(self, name, value)

    change.__doc__ = text
    return change


class TensorQuantizer(Wrapper):
    """Quantization by amax: given, learned, calibrated, or of each batch until one is known."""

    disabled = False
    if_quant = True
    if_calib = False

    enable_calib = _setter("if_calib", True, "Observe inputs.")
    disable_calib = _setter("if_calib", False, "Stop observing.")
    enable_quant = _setter("if_quant", True, "Quantize inputs.")
    disable_quant = _setter("if_quant", False, "Pass inputs on.")
    disable = _setter("disabled", True, "Neither observe nor quantize.")
    enable = _setter("disabled", False, "Do as the other switches say.")

    def __init__(
        self, quant_desc: QuantDescriptor | None = None, disabled: bool = False, if_quant: bool = True,
        if_calib: bool = False,
    ) -> None:  # fmt: skip
        """Make a quantizer of these settings and switches."""
        desc = quant_desc or QuantDescriptor()
        super().__init__()
        if desc.calib_method not in _CALIBRATORS:
            raise SpecError(f"calib_method must be max or histogram, got {desc.calib_method!r}")
        self.axes = (desc.axis,) if isinstance(desc.axis, int) else tuple(desc.axis or ())
        made: Any = _CALIBRATORS[desc.calib_method]
        self._calibrator = made(desc.num_bits, desc.axis, desc.unsigned)
        self._amax: Tensor | None
        self.register_buffer("_amax", None)
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

    @property
    def amax(self) -> Tensor | None:
        """Largest magnitude of the grid, of any shape that broadcasts against the tensor; None: unknown."""
        return self._amax

    @amax.setter
    def amax(self, value: Any) -> None:
        tensor = torch.as_tensor(value, dtype=torch.float32).detach().clone()
        self._amax = torch.nn.Parameter(tensor) if isinstance(self._amax, torch.nn.Parameter) else tensor

    def amax_of(self, x: Tensor) -> Tensor:
        """Return the largest magnitude of x, for each index of the axes."""
        return largest_magnitude(x, self.axes)

    def load_calib_amax(self, *args: Any, **keywords: Any) -> None:
        """Set amax from what was observed, with arguments of the calibrator's `compute_amax`."""
        if isinstance(self._calibrator, MaxCalibrator) and (args or keywords):
            given = [*args, *keywords][0]
            raise SpecError(f"calibrator max takes no {given!r}: it has one method; remove it")
        self.amax = self._calibrator.compute_amax(*args, **keywords)

    def reset_amax(self) -> None:
        """Forget amax: each batch has its own from here on."""
        self._amax = None


class QuantInput:
    """Layer whose input is quantized."""

    default_quant_desc_input: ClassVar[QuantDescriptor] = QuantDescriptor()

    def __init__(self, *args: Any, quant_desc_input: QuantDescriptor | None = None, **keywords: Any) -> None:
        """Take the arguments of the float layer, and a descriptor."""
        super().__init__(*args, **keywords)
        self.input_quantizer = TensorQuantizer(quant_desc_input or self.default_quant_desc_input)

    def forward(self, input: Tensor) -> Tensor:
        """Quantize the input and run the float layer."""
        y: Tensor = super().forward(self.input_quantizer(input))  # type: ignore[misc]
        return y


class QuantWeighted:
    """Layer whose input and weight are quantized."""

    default_quant_desc_input: ClassVar[QuantDescriptor] = QuantDescriptor()
    default_quant_desc_weight: ClassVar[QuantDescriptor] = QuantDescriptor(axis=0)

    def __init__(
        self, *args: Any, quant_desc_input: QuantDescriptor | None = None,
        quant_desc_weight: QuantDescriptor | None = None, **keywords: Any,
    ) -> None:  # fmt: skip
        """Take the arguments of the float layer, and two descriptors."""
        super().__init__(*args, **keywords)
        first = TensorQuantizer(quant_desc_input or self.default_quant_desc_input)
        second = TensorQuantizer(quant_desc_weight or self.default_quant_desc_weight)
        swap(self, {"input": first, "weight": second})


FLOAT = {base: getattr(nn, base) for base in (
    *("Linear", "Conv1d", "Conv2d", "Conv3d", "ConvTranspose1d", "ConvTranspose2d", "ConvTranspose3d"),
    *("MaxPool1d", "MaxPool2d", "MaxPool3d", "AvgPool1d", "AvgPool2d", "AvgPool3d"),
    *("AdaptiveAvgPool1d", "AdaptiveAvgPool2d", "AdaptiveAvgPool3d"),
    *("InstanceNorm1d", "InstanceNorm2d", "InstanceNorm3d", "LayerNorm", "GroupNorm"),
)}  # fmt: skip


def _make(name: str) -> type[nn.Module]:
    mixin = QuantInput if "Pool" in name or "Norm" in name else QuantWeighted
    body: dict[str, Any] = {"__doc__": f"Quantized {name}.", "__module__": __name__}
    if "Transpose" in name:
        body["default_quant_desc_weight"] = QuantDescriptor(axis=1)
    return type("Quant" + name, (mixin, FLOAT[name]), body)


QUANTIZED = {name: _make(name) for name in FLOAT}


@contextlib.contextmanager
def initialize(
    float_module_list: Sequence[str] = (), custom_quant_modules: Sequence[tuple[Any, str, type]] = ()
) -> Iterator[None]:
    """Let models that are built inside the block have quantized layers.

    Args:
        float_module_list: names of torch.nn that stay float, such as "MaxPool2d".
        custom_quant_modules: (module, name, class): the class takes the place of module.name.

    Raises ModelError for an unknown name.
    """
    for name in float_module_list:
        if name not in FLOAT:
            raise ModelError(f"no quantized layer {name!r} to leave in float{nearest(name, FLOAT)}")
    changes = [(nn, name, made) for name, made in QUANTIZED.items() if name not in float_module_list]
    with contextlib.ExitStack() as stack:
        for home, name, made in [*changes, *custom_quant_modules]:
            stack.callback(setattr, home, name, getattr(home, name))
            setattr(home, name, made)
        yield


__all__ = [
    "HistogramCalibrator",
    "MaxCalibrator",
    "QuantDescriptor",
    "TensorQuantizer",
    "initialize",
    *(f"Quant{name}" for name in QUANTIZED),
]


def __getattr__(name: str) -> Any:
    """Return a quantized layer, as QuantConv2d."""
    made = QUANTIZED.get(name.removeprefix("Quant")) if name.startswith("Quant") else None
    if made is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return made
