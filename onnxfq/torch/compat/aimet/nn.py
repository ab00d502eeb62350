"""AIMET's document: quantized modules, torch's layers with quantizers for parameters, inputs and outputs."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator
from typing import Any, ClassVar

from torch import Tensor, nn
from torch.nn.utils import parametrize

from onnxfq.errors import SpecError
from onnxfq.torch.compat.aimet.quantizer import QuantizerBase
from onnxfq.torch.compat.aimet.tensor import QuantizedTensorBase


class QuantizationMixin:
    """Mixin of a module whose quantizers are chosen after it is made; None leaves a tensor in float.

    `class QuantizedMine(QuantizationMixin, Mine)` with `@QuantizationMixin.implements(Mine)` adds a module.
    The forward here quantizes float tensors in the order of the call, the parameters, and the outputs. A
    subclass may have another forward.

    Attributes:
        param_quantizers: ModuleDict, a quantizer or None for each parameter.
        input_quantizers: ModuleList, a quantizer or None for each input.
        output_quantizers: ModuleList, a quantizer or None for each output.
    """

    input_quantizers: nn.ModuleList
    output_quantizers: nn.ModuleList
    param_quantizers: nn.ModuleDict
    cls_to_qcls: ClassVar[dict[type[nn.Module], type[nn.Module]]] = {}

    def __init__(self, *args: Any, **keywords: Any) -> None:
        """Make the module with its own arguments, without quantizers."""
        super().__init__(*args, **keywords)
        self.__quant_init__()

    def __quant_init__(self) -> None:
        """Make the places of quantizers; a subclass with other inputs or outputs replaces the lists."""
        module: Any = self
        module.param_quantizers = nn.ModuleDict(dict.fromkeys(module._parameters))
        module.input_quantizers = nn.ModuleList([None])
        module.output_quantizers = nn.ModuleList([None])

    @classmethod
    def implements(cls, module_cls: type[nn.Module]) -> Callable[[type[Any]], type[Any]]:
        """Return a decorator that registers the quantized class of a module's class."""

        def register(quantized: type[Any]) -> type[Any]:
            cls.cls_to_qcls[module_cls] = quantized
            return quantized

        return register

    @classmethod
    def from_module(cls, module: nn.Module) -> Any:
        """Return the quantized form of a module, with the same parameters, buffers and hooks.

        Raises SpecError for a class that has none.
        """
        known = cls.cls_to_qcls.get(type(module))
        if known is None:
            name = type(module).__name__
            raise SpecError(f"{name} has no quantized form; add it by @QuantizationMixin.implements({name})")
        made: Any = object.__new__(known)
        made.__dict__ = {**module.__dict__}
        for name in ("_parameters", "_buffers", "_modules"):
            made.__dict__[name] = dict(module.__dict__[name])
        made.__quant_init__()
        return made

    def forward(self, *args: Any, **keywords: Any) -> Any:
        """Return the module's result, with everything quantized that has a quantizer.

        Raises SpecError for more tensors than places in the list, if one of the others has a quantizer.
        """
        places = iter(self.input_quantizers)
        args = tuple(_quantized(x, places) for x in args)
        keywords = {name: _quantized(x, places) for name, x in keywords.items()}
        with self._patch_quantized_parameters():
            outputs = super().forward(*args, **keywords)  # type: ignore[misc]
        places = iter(self.output_quantizers)
        if isinstance(outputs, tuple):
            return tuple(_quantized(y, places, keeps=True) for y in outputs)
        return _quantized(outputs, places, keeps=True)

    @contextlib.contextmanager
    def _patch_quantized_parameters(self, names: Iterable[str] | None = None) -> Iterator[None]:
        """Hold quantized parameters in place of the module's own inside the block."""
        module: Any = self
        self._calibrate_parameters(again=False)
        made = {}
        for name in self.param_quantizers if names is None else names:
            quantizer, param = self.param_quantizers[name], getattr(module, name)
            if quantizer is not None and param is not None:
                made[name] = _values(quantizer(param))
        own = module._parameters
        others = made.keys() - own.keys()  # pruned, an attribute, or parametrized, which the cache replaces
        kept = {name: module.__dict__[name] for name in others & module.__dict__.keys()}
        module.__dict__["_parameters"] = {**own, **{name: made[name] for name in made.keys() - others}}
        with parametrize.cached():
            for name in others:
                held = module.__dict__ if name in kept else parametrize._cache
                held[name if name in kept else (id(module), name)] = made[name]
            try:
                yield
            finally:
                module.__dict__["_parameters"] = own
                module.__dict__.update(kept)

    def _calibrate_parameters(self, again: bool) -> None:
        """Set the ranges of parameters from their values: those without a range, or all."""
        module: Any = self
        for name, quantizer in self.param_quantizers.items():
            param = getattr(module, name)
            if quantizer is None or param is None or not (again or not quantizer.is_initialized()):
                continue
            with quantizer.compute_encodings(passthrough=True):
                quantizer(param)

    def compute_param_encodings(self) -> None:
        """Set the ranges of all parameters from their values, where `allow_overwrite` permits it."""
        self._calibrate_parameters(again=True)

    @contextlib.contextmanager
    def compute_encodings(self) -> Iterator[None]:
        """Set the ranges of parameters at once, and of inputs and outputs from the data in the block."""
        self._calibrate_parameters(again=True)
        with contextlib.ExitStack() as stack:
            for quantizer in (*self.input_quantizers, *self.output_quantizers):
                if isinstance(quantizer, QuantizerBase):
                    stack.enter_context(quantizer.compute_encodings(passthrough=True))
            yield


