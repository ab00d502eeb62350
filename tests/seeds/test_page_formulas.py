"""AIMET's blocks and Horizon's grids by the formulas of their pages, element by element in NumPy."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("onnxscript")

import onnxfq.torch.compat.aimet as Q
from onnxfq.torch.compat.horizon import FakeQuantize

BLOCKS = [
    ((4,), (3,), (12,)),
    ((5, 2), (1, 5), (5, 10)),
    ((1, 2), (-1, 4), (3, 8)),
    ((2, 1, 2), (2, 3, 4), (4, 3, 8)),
    ((4, 2, 1, 1), (1, 2, 3, 3), (4, 4, 3, 3)),
    ((4, 2, 1, 1), (1, 2, -1, -1), (4, 4, 3, 3)),
    ((2, 2, 1, 2), (-1, -1, -1, -1), (4, 4, 3, 6)),
]
"""Shape of min and max, block sizes, and shape of the input."""


@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("symmetric", [True, False])
@pytest.mark.parametrize(("shape", "sizes", "input_shape"), BLOCKS)
def test_blocks_of_any_rank(
    shape: tuple[int, ...], sizes: tuple[int, ...], input_shape: tuple[int, ...], symmetric: bool, bits: int
) -> None:
    """Element j has the scale and offset of block i_d = floor(j_d / B_d); -1 is what fits."""
    x = torch.randn(input_shape, generator=torch.Generator().manual_seed(0))
    quantizer = Q.affine.QuantizeDequantize(shape, bits, symmetric, block_size=sizes)
    with quantizer.compute_encodings():
        quantizer(x)
    scale, offset = (end.detach().numpy() for end in (quantizer.get_scale(), quantizer.get_offset()))
    values, wanted = x.numpy(), np.empty(input_shape, np.float32)
    full = [n // m if size == -1 else size for n, m, size in zip(input_shape, shape, sizes, strict=True)]
    for j in np.ndindex(*input_shape):
        i = tuple(at // size for at, size in zip(j, full, strict=True))
        integer = np.clip(np.rint(values[j] / scale[i]) - offset[i], quantizer.qmin, quantizer.qmax)
        wanted[j] = (integer + offset[i]) * scale[i]
    found = quantizer(x).dequantize().detach().as_subclass(torch.Tensor).numpy()
    assert np.array_equal(found, wanted)
    for block in np.ndindex(*shape):  # min and max are the least grid that holds the block and 0
        part = values[tuple(slice(i * size, (i + 1) * size) for i, size in zip(block, full, strict=True))]
        low, high = min(part.min(), 0), max(part.max(), 0)
        if symmetric:
            step = max(low / quantizer.qmin, high / quantizer.qmax)
            low, high = step * quantizer.qmin, step * quantizer.qmax
        ends = [float(end.detach()[block]) for end in (quantizer.min, quantizer.max)]
        assert ends == pytest.approx([low, high], rel=1e-6)  # float32


SCALES: list[tuple[Any, Any]] = [
    (0.05, None),
    (0.05, 0),
    (1, None),
    ([0.05], None),
    ([0.05], [0]),
    (np.float32(0.05), None),
    (torch.tensor(0.05), None),
    (torch.tensor([0.05]), torch.tensor([0])),
    ([0.1, 0.2, 0.3, 0.4], None),
    (torch.tensor([0.1, 0.2, 0.3, 0.4]), torch.zeros(4, dtype=torch.int32)),
]


@pytest.mark.parametrize(("dtype", "low", "high"), [("qint8", -128, 127), ("qint16", -32768, 32767)])
@pytest.mark.parametrize(("scale", "zero_point"), SCALES, ids=str)
def test_scales_are_given_in_any_form(scale: Any, zero_point: Any, dtype: str, low: int, high: int) -> None:
    """clamp(floor(x / scale + 0.5), low, high) * scale, for numbers, sequences and tensors."""
    channels = np.asarray(scale).size > 1
    quantizer = FakeQuantize(dtype=dtype, **({"ch_axis": 0} if channels else {})).eval()
    quantizer.set_qparams(scale, zero_point)
    x = torch.randn(4, 64, generator=torch.Generator().manual_seed(0)) * 20
    given = np.asarray(scale, np.float32).reshape(-1, 1) if channels else np.float32(np.asarray(scale).item())
    integers = np.clip(np.floor(x.numpy() / given + np.float32(0.5)), low, high)
    # 0 has no sign after an addition
    assert np.array_equal(quantizer(x).numpy(), integers * given + np.float32(0))
