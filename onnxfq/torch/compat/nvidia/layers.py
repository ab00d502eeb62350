"""Quantized layers of `pytorch_quantization.nn`, and what a layer of one's own needs to be one.

`weight` stays the parameter of the float layer. Forward quantizes it by `_weight_quantizer`, and the input by
`_input_quantizer`.
"""

from __future__ import annotations

import inspect
from typing import Any, ClassVar

from torch import Tensor, nn
from torch.nn import functional as F

from onnxfq.errors import ArgumentError, SpecError, nearest
from onnxfq.torch.arguments import checked_methods
from onnxfq.torch.compat.nvidia.descriptor import QuantDescriptor
from onnxfq.torch.compat.nvidia.tensor_quant import (
    QUANT_DESC_8BIT_CONVTRANSPOSE2D_WEIGHT_PER_CHANNEL,
    QUANT_DESC_8BIT_LINEAR_WEIGHT_PER_ROW,
    QUANT_DESC_8BIT_PER_TENSOR,
)
from onnxfq.torch.compat.nvidia.tensor_quantizer import TensorQuantizer


class _InputQuantizer:
    """Layer with a quantizer for its input, as both mixins have it."""

    default_quant_desc_input: ClassVar[QuantDescriptor] = QUANT_DESC_8BIT_PER_TENSOR
    _input_quantizer: TensorQuantizer

    @classmethod
    def set_default_quant_desc_input(cls, value: QuantDescriptor) -> None:
        """Set the descriptor of inputs for layers of this class that are made from here on."""
        cls.default_quant_desc_input = _descriptor(value)

    input_quantizer = property(lambda self: self._input_quantizer, doc="The quantizer of the input.")

    def __setattr__(self, name: str, value: Any) -> None:
        """Set an attribute; a quantizer may be given under its name without the underscore."""
        public = ("input_quantizer", "weight_quantizer")
        super().__setattr__(f"_{name}" if name in public else name, value)


class QuantInputMixin(_InputQuantizer):
    """Layer whose input is quantized."""

    def init_quantizer(self, quant_desc_input: QuantDescriptor) -> None:
        """Make `_input_quantizer`. Raises SpecError for a descriptor of integers."""
        self._input_quantizer = TensorQuantizer(_for_layer(quant_desc_input))


class QuantMixin(_InputQuantizer):
    """Layer whose input and weight are quantized; no `QuantInputMixin`, by which users tell the two apart."""

    default_quant_desc_weight: ClassVar[QuantDescriptor] = QUANT_DESC_8BIT_PER_TENSOR
    _weight_quantizer: TensorQuantizer

    @classmethod
    def set_default_quant_desc_weight(cls, value: QuantDescriptor) -> None:
        """Set the descriptor of weights for layers of this class that are made from here on."""
        cls.default_quant_desc_weight = _descriptor(value)

    def init_quantizer(
        self,
        quant_desc_input: QuantDescriptor,
        quant_desc_weight: QuantDescriptor,
        num_layers: int | None = None,
    ) -> None:
        """Make the quantizers of the input and the weight. Raises SpecError for a descriptor of integers.

        Args:
            quant_desc_input: descriptor of the input.
            quant_desc_weight: descriptor of the weight.
            num_layers: make lists with so many quantizers; None for one of each.
        """
        given = {"input": _for_layer(quant_desc_input), "weight": _for_layer(quant_desc_weight)}
        for kind, desc in given.items():
            if num_layers is None:
                setattr(self, f"_{kind}_quantizer", TensorQuantizer(desc))
            else:
                made = nn.ModuleList(TensorQuantizer(desc) for _ in range(num_layers))
                setattr(self, f"_{kind}_quantizers", made)

    weight_quantizer = property(lambda self: self._weight_quantizer, doc="The quantizer of the weight.")


_DESCRIPTORS = ("quant_desc_input", "quant_desc_weight")


def pop_quant_desc_in_kwargs(quant_cls: Any, input_only: bool = False, **kwargs: Any) -> Any:
    """Return the descriptors in `kwargs`, or the defaults of `quant_cls`: of input and weight, or of input.

    Raises ArgumentError for other keywords.
    """
    names = _DESCRIPTORS[: 1 if input_only else 2]
    found = tuple(kwargs.pop(name, getattr(quant_cls, f"default_{name}")) for name in names)
    if kwargs:
        known = " and ".join(names)
        raise ArgumentError(f"Unused keys: {', '.join(kwargs)}; {quant_cls.__name__} takes {known}")
    return found[0] if input_only else found


def _descriptor(value: Any) -> QuantDescriptor:
    if isinstance(value, QuantDescriptor):
        return value
    raise SpecError(f"{value!r:.40} is not an instance of QuantDescriptor; make one")


