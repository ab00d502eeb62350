"""AIMET's document: block sizes, checked against the input."""

from __future__ import annotations

from collections.abc import Sequence

from onnxfq.errors import SpecError


def check_blocks(shape: Sequence[int], block_size: Sequence[int] | None, given: Sequence[int]) -> None:
    """Raise SpecError unless blocks of `block_size`, or of one element without it, make up the input.

    Args:
        shape: shape of the ranges.
        block_size: elements of a block; -1 fits any.
        given: shape of the input; the last axes count.
    """
    sizes = block_size or tuple(1 if parts > 1 else -1 for parts in shape)
    for n, parts, size in zip(tuple(given)[len(given) - len(shape) :], shape, sizes, strict=False):
        if size not in (-1, n // parts):
            raise SpecError(
                f"{parts} blocks of {size} do not make up an axis of {n}, of input {list(given)}; "
                "give another shape or block_size"
            )
