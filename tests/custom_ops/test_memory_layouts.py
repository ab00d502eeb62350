"""Arrays wherever NumPy lets them lie: the kernels give what they give for plain ones."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from numpy.typing import NDArray

from onnxfq.errors import SpecError
from onnxfq.runtime import kernels

Array = NDArray[Any]


def misaligned(x: Array) -> Array:
    """A view with the values of `x` that begins at an odd address."""
    memory = np.zeros(x.nbytes + 1, np.uint8)
    made = memory[1:].view(x.dtype).reshape(x.shape)
    made[...] = x
    assert not made.flags.aligned or not x.size
    return made


def locked(x: Array) -> Array:
    """A copy that cannot be written."""
    made = x.copy()
    made.flags.writeable = False
    return made


LAYOUTS: dict[str, Callable[[Array], Array]] = {
    "misaligned": misaligned,
    "Fortran": np.asfortranarray,
    "every second": lambda x: np.repeat(x, 2, axis=-1)[..., ::2],
    "backwards": lambda x: x[..., ::-1].copy()[..., ::-1],
    "read-only": locked,
    "misaligned and backwards": lambda x: misaligned(x[..., ::-1].copy())[..., ::-1],
}
SHAPES = ((3, 5, 7), (1,), (0, 4), ())


@pytest.mark.parametrize("dtype", [np.float32, np.float16, ml_dtypes.bfloat16])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_kernels_read_any_layout(layout: str, dtype: type) -> None:
    """Bits do not depend on where and in which order x, scale and zero point are stored."""
    change = LAYOUTS[layout]
    for shape in SHAPES:
        if not shape and layout not in ("misaligned", "read-only"):
            continue  # a scalar has no order
        x = np.random.default_rng(0).standard_normal(shape).astype(dtype)
        scale = np.linspace(0.1, 0.2, shape[0] if shape else 1, dtype=np.float32)
        how: dict[str, Any] = {"qtype": "int8", "axis": 0} if shape else {"qtype": "int8"}
        zero = np.ones_like(scale)
        found = kernels.fake_quantize(change(x), change(scale), change(zero), **how)
        assert found.tobytes() == kernels.fake_quantize(x, scale, zero, **how).tobytes()
        both = (kernels.dynamic_fake_quantize(one, symmetric=False, **how) for one in (change(x), x))
        for one, other in zip(*both, strict=True):
            assert one.shape == other.shape and one.tobytes() == other.tobytes()
        if dtype is np.float32:
            for one, other in zip(kernels.observe(change(x)), kernels.observe(x), strict=True):
                np.testing.assert_array_equal(one, other)


def test_numbers_of_another_byte_order() -> None:
    """Scales are converted; for x, whose type says how it is rounded, one line tells what to do."""
    x, scale = np.linspace(-1, 1, 12, dtype=np.float32), np.asarray(0.1, np.float32)
    swapped = scale.astype(">f4")
    same = kernels.fake_quantize(x, scale, qtype="int8")
    np.testing.assert_array_equal(kernels.fake_quantize(x, swapped, qtype="int8"), same)
    for call in (
        lambda: kernels.fake_quantize(x.astype(">f4"), scale, qtype="int8"),
        lambda: kernels.dynamic_fake_quantize(x.astype(">f4"), qtype="int8"),
        lambda: kernels.observe(x.astype(">f4")),
    ):
        with pytest.raises(SpecError, match=r"x must be float32.*got >f4; convert it with astype"):
            call()


@pytest.mark.parametrize("layout", ["misaligned", "every second", "read-only"])
def test_a_result_that_kernels_cannot_write(layout: str) -> None:
    """An `out` that is not plain memory is refused."""
    x = np.linspace(-1, 1, 12, dtype=np.float32)
    for kernel in (kernels.fake_quantize, kernels.dynamic_fake_quantize):
        given = (x, 0.1) if kernel is kernels.fake_quantize else (x,)
        with pytest.raises(SpecError, match="writable, contiguous, aligned"):
            kernel(*given, qtype="int8", out=LAYOUTS[layout](x))
