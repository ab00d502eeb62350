"""`pytorch_quantization.quant_modules`: quantized layers in the place of torch.nn's, from a call on."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from torch import nn

from onnxfq.errors import ModelError, nearest
from onnxfq.torch.arguments import check_functions
from onnxfq.torch.compat.nvidia import layers, lstm
from onnxfq.torch.compat.nvidia.tensor_quantizer import TensorQuantizer

_KINDS = ("Conv", "ConvTranspose", "AvgPool", "AdaptiveAvgPool")
_REPLACED = (*(f"{kind}{d}d" for kind in _KINDS for d in (1, 2, 3)), "Linear", "LSTM", "LSTMCell")
Custom = Sequence[tuple[Any, str, type]]


class QuantEntry(NamedTuple):
    """A class and its place: `orig_mod.mod_name` becomes `replace_mod`."""

    orig_mod: Any
    mod_name: str
    replace_mod: type


_MADE = {**layers.LAYERS, **vars(lstm)}
_DEFAULT_QUANT_MAP = [QuantEntry(nn, name, _MADE[f"Quant{name}"]) for name in _REPLACED]
"""The layers with a quantized class; users read it, and add to it."""


class QuantModuleReplacementHelper:
    """The classes to replace, and the ones that were there before."""

    def __init__(self) -> None:
        """Begin with the layers that have a quantized class, and nothing replaced."""
        self.default_quant_map = _DEFAULT_QUANT_MAP
        self.quant_map: list[QuantEntry] = []
        self.orginal_func_map: list[QuantEntry] = []

    def prepare_state(
        self, float_module_list: Sequence[str] | None = None, custom_map: Custom | None = None
    ) -> None:
        """Choose what is replaced, with the arguments and errors of `initialize`."""
        for name in float_module_list or ():
            if not hasattr(nn, str(name)):
                raise ModelError(f"torch.nn has no {name!r} to leave in float{nearest(str(name), _REPLACED)}")
        custom = [QuantEntry(*entry) for entry in custom_map or ()]
        chosen = [e for e in self.default_quant_map if e.mod_name not in (float_module_list or ())]
        self.quant_map = [*chosen, *custom]
        known = {(id(e.orig_mod), e.mod_name) for e in self.orginal_func_map}
        for home, name, _ in self.quant_map:
            if not hasattr(home, name):
                raise ModelError(f"{getattr(home, '__name__', home)} has no {name!r}; check the name")
            if (id(home), name) not in known:  # another call may have replaced it already
                known.add((id(home), name))
                self.orginal_func_map.append(QuantEntry(home, name, getattr(home, name)))

    def apply_quant_modules(self) -> None:
        """Replace what was chosen."""
        _set(self.quant_map)

    def restore_float_modules(self) -> None:
        """Put back what was there before the first replacement."""
        _set(self.orginal_func_map)
        self.orginal_func_map = []


def _set(entries: Sequence[QuantEntry]) -> None:
    for home, name, made in entries:
        setattr(home, name, made)


_helper = QuantModuleReplacementHelper()


def initialize(
    float_module_list: Sequence[str] | None = None, custom_quant_modules: Custom | None = None
) -> contextlib.ExitStack:
    """Let models that are built from here on have quantized layers, until `deactivate` or the end of a block.

    Linear, convolutions, LSTM, LSTMCell and average pooling of torch.nn are replaced. Used with `with`, the
    call holds for the block.

    Args:
        float_module_list: names of torch.nn that stay float, such as "Linear".
        custom_quant_modules: (module, name, class): the class takes the place of module.name.

    Raises ModelError for an unknown name.
    """
    _helper.prepare_state(float_module_list, custom_quant_modules)
    before = [QuantEntry(home, name, getattr(home, name)) for home, name, _ in _helper.quant_map]
    _helper.apply_quant_modules()
    replacement = contextlib.ExitStack()  # used with `with` or not at all
    replacement.callback(_set, before)
    return replacement


def deactivate() -> None:
    """Put torch.nn's layers back, and what `custom_quant_modules` replaced."""
    _helper.restore_float_modules()


@contextlib.contextmanager
def enable_onnx_export() -> Iterator[None]:
    """Let plain torch.onnx.export write QuantizeLinear and DequantizeLinear inside the block.

    Quantizers without an amax are then an error. `onnxfq.export_torch` needs no block.
    """
    TensorQuantizer._enable_onnx_export = True
    try:
        yield
    finally:
        TensorQuantizer._enable_onnx_export = False


__all__ = ["QuantModuleReplacementHelper", "deactivate", "enable_onnx_export", "initialize"]
check_functions(globals())
