"""Functions of `onnxfq.numerics` with the keywords of kernels: axis, block_size and block_shape."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import wraps
from typing import Any

import numpy as np
from numpy.typing import NDArray

from onnxfq.numerics import affine, block_scales, layout
from onnxfq.numerics.granularity import Granularity
from onnxfq.runtime import kernels

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


def both(x: NDArray[Any], scale: Any = 1.0, zero_point: Any = 0, **options: Any) -> NDArray[np.float32]:
    """Return the result of the kernel FakeQuantize, after comparing it with NumPy to the bit."""
    expected = fake_quantize(x, scale, zero_point, **options)
    actual = kernels.fake_quantize(x, scale, zero_point, **options)
    nan = np.isnan(expected)
    assert np.array_equal(np.isnan(actual), nan)
    assert np.array_equal(actual.view(np.uint32)[~nan], expected.view(np.uint32)[~nan])
    return actual
