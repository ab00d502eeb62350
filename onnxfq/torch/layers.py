"""Layers of an existing model with fake quantizers inside: the same objects, parameters and names.

`swap` gives a module a class made of its own one. Its weights read through their quantizers, and its first
input goes through one where there is one; forward stays that of the layer. `restore` gives the old class
back. Parameters are never touched, so optimizers and state dicts see what they saw before.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils.prune import BasePruningMethod
from torch.nn.utils.spectral_norm import SpectralNorm
from torch.nn.utils.weight_norm import WeightNorm

from onnxfq.torch.onnx_node import is_exporting
from onnxfq.torch.quantizer import FakeQuantize

SUFFIX = "_quantizer"
"""What a quantizer is called in its module: the quantized tensor's name and this."""


@dataclass(frozen=True)
class LayerKind:
    """What quantization must know of a type of layer.

    op_types: the ONNX operators it becomes, as recipes name them. weights: tells the names of its weights.
    channel_axis, summed_axis: of those weights; None where there is no such axis, or several. has_input:
    whether its input is multiplied as well.
    """

    op_types: tuple[str, ...]
    weights: Callable[[nn.Module], tuple[str, ...]]
    channel_axis: int | None
    summed_axis: int | None
    has_input: bool


def _name_weight(module: nn.Module) -> tuple[str, ...]:
    return ("weight",)


def _recurrent_weights(module: nn.Module) -> tuple[str, ...]:
    names: list[str] = module._flat_weights_names
    return tuple(name for name in names if name.startswith("weight_"))


def _cell_weights(module: nn.Module) -> tuple[str, ...]:
    return ("weight_ih", "weight_hh")


def _projections(module: nn.Module) -> tuple[str, ...]:
    if module._qkv_same_embed_dim:
        return ("in_proj_weight",)
    return ("q_proj_weight", "k_proj_weight", "v_proj_weight")


_CONV = LayerKind(("Conv",), _name_weight, 0, None, True)
_TRANSPOSED = LayerKind(("ConvTranspose",), _name_weight, 1, None, True)

LAYERS: dict[type[nn.Module], LayerKind] = {
    nn.Linear: LayerKind(("Gemm", "MatMul"), _name_weight, 0, 1, True),
    nn.Conv1d: _CONV,
    nn.Conv2d: _CONV,
    nn.Conv3d: _CONV,
    nn.ConvTranspose1d: _TRANSPOSED,
    nn.ConvTranspose2d: _TRANSPOSED,
    nn.ConvTranspose3d: _TRANSPOSED,
    nn.MultiheadAttention: LayerKind(("MatMul",), _projections, 0, 1, True),
    nn.Embedding: LayerKind(("Gather",), _name_weight, 0, None, False),
    nn.LSTM: LayerKind(("LSTM",), _recurrent_weights, 0, 1, False),
    nn.GRU: LayerKind(("GRU",), _recurrent_weights, 0, 1, False),
    nn.RNN: LayerKind(("RNN",), _recurrent_weights, 0, 1, False),
    nn.LSTMCell: LayerKind(("Gemm",), _cell_weights, 0, 1, False),
    nn.GRUCell: LayerKind(("Gemm",), _cell_weights, 0, 1, False),
    nn.RNNCell: LayerKind(("Gemm",), _cell_weights, 0, 1, False),
    nn.EmbeddingBag: LayerKind(("Gather",), _name_weight, 0, None, False),
    nn.Bilinear: LayerKind(("MatMul",), _name_weight, 0, None, False),
}


def layer_kind(module: nn.Module) -> LayerKind | None:
    """Return the kind of a layer, also of a subclass that keeps its forward; None for all else."""
    for base, kind in LAYERS.items():
        if isinstance(module, base) and type(module).forward is base.forward:
            return kind
    return None


# Hooks before forward that make a weight of other parameters.
_REMAKING = (WeightNorm, SpectralNorm, BasePruningMethod)


class Swapped:
    """The part that all swapped classes share."""

    float_class: type[nn.Module]

    def refresh(self) -> None:
        """Let the quantizers of weights see the weights as they are now."""
        assert isinstance(self, nn.Module)
        for hook in self._forward_pre_hooks.values():
            if isinstance(hook, _REMAKING):
                hook(self, ())
        kind = layer_kind_of_swapped(self)
        for name in () if kind is None else kind.weights(self):
            getattr(self, name)

    def forward(self, *args: Any, **keywords: Any) -> Any:
        """Quantize the first input, where it has a quantizer, and go on as the layer does."""
        quantizer = self._modules.get("input" + SUFFIX)  # type: ignore[attr-defined]
        if quantizer is not None and args:
            args = (quantizer(args[0]), *args[1:])
        elif quantizer is not None:
            keywords["input"] = quantizer(keywords["input"])
        return super().forward(*args, **keywords)  # type: ignore[misc]


class SwappedConv(Swapped):
    """A convolution that may have a BatchNorm folded into its weight (`batchnorm.py`)."""

    def forward(self, input: Tensor) -> Tensor:  # the layer's own name for it, by which it may be given
        """Convolve with the folded weight; the BatchNorm follows by itself, or is part of this one."""
        norm: nn.Module | None = self.__dict__.get("folded_norm")
        if norm is None:
            return super().forward(input)
        return _run_folded(self, norm, input)


