"""Optimization profiles for open dimensions of inputs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod

import onnx

from onnxfq.data import Feed
from onnxfq.errors import DataError, nearest

Profile = tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]
"""Smallest, most frequent and largest shape of one input."""

LARGEST_BATCH = 8
MOST_ELEMENTS = 2**31 - 1
"""Most elements of a tensor in TensorRT."""
_USUAL_BATCH = 4
_PIXELS = 224
_OTHER = 64


def profiles(proto: onnx.ModelProto, shapes: Mapping[str, Sequence[int]]) -> dict[str, Profile]:
    """Return a profile for each input of `proto` with open dimensions.

    Args:
        proto: the model.
        shapes: shape by input name; an open first dimension goes from 1 to the given size.

    Open dimensions of other inputs get defaults: the first goes from 1 to 8, the last two of an image are
    224, all others 64. Dimensions of equal names get equal sizes. Raises DataError for an unknown input or a
    shape that does not fit.
    """
    constants = {tensor.name for tensor in proto.graph.initializer}
    inputs = {v.name: v.type.tensor_type for v in proto.graph.input if v.name not in constants}
    for name in shapes:
        if name not in inputs:
            raise DataError(
                f"a shape is given for {name!r}, which the model does not take{nearest(name, inputs)}"
            )
    named: dict[str, tuple[int, int]] = {}
    found = {}
    for name, tensor in inputs.items():
        dims = list(tensor.shape.dim)
        given = _check_dims(name, dims, shapes[name]) if name in shapes else None
        ranges = [
            _range(axis, len(dims), dim, None if given is None else given[axis], named)
            for axis, dim in enumerate(dims)
        ]
        if any(dim.dim_value <= 0 for dim in dims):
            low, high = (tuple(pair[end] for pair in ranges) for end in (0, 1))
            found[name] = (
                low,
                high
                if given is not None
                else tuple(min(_USUAL_BATCH, most) if least != most else most for least, most in ranges),
                high,
            )
    return found


def cover_feeds(found: Mapping[str, Profile], feeds: Sequence[Feed]) -> dict[str, Profile]:
    """Return `found`, widened to hold the shapes of `feeds`; the first feed has the most frequent shape."""
    made = {}
    for name, (low, _, high) in found.items():
        shapes = [feed[name].shape for feed in feeds]
        made[name] = (
            tuple(min(sizes) for sizes in zip(low, *shapes, strict=True)),
            tuple(shapes[0]),
            tuple(max(sizes) for sizes in zip(high, *shapes, strict=True)),
        )
    return made


def _check_dims(
    name: str, dims: list[onnx.TensorShapeProto.Dimension], given: Sequence[int]
) -> Sequence[int]:
    fixed = [dim.dim_value if dim.dim_value > 0 else None for dim in dims]
    fits = len(given) == len(fixed) and all(
        f in (None, g) and g > 0 for f, g in zip(fixed, given, strict=True)
    )
    if not fits:
        wanted = "x".join("?" if size is None else str(size) for size in fixed)
        raise DataError(
            f"input {name!r} is {wanted}, but the given shape is {'x'.join(map(str, given))}; correct it"
        )
    if prod(given) > MOST_ELEMENTS:
        raise DataError(
            f"input {name!r} would have {prod(given):,} elements in the given shape "
            f"{'x'.join(map(str, given))}; TensorRT takes up to {MOST_ELEMENTS:,}, give less"
        )
    return given


def _range(
    axis: int,
    rank: int,
    dim: onnx.TensorShapeProto.Dimension,
    given: int | None,
    named: dict[str, tuple[int, int]],
) -> tuple[int, int]:
    """Return (smallest, largest) size of one dimension; store it for dimensions of the same name."""
    if dim.dim_value > 0:
        return dim.dim_value, dim.dim_value
    if dim.dim_param and dim.dim_param in named:
        return named[dim.dim_param]
    if given is not None:
        size = (1 if axis == 0 else given, given)
    elif axis == 0:
        size = (1, LARGEST_BATCH)
    else:
        size = (_PIXELS, _PIXELS) if rank >= 4 and axis >= rank - 2 else (_OTHER, _OTHER)
    if dim.dim_param:
        named[dim.dim_param] = size
    return size
