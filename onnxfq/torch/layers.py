"""Quantized layers in an existing module: the same objects, parameters and names.

`swap` gives a module a subclass of its class. Its forward reads weights through their quantizers, and so the
first input if it has one; the rest of forward is unchanged. Outside of forward a weight is the parameter,
which may be initialized, frozen or pruned. `restore` sets the original class again. Parameters are never
changed, so optimizers and state dicts are not affected.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.linear import NonDynamicallyQuantizableLinear
from torch.nn.utils.prune import BasePruningMethod
from torch.nn.utils.spectral_norm import SpectralNorm
from torch.nn.utils.weight_norm import WeightNorm

from onnxfq.errors import ModelError
from onnxfq.torch.calls import OUTPUTS, TABLE, QuantizedCalls, aside, change_outputs, is_running
from onnxfq.torch.onnx_node import is_exporting
from onnxfq.torch.proxies import calling
from onnxfq.torch.quantizer import FakeQuantize

SUFFIX = "_quantizer"
"""Suffix of a quantizer's name in its module, after the name of the tensor."""

BAKED = "baked_"
"""Prefix of the buffers with the weight and the bias of a folded convolution while it is exported."""


@dataclass(frozen=True)
class LayerKind:
    """Properties of a layer type that quantization needs.

    Attributes:
        op_types: the ONNX operators it becomes, as recipes name them.
        form: the ONNX operator with a product of such weights; the planner decides on its node.
        has_input: whether its input is multiplied as well.
    """

    op_types: tuple[str, ...]
    form: str
    has_input: bool


_CONV = LayerKind(("Conv",), "Conv", True)
_TRANSPOSED = LayerKind(("ConvTranspose",), "ConvTranspose", True)

LAYERS: dict[type[nn.Module], LayerKind] = {
    nn.Linear: LayerKind(("Gemm", "MatMul"), "Gemm", True),
    **dict.fromkeys((nn.Conv1d, nn.Conv2d, nn.Conv3d), _CONV),
    **dict.fromkeys((nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d), _TRANSPOSED),
    **dict.fromkeys((nn.Embedding, nn.EmbeddingBag), LayerKind(("Gather",), "Conv", False)),
    **{kind: LayerKind((kind.__name__,), "Gemm", False) for kind in (nn.LSTM, nn.GRU, nn.RNN)},
    **dict.fromkeys((nn.LSTMCell, nn.GRUCell, nn.RNNCell), LayerKind(("Gemm",), "Gemm", False)),
    nn.Bilinear: LayerKind(("MatMul",), "Conv", False),
}


def weights_of(layer: nn.Module) -> tuple[str, ...]:
    """Return the names of the weights of a layer."""
    if isinstance(layer, nn.RNNBase):
        return tuple(name for name in layer._flat_weights_names if name.startswith("weight_"))
    return ("weight_ih", "weight_hh") if isinstance(layer, nn.RNNCellBase) else ("weight",)


def layer_kind(module: nn.Module) -> LayerKind | None:
    """Return the kind of a layer or of a subclass with the same forward; None for other modules."""
    for base, kind in LAYERS.items():
        # An attention multiplies with the weight of its last projection itself.
        is_read = not isinstance(module, NonDynamicallyQuantizableLinear)
        if is_read and isinstance(module, base) and type(module).forward is base.forward:
            return kind
    return None


# Forward pre-hooks that compute a weight from other parameters.
_REMAKING = (WeightNorm, SpectralNorm, BasePruningMethod)


def _check_parametrized(module: nn.Module) -> None:
    names = module.weight_names if "parametrizations" in module._modules else ()
    for name in names:
        if module.float_class.__dict__.get(name) is None and name in module.parametrizations:
            raise ModelError(
                f"{name} of a {module.float_class.__name__} was parametrized after quantize_module; "
                "call remove_fake_quantize, and quantize it again"
            )


def held_quantizers(module: Any) -> dict[str, FakeQuantize]:
    """Return the quantizers that `swap` has put into a module, by their names there."""
    children = module.__dict__["_modules"].items()
    return {name: q for name, q in children if name.endswith(SUFFIX) and isinstance(q, FakeQuantize)}


