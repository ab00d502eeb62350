"""Switches of a fake quantizer as torch.ao has them: one-element tensors, over plain bools that compile."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn


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
