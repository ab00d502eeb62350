"""Attributes of a fake quantizer with torch's names, and errors for settings that have no effect.

Switches are one-element tensors, as torch.ao has them, over plain bools, which compile.
"""

from __future__ import annotations

from difflib import get_close_matches
from typing import Any

import torch
from torch import Tensor, nn

from onnxfq.errors import SpecError
from onnxfq.numerics.spec import QuantSpec
from onnxfq.torch.external_observer import torch_dtype, torch_scheme

_FIXED = ("spec", "grid", "calibrator")
_REMEDIES = {
    "make a new FakeQuantize with another spec": (
        *("bitwidth", "bits", "num_bits", "symmetric", "signed", "unsigned", "qtype", "dtype", "qscheme"),
        *("quant_min", "quant_max", "qmin", "qmax", "axis", "ch_axis", "block_size", "narrow_range"),
    ),
    "use set_range(min, max)": ("min", "max", "rmin", "rmax", "amax", "min_val", "max_val"),
    "use set_qparams(scale, zero_point)": ("offset", "zero_points", "scales"),
}
"""Remedies for setting an attribute that other libraries have."""


class Switch(Tensor):
    """uint8 tensor [1] that stands for a bool of a module: writing to it in place sets the bool.

    Attributes:
        owner: the module.
        held: name of the attribute with the bool.
    """

    owner: nn.Module
    held: str

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Call torch's function on the plain tensor, and keep what it wrote."""
        with torch._C.DisableTorchFunctionSubclass():
            result = func(*args, **(kwargs or {}))
            for switch in args:
                if isinstance(switch, Switch):
                    switch.owner.__dict__[switch.held] = bool(switch[0])
        return result


def switch(name: str, text: str) -> property:
    """Return the property over the bool `name` of a module; `text` is its docstring."""

    def get(self: nn.Module) -> Tensor:
        made = torch.tensor([self.__dict__[name]], dtype=torch.uint8).as_subclass(Switch)
        made.owner, made.held = self, name
        return made

    def put(self: nn.Module, value: Any) -> None:
        self.__dict__[name] = bool(value)

    return property(get, put, doc=text)


class QuantizerAttributes:
    """Read-only attributes that follow from the spec, and a guard over the others."""

    spec: QuantSpec

    def __setattr__(self, name: str, value: Any) -> None:
        """Set an attribute. Raises SpecError for settings of other libraries, and for misspelled ones.

        Other names are free, as in all modules, because torch's tools set attributes on modules.
        """
        if "_made" in self.__dict__ and not name.startswith("_"):
            remedy = next((how for how, names in _REMEDIES.items() if name in names), "")
            if name in _FIXED:
                raise SpecError(f"{name} of a FakeQuantize is fixed; make a new one with the other {name}")
            if remedy:
                raise SpecError(f"setting {name} of a FakeQuantize has no effect; {remedy}")
            if name in ("scale", "zero_point") and name not in self.__dict__["_buffers"]:
                raise SpecError(f"{name} of a FakeQuantize that learns it is computed; use set_qparams")
            own = ("observer_enabled", "fake_quant_enabled", "observer", "overwrite", "scale", "zero_point")
            near = [] if hasattr(self, name) or name in own else get_close_matches(name, own, 1, 0.8)
            if near:
                raise SpecError(f"a FakeQuantize has no {name} to set; nearest: {near[0]}")
        super().__setattr__(name, value)

    quant_min = property(lambda self: int(self.spec.qtype.qmin), doc="Least integer of the grid.")
    quant_max = property(lambda self: int(self.spec.qtype.qmax), doc="Largest integer of the grid.")
    dtype = property(lambda self: torch_dtype(self.spec), doc="Torch's dtype: qint8, quint8, or qint32.")
    qscheme = property(lambda self: torch_scheme(self.spec), doc="Torch's scheme, such as per_tensor_affine.")

    @property
    def ch_axis(self) -> int:
        """Axis with one scale per index; -1 without one, as in torch."""
        axis = self.spec.granularity.axis
        return -1 if axis is None else axis