class Swapped:
    """Common base of all swapped classes."""

    float_class: type[nn.Module]
    mixin: type
    weight_names: tuple[str, ...]

    @property
    def _modules(self) -> dict[str, nn.Module | None]:
        """Return the children; a forward that runs over its own finds the float ones."""
        children: dict[str, nn.Module | None] = self.__dict__["_modules"]
        if not is_running(self):
            return children
        hidden = held_quantizers(self)
        return {name: child for name, child in children.items() if name not in hidden}

    @_modules.setter
    def _modules(self, children: dict[str, nn.Module | None]) -> None:
        self.__dict__["_modules"] = children

    def __reduce_ex__(self, protocol: Any) -> Any:
        """Return how pickle and copies make the class again, which has no place in a module."""
        state = tuple(super().__reduce_ex__(max(int(protocol), 2)))[2]
        return _blank, (self.float_class, self.mixin, self.weight_names), state

    def register_parameter(self, name: str, param: nn.Parameter | None) -> None:
        """Register a parameter, under the name of a weight too, which is a property here."""
        assert isinstance(self, nn.Module)
        if name in self.weight_names:
            self._parameters[name] = param
        else:
            super().register_parameter(name, param)  # type: ignore[misc]

    def refresh(self) -> None:
        """Let the quantizers of weights see the weights as they are now."""
        assert isinstance(self, nn.Module)
        for hook in self._forward_pre_hooks.values():
            if isinstance(hook, _REMAKING):
                hook(self, ())
        _check_parametrized(self)
        with aside(self):
            for name in self.weight_names:
                getattr(self, name)

    def forward(self, *args: Any, **keywords: Any) -> Any:
        """Quantize the first input if it has a quantizer, then run the forward of the layer."""
        if torch.compiler.is_exporting() and type(self)._modules is not Swapped._modules:
            self = self.get_base()  # type: ignore[attr-defined]  # a proxy of torch.export shows all children
        assert isinstance(self, nn.Module)
        held = held_quantizers(self)
        quantizer = held.get("input" + SUFFIX)
        given: Any = args[0] if args else keywords.get("input")
        if quantizer is not None and args:
            args = (quantizer(given), *args[1:])
        elif quantizer is not None:
            keywords["input"] = quantizer(given)
        _check_parametrized(self)
        block = QuantizedCalls(self) if self.__dict__.get(TABLE) else aside(self)
        with block, calling(block, (args, keywords)):
            result = self._run_original(*args, **keywords)
        if quantizer is not None and getattr(self, "inplace", False):  # over the caller's tensor
            result = given.copy_(result)
        outputs = self.__dict__.get(OUTPUTS)
        if outputs is None:
            return result
        return change_outputs(result, lambda at, x: held[outputs[at]](x) if at in outputs else x)

    def _run_original(self, *args: Any, **keywords: Any) -> Any:
        """Run the forward of the layer, which reads its weights quantized."""
        return super().forward(*args, **keywords)  # type: ignore[misc]


class SwappedConv(Swapped):
    """Convolution with an optional BatchNorm folded into its weight (`quantize.py`)."""

    def _run_original(self, input: Tensor) -> Tensor:
        """Convolve with the folded weight; the BatchNorm follows as a module, or is part of this one."""
        layer: Any = self
        norm: nn.Module | None = self.__dict__.get("folded_norm")
        weight = layer.weight
        if norm is None:
            return layer._conv_forward(input, weight, layer.bias)
        if is_exporting() or norm.frozen:
            return layer._conv_forward(input, weight, fold_bias(layer, norm))
        # The factor is taken out of the weight, not out of the result, which has far more elements.
        inverse = 1 / norm_factor(norm).reshape([-1] + [1] * (weight.ndim - 1))
        return layer._conv_forward(input, weight * inverse, layer.bias)


def norm_factor(norm: nn.Module) -> Tensor:
    """Return the factor of each channel in BatchNorm's evaluation mode, with 2^-30 in place of 0.

    Residual networks start with gamma 0, and training divides by the factor.
    """
    factor = torch.rsqrt(norm.running_var + norm.eps)
    if norm.weight is not None:
        factor = factor * norm.weight
    return torch.where(factor == 0, torch.full_like(factor, 2.0**-30), factor)


def fold_bias(layer: nn.Module, norm: nn.Module) -> Tensor:
    """Return the bias of a convolution with its BatchNorm folded in."""
    baked: Tensor | None = layer._buffers.get(BAKED + "bias")
    if baked is not None:
        return baked
    bias = torch.zeros_like(norm.running_mean) if layer.bias is None else layer.bias
    shifted = (bias - norm.running_mean) * norm_factor(norm)
    return shifted if norm.bias is None else shifted + norm.bias