def _values(x: Tensor) -> Tensor:
    """Return the values of a tensor as a plain tensor."""
    return x.dequantize().as_subclass(Tensor) if isinstance(x, QuantizedTensorBase) else x


def _quantized(x: Any, places: Iterator[Any], keeps: bool = False) -> Any:
    """Return a tensor by the quantizer of the next place, `keeps` its encoding; other things unchanged."""
    if not isinstance(x, Tensor):
        return x
    quantizer = next(places, None)
    if quantizer is not None and x.is_floating_point():
        x = quantizer(_values(x))
    return x if keeps else _values(x)


@contextlib.contextmanager
def compute_encodings(model: nn.Module) -> Iterator[None]:
    """Set the ranges of all quantized modules and quantizers of `model`, from the data in the block."""
    inside = {id(q) for m in model.modules() if isinstance(m, QuantizationMixin) for q in m.modules()}  # type: ignore[attr-defined]
    with contextlib.ExitStack() as stack:
        for module in model.modules():
            alone = isinstance(module, QuantizerBase) and id(module) not in inside
            if alone or isinstance(module, QuantizationMixin):
                stack.enter_context(module.compute_encodings())
        yield


def compute_param_encodings(model: nn.Module) -> None:
    """Set the ranges of all parameters of the quantized modules of `model`."""
    for module in model.modules():
        if isinstance(module, QuantizationMixin):
            module.compute_param_encodings()


__all__ = ["QuantizationMixin", "compute_encodings", "compute_param_encodings"]
_FLOAT = "adaptive container data_parallel loss module rnn transformer".split()
"""Files of torch.nn whose classes have no quantized form, except some losses."""
_TWO_INPUTS = """BCELoss BCEWithLogitsLoss Bilinear CosineSimilarity CrossEntropyLoss HuberLoss KLDivLoss
    L1Loss MSELoss NLLLoss PairwiseDistance SmoothL1Loss""".split()


def _two_inputs(self: Any) -> None:
    QuantizationMixin.__quant_init__(self)
    self.input_quantizers = nn.ModuleList([None, None])


def _declare(name: str, body: dict[str, Any]) -> None:
    """Make the quantized class of a layer of torch, `QuantizedLinear` of `Linear`, in this module."""
    layer = getattr(nn, name)
    body |= {"__module__": __name__, "__doc__": f"torch.nn.{name} with quantizers, see QuantizationMixin."}
    made = type(f"Quantized{name}", (QuantizationMixin, layer), body)
    globals()[made.__name__] = QuantizationMixin.implements(layer)(made)
    __all__.append(made.__name__)


for _name, _layer in list(vars(nn).items()):
    if isinstance(_layer, type) and issubclass(_layer, nn.Module):
        _left = _layer.__module__.rpartition(".")[2] in _FLOAT or "Lazy" in _name or "Multihead" in _name
        if _name in _TWO_INPUTS or not _left:
            _declare(_name, {"__quant_init__": _two_inputs} if _name in _TWO_INPUTS else {})
