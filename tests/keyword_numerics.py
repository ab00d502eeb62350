"""Functions of `onnxfq.numerics` with the keywords of kernels: axis, block_size and block_shape."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import wraps
from typing import Any

from onnxfq.numerics import affine, block_scales, layout
from onnxfq.numerics.granularity import Granularity

ARITHMETICS, ROUNDINGS = affine.ARITHMETICS, affine.ROUNDINGS


def by_keyword(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return `function` with three keywords in place of its granularity."""

    @wraps(function)
    def call(
        *args: Any,
        axis: int | None = None,
        block_size: int | None = None,
        block_shape: Sequence[int] | None = None,
        **keywords: Any,
    ) -> Any:
        return function(*args, granularity=Granularity.of(axis, block_size, block_shape), **keywords)

    return call


quantize = by_keyword(affine.quantize)
dequantize = by_keyword(affine.dequantize)
fake_quantize = by_keyword(affine.fake_quantize)
dynamic_fake_quantize = by_keyword(block_scales.dynamic_fake_quantize)
expand_params = by_keyword(layout.expand_params)