def float_weight(layer: nn.Module, name: str) -> Tensor:
    """Return a weight of a layer, swapped or not, as its float class reads it.

    The class may compute it from other parameters (torch.nn.utils.parametrize), or keep the result of a
    forward pre-hook (the older weight_norm, pruning).
    """
    weight = layer._parameters.get(name)
    if weight is None:
        weight = layer.__dict__.get(name)
    if weight is None:
        descriptor = getattr(getattr(layer, "float_class", type(layer)), name)
        weight = descriptor.__get__(layer)
    assert isinstance(weight, Tensor)
    return weight


def fold_weight(layer: nn.Module) -> Tensor:
    """Return the weight that a quantizer sees, multiplied by the factor of a folded BatchNorm."""
    weight = float_weight(layer, "weight")
    norm = layer.__dict__.get("folded_norm")
    if norm is None:
        return weight
    baked: Tensor | None = layer._buffers.get(BAKED + "weight")
    if baked is not None:
        return baked
    return weight * norm_factor(norm).reshape([-1] + [1] * (weight.ndim - 1))


def _read(name: str) -> property:
    """Return the property through which a weight is read."""

    def get(self: nn.Module) -> Tensor:
        if not (torch.compiler.is_compiling() or is_running(self)):  # only forwards are compiled
            return float_weight(self, name)
        value = fold_weight(self) if name == "weight" else float_weight(self, name)
        quantizer = held_quantizers(self).get(name + SUFFIX)
        return value if quantizer is None else quantizer(value)

    def keep(self: nn.Module, value: Tensor) -> None:  # stores the result of a hook, as without the property
        self.__dict__[name] = value

    def forget(self: nn.Module) -> None:  # as tools do that put the parameter in its place
        self.__dict__.pop(name, None)

    return property(get, keep, forget)


def swap(module: nn.Module, given: Mapping[str, FakeQuantize], mixin: type = Swapped) -> None:
    """Add quantizers to `module`, and give it a class that applies them.

    Args:
        module: the layer; quantizers it already has stay.
        given: quantizers by the name of a weight, or "input".
        mixin: class whose forward replaces that of the layer.
    """
    for name, quantizer in given.items():
        module.add_module(name + SUFFIX, quantizer)
    if isinstance(module, Swapped):
        return
    kind = layer_kind(module)
    names = () if kind is None else weights_of(module)
    if mixin is Swapped and kind is _CONV:
        mixin = SwappedConv
    module.__class__ = _make_class(type(module), mixin, names)


def _make_class(original: type[nn.Module], mixin: type, names: tuple[str, ...]) -> type[nn.Module]:
    body: dict[str, Any] = {name: _read(name) for name in names}
    if issubclass(original, nn.RNNBase):  # it caches its weights in a list; this builds it at every read
        body["_flat_weights"] = property(
            lambda self: [getattr(self, name) for name in self._flat_weights_names], lambda self, value: None
        )
    if mixin.forward is Swapped.forward:  # type: ignore[attr-defined]

        @functools.wraps(original.forward)  # with its parameters, which torch.fx and a request read
        def forward(self: Any, *args: Any, **keywords: Any) -> Any:
            return Swapped.forward(self, *args, **keywords)

        body["forward"] = forward
    body |= {"float_class": original, "mixin": mixin, "weight_names": names}
    body |= {"__module__": original.__module__, "__doc__": original.__doc__}
    return type("Quantized" + original.__name__, (mixin, original), body)


def _blank(original: type[nn.Module], mixin: type, names: tuple[str, ...]) -> nn.Module:
    """Return a module without content, which pickle fills."""
    made: nn.Module = object.__new__(_make_class(original, mixin, names))
    return made


def restore(module: nn.Module) -> None:
    """Undo `swap`; leave a module unchanged that was not swapped."""
    if not isinstance(module, Swapped):
        return
    assert isinstance(module, nn.Module)
    for name in held_quantizers(module):
        delattr(module, name)
    for name in ("folded_norm", "frozen", TABLE, OUTPUTS):
        module.__dict__.pop(name, None)
    module.__class__ = module.float_class
    if isinstance(module, nn.RNNBase):
        module._init_flat_weights()


def refresh(model: nn.Module) -> None:
    """Let every quantizer of a weight see the weight as it is now."""
    for module in model.modules():
        if isinstance(module, Swapped):
            module.refresh()
