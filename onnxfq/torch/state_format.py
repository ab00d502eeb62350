"""Number format of a quantizer in state dicts, and the checks of a state before it is loaded."""

from __future__ import annotations

import warnings
from typing import Any

import torch
from torch import Tensor

from onnxfq.errors import SpecError
from onnxfq.torch.learned_grid import LearnedGrid
from onnxfq.torch.qat_gradients import check_values

KEY = "format"


def write(text: str) -> Tensor:
    """Return the text as uint8: files of tensors alone hold it, and averages of weights pass it by."""
    return torch.tensor(list(text.encode("ascii")), dtype=torch.uint8)


def read(stored: Tensor) -> str:
    """Return the text that `write` stored."""
    return bytes(stored.to(torch.uint8).tolist()).decode("ascii", "replace")


def check(quantizer: LearnedGrid, own: str, state: dict[str, Any], prefix: str) -> None:
    """Take the format out of a state for a quantizer of format `own`. Raises SpecError if it is of no use.

    It cannot if the state has another number format, numbers off its grid, or no scale where one is known.
    A state without a format, as older versions saved it, is loaded with a warning.
    """
    stored, scale = state.pop(prefix + KEY, None), state.get(prefix + "scale")
    if scale is None or scale.is_meta:
        return
    name = prefix.removesuffix(".") or "the quantizer"
    if stored is None:
        warnings.warn(
            "this state dict has scales without their number format, and another one would clip values; make "
            "sure that the recipe is the same, and save the state again",
            stacklevel=2,
        )
    elif read(stored) != own:
        raise SpecError(
            f"{name} is {own}, and the state dict has {read(stored)}; quantize the module "
            "with the recipe of the state dict"
        )
    if not scale.numel():
        if quantizer.is_initialized:
            raise SpecError(
                f"the state dict has no scale for {name}, which has one; calibrate before saving, or load "
                "into a module without scales"
            )
        return
    zeros, spec = state.get(prefix + "zero_point"), quantizer.spec
    if not state.get(prefix + "learned", 0):  # a learned scale may have any sign
        check_values(scale.detach().float(), None if zeros is None else zeros.float(), quantizer.grid)
    if zeros is not None and spec.symmetric and bool((zeros != 0).any()):
        raise SpecError(
            f"{name} is {spec}, and the state dict has zero point {float(zeros[zeros != 0][0])}; quantize "
            "the module with the recipe of the state dict"
        )
