"""`Clip` and its function: clipping with gradients for the two ends, as in PACT."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from onnxfq.errors import SpecError
from onnxfq.torch.arguments import checked, checked_methods
from onnxfq.torch.onnx_node import is_exporting


@checked
def clip(input: Tensor, clip_value_min: Tensor | float, clip_value_max: Tensor | float) -> Tensor:
    """Return `input` between two ends that broadcast against it.

    Its gradient passes strictly between the ends; a learned end has the sum of the gradients beyond it.

    Args:
        input: the tensor.
        clip_value_min: lower end.
        clip_value_max: upper end.

    Raises ArgumentError for something else than a tensor, SpecError for a learned end of several numbers.
    """
    low, high = (torch.as_tensor(end, device=input.device) for end in (clip_value_min, clip_value_max))
    if is_exporting():
        return torch.max(torch.min(input, high), low)
    for end in (low, high):
        if end.requires_grad and end.numel() != 1:
            raise SpecError(f"a learned end can only be scalar, got shape {list(end.shape)}; give one number")
    below = torch.where(input >= high, high, input)
    return torch.where(below <= low, low, below)


@checked_methods("__init__")
class Clip(nn.Module):
    """Clipping between two ends, each fixed or learned.

    Args:
        clip_value_min: lower end; a number if it is learned, else also a tensor.
        clip_value_max: upper end.
        learn_min: make the lower end a parameter.
        learn_max: make the upper end a parameter.

    Raises SpecError for a learned end that is not one number.
    """

    clip_value_min: Any
    clip_value_max: Any

    def __init__(
        self, clip_value_min: Any, clip_value_max: Any, learn_min: bool = False, learn_max: bool = False
    ) -> None:
        """Make the ends."""
        super().__init__()
        self.clip_value_min = _learned("clip_value_min", clip_value_min) if learn_min else clip_value_min
        self.clip_value_max = _learned("clip_value_max", clip_value_max) if learn_max else clip_value_max

    def forward(self, inputs: Tensor) -> Tensor:
        """Return the clipped input."""
        return clip(inputs, self.clip_value_min, self.clip_value_max)


def _learned(name: str, value: Any) -> nn.Parameter:
    plain = isinstance(value, (int, float, np.ndarray, np.floating))
    if not plain or np.size(value) != 1:
        kind = type(value).__name__ if not plain else f"shape {list(np.shape(value))}"
        raise SpecError(f"{name} must be scalar to be learned, a number, got {kind}; give a float")
    return nn.Parameter(torch.tensor(value, dtype=torch.get_default_dtype()))