def _run_folded(layer: nn.Module, norm: nn.Module, x: Tensor) -> Tensor:
    quantizer = layer._modules.get("input" + SUFFIX)
    x = x if quantizer is None else quantizer(x)
    weight = layer.weight
    if is_exporting() or norm.frozen:
        return layer._conv_forward(x, weight, fold_bias(layer, norm))
    # The factor is taken out of the weight, not of the result: the same sums, over far fewer elements.
    inverse = 1 / norm_factor(norm).reshape([-1] + [1] * (weight.ndim - 1))
    return layer._conv_forward(x, weight * inverse, layer.bias)


def norm_factor(norm: nn.Module) -> Tensor:
    """Return what BatchNorm in evaluation mode multiplies each channel by; never 0, but 2^-30 instead.

    Residual networks start with a gamma of 0, and training divides by the factor again.
    """
    factor = torch.rsqrt(norm.running_var + norm.eps)
    if norm.weight is not None:
        factor = factor * norm.weight
    return torch.where(factor == 0, torch.full_like(factor, 2.0**-30), factor)


def fold_bias(layer: nn.Module, norm: nn.Module) -> Tensor:
    """Return the bias of a convolution with its BatchNorm inside."""
    bias = torch.zeros_like(norm.running_mean) if layer.bias is None else layer.bias
    shifted = (bias - norm.running_mean) * norm_factor(norm)
    return shifted if norm.bias is None else shifted + norm.bias


def float_weight(layer: nn.Module, name: str) -> Tensor:
    """Return a weight of a layer, swapped or not, as its float class has it.

    That may make it of other parameters (torch.nn.utils.parametrize), or keep what a hook before forward has
    made (the older weight_norm, pruning).
    """
    weight = layer._parameters.get(name)
    if weight is None:
        weight = layer.__dict__.get(name)
    if weight is None:
        made = getattr(getattr(layer, "float_class", type(layer)), name)
        weight = made.__get__(layer)
    assert isinstance(weight, Tensor)
    return weight


def fold_weight(layer: nn.Module) -> Tensor:
    """Return the weight that a quantizer sees: the BatchNorm's factor is in it, if there is one."""
    weight = float_weight(layer, "weight")
    norm = layer.__dict__.get("folded_norm")
    if norm is None:
        return weight
    baked: Tensor | None = layer._buffers.get("baked_weight")
    if baked is not None:
        return baked
    return weight * norm_factor(norm).reshape([-1] + [1] * (weight.ndim - 1))


def _read(name: str) -> property:
    """Make the property through which a weight is read."""

    def get(self: nn.Module) -> Tensor:
        value = fold_weight(self) if name == "weight" else float_weight(self, name)
        quantizer = self._modules.get(name + SUFFIX)
        return value if quantizer is None else quantizer(value)

    def keep(self: nn.Module, value: Tensor) -> None:  # what a hook made, as without the property
        self.__dict__[name] = value

    return property(get, keep)


def _flat_weights(self: nn.Module) -> list[Tensor]:
    return [getattr(self, name) for name in self._flat_weights_names]


_BODIES: dict[type[nn.Module], Mapping[str, Any]] = {
    # Recurrent layers keep a list of their own, made once; it is made anew whenever it is read.
    nn.RNNBase: {"_flat_weights": property(_flat_weights, lambda self, value: None)},
}


def swap(module: nn.Module, given: Mapping[str, FakeQuantize], mixin: type = Swapped) -> None:
    """Put quantizers into `module`: by the name of a weight, or "input"; add to those it has.

    mixin: what forward becomes.
    """
    for name, quantizer in given.items():
        module.add_module(name + SUFFIX, quantizer)
    if isinstance(module, Swapped):
        return
    kind = layer_kind(module)
    names = () if kind is None else kind.weights(module)
    if mixin is Swapped and kind is _CONV:
        mixin = SwappedConv
    body: dict[str, Any] = {name: _read(name) for name in names}
    for base, more in _BODIES.items():
        body |= more if isinstance(module, base) else {}
    original = type(module)
    body |= {"float_class": original, "__module__": original.__module__, "__doc__": original.__doc__}
    module.__class__ = type("Quantized" + original.__name__, (mixin, original), body)


def restore(module: nn.Module) -> None:
    """Take back what `swap` did; a module that was not swapped stays as it is."""
    if not isinstance(module, Swapped):
        return
    assert isinstance(module, nn.Module)
    for name in [
        n for n, child in module.named_children() if n.endswith(SUFFIX) and isinstance(child, FakeQuantize)
    ]:
        delattr(module, name)
    for name in ("folded_norm", "frozen"):
        module.__dict__.pop(name, None)
    module.__class__ = module.float_class
    if isinstance(module, nn.RNNBase):
        module._init_flat_weights()


def refresh(model: nn.Module) -> None:
    """Let every quantizer of a weight see the weight as it is now."""
    for module in model.modules():
        if isinstance(module, Swapped):
            module.refresh()


def layer_kind_of_swapped(module: nn.Module) -> LayerKind | None:
    """Return the kind of a layer that was swapped; None for all else."""
    if not isinstance(module, Swapped):
        return None
    return next((k for base, k in LAYERS.items() if issubclass(module.float_class, base)), None)
