"""The largest magnitude of a tensor, for each index of some of its axes."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from onnxfq.errors import SpecError
from onnxfq.torch.arguments import checked

Axes = int | Sequence[int] | None


@checked
@torch.no_grad()  # type: ignore[untyped-decorator]
def reduce_amax(input: Tensor, axis: Axes = None, keepdims: bool = True) -> Tensor:
    """Return the largest magnitude of `input`, without a gradient.

    Args:
        input: the tensor.
        axis: the axes that are reduced, an integer or several; None reduces all to a scalar.
        keepdims: keep reduced axes with size 1. One value of several axes is a scalar nevertheless.

    Raises ArgumentError for a wrong type, SpecError for axes that the tensor lacks and for an empty tensor.
    """
    axes = axes_of(input, axis)
    if not input.numel():
        raise SpecError(f"a tensor of shape {list(input.shape)} has no largest magnitude; leave it out")
    if axis is None:
        axes, keepdims = list(range(input.ndim)), False
    elif not axes:
        return input.abs()
    # Two reductions need no copy of the magnitudes.
    amax = torch.maximum(input.amax(axes, keepdims), -input.amin(axes, keepdims)).abs()
    return amax.reshape(()) if amax.numel() == 1 and not isinstance(axis, int) else amax


def axes_of(x: Tensor, axis: Axes) -> list[int]:
    """Return axes of x counted from 0. Raises SpecError for axes that x lacks."""
    axes = [] if axis is None else list(axis) if isinstance(axis, (tuple, list)) else [axis]
    if len(axes) > x.ndim:
        raise SpecError(f"Cannot reduce {len(axes)} axes, the tensor has {x.ndim}; name each axis once")
    if wrong := [one for one in axes if not -x.ndim <= one < x.ndim]:
        raise SpecError(f"axis {wrong[0]} is not in a tensor of shape {list(x.shape)}; give one that it has")
    return [one % x.ndim for one in axes]


def amax_by_index(x: Tensor, axis: Axes) -> Tensor:
    """Return the largest magnitude for each index of `axis`, in x's rank; a scalar if there is one value."""
    kept = axes_of(x, axis)
    return reduce_amax(x, None if axis is None else [d for d in range(x.ndim) if d not in kept])