def _for_layer(value: Any) -> QuantDescriptor:
    desc = _descriptor(value)
    if not desc.fake_quant:
        raise SpecError("Only fake quantization is supported in a layer, got fake_quant=False; remove it")
    return desc


def make_float(
    layer: Any, args: Any, keywords: dict[str, Any], descriptors: tuple[str, ...] = _DESCRIPTORS
) -> list[Any]:
    """Run the constructor of a layer's float class, and return the layer's descriptors, given or default.

    Raises ArgumentError for keywords that neither takes.
    """
    found = [keywords.pop(name, None) or getattr(layer, f"default_{name}") for name in descriptors]
    bases: list[Any] = [base for base in type(layer).__mro__ if base.__module__.startswith("torch.")]
    takes = {name for base in bases for name in inspect.signature(base.__init__).parameters}
    if unknown := sorted(set(keywords) - takes):
        known = f"{bases[0].__name__}'s, {' and '.join(descriptors)}"
        raise ArgumentError(f"Unused keys: {', '.join(unknown)}; {type(layer).__name__} takes {known}")
    bases[0].__init__(layer, *args, **keywords)
    return found


@checked_methods("__init__")
class _QuantInputLayer(QuantInputMixin):
    """Float layer behind a quantizer."""

    def __init__(self, *args: Any, **keywords: Any) -> None:
        """Take the arguments of the float layer, and `quant_desc_input`."""
        self.init_quantizer(*make_float(self, args, keywords, _DESCRIPTORS[:1]))

    def forward(self, input: Tensor) -> Any:
        """Quantize the input and run the float layer."""
        return super().forward(self._input_quantizer(input))  # type: ignore[misc]


@checked_methods("__init__")
class QuantLayer(QuantMixin):
    """Float layer with quantizers of input and weight, an amax for each output channel of the weight."""

    default_quant_desc_weight = QUANT_DESC_8BIT_LINEAR_WEIGHT_PER_ROW
    weight: Tensor

    def __init__(self, *args: Any, **keywords: Any) -> None:
        """Take the arguments of the float layer, `quant_desc_input` and `quant_desc_weight`."""
        self.init_quantizer(*make_float(self, args, keywords))

    def _quant(self, input: Tensor) -> tuple[Tensor, Tensor]:
        """Return the quantized input and the quantized weight."""
        return self._input_quantizer(input), self._weight_quantizer(self.weight)


class QuantLinear(QuantLayer, nn.Linear):
    """Quantized Linear."""

    def forward(self, input: Tensor) -> Tensor:
        """Quantize input and weight, and multiply."""
        return F.linear(*self._quant(input), self.bias)


class _QuantConv(QuantLayer):
    """Quantized convolution."""

    def forward(self, input: Tensor) -> Tensor:
        """Quantize input and weight, and convolve."""
        layer: Any = self
        y: Tensor = layer._conv_forward(*self._quant(input), layer.bias)
        return y


class _QuantConvTranspose(QuantLayer):
    """Transposed convolution, with an amax for each index of the weight's axis 1."""

    default_quant_desc_weight = QUANT_DESC_8BIT_CONVTRANSPOSE2D_WEIGHT_PER_CHANNEL

    def forward(self, input: Tensor, output_size: list[int] | None = None) -> Tensor:
        """Quantize input and weight, and convolve."""
        layer: Any = self
        n = len(layer.kernel_size)
        sizes = layer.stride, layer.padding, layer.kernel_size, n, layer.dilation
        extra = layer._output_padding(input, output_size, *sizes)
        convolve = (F.conv_transpose1d, F.conv_transpose2d, F.conv_transpose3d)[n - 1]
        given = layer.bias, layer.stride, layer.padding, extra, layer.groups, layer.dilation
        y: Tensor = convolve(*self._quant(input), *given)
        return y


def _make(name: str) -> type[nn.Module]:
    kind = _QuantConvTranspose if "Transpose" in name else _QuantConv if "Conv" in name else _QuantInputLayer
    body = {"__doc__": f"Quantized {name}.", "__module__": __name__}
    return type(f"Quant{name}", (kind, getattr(nn, name)), body)


_POOLED = ("MaxPool", "AvgPool", "AdaptiveAvgPool", "InstanceNorm")
_NAMES = [f"{kind}{d}d" for kind in ("Conv", "ConvTranspose", *_POOLED) for d in (1, 2, 3)]
LAYERS: dict[str, type[nn.Module]] = {f"Quant{name}": _make(name) for name in _NAMES}
LAYERS["QuantLinear"] = QuantLinear
globals().update(LAYERS)  # by their names, for pickle

# The original has no name without Quant for InstanceNorm.
NAMES = LAYERS | {name[5:]: made for name, made in LAYERS.items() if "InstanceNorm" not in name}


def __getattr__(name: str) -> Any:
    """Return a layer by its name, with Quant or without."""
    if name in NAMES:
        return NAMES[name]
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}{nearest(name, NAMES)}")
