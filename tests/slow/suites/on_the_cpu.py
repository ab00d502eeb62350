"""Requests for CUDA that a suite makes, answered by the CPU."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch.overrides import TorchFunctionMode


def _redirect(value: Any) -> Any:
    """Return the CPU for a CUDA device, and anything else as it is."""
    if isinstance(value, str):
        return "cpu" if value.split(":")[0] == "cuda" else value
    if isinstance(value, torch.device):
        return torch.device("cpu") if value.type == "cuda" else value
    return value


class OnTheCpu(TorchFunctionMode):
    """Every function and method of torch sees the CPU where it is given a CUDA device."""

    def __torch_function__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if func is torch.Tensor.cuda:
            return args[0]
        given = {name: _redirect(value) for name, value in (kwargs or {}).items()}
        return func(*map(_redirect, args), **given)


def install() -> None:
    """Redirect from here on, in this process."""
    OnTheCpu().__enter__()
    set_type, load = torch.set_default_tensor_type, torch.load

    def set_default_tensor_type(kind: Any) -> None:
        set_type(kind.replace("torch.cuda.", "torch.") if isinstance(kind, str) else kind)

    def load_on_the_cpu(*args: Any, **keywords: Any) -> Any:
        return load(*args, **{"map_location": "cpu"} | keywords)

    torch.set_default_tensor_type = set_default_tensor_type
    torch.load = load_on_the_cpu
    torch.nn.Module.cuda = lambda self, device=None: self
    torch.cuda.device = lambda device: torch.device("cpu")
